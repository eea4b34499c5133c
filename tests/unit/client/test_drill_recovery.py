"""When a job has got over an interruption, by its report."""

from dataclasses import replace

from spotelastic.client.interruptions.drill_plan import Caused
from spotelastic.client.interruptions.drill_recovery import (
    PUBLISHED_WITHIN,
    awaited,
    outcome,
    row_of,
)
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.progress import Interruption, Report, ReportJob

NOTICE = Caused(InterruptionKind.SPOT_INTERRUPTION, "a", 40, 5.0)
ROW = Interruption(
    kind=InterruptionKind.SPOT_INTERRUPTION,
    node="a",
    at=1.0,
    seen_after_s=0.1,
    saved_step=41,
    committed=True,
    pause_s=0.5,
    steps_lost=0,
    first_step_at=2.0,
)


def report(*rows: Interruption) -> Report:
    return Report(ReportJob("running", 50, 50), rows, 1.0, 0.1, 0.1, 0.2)


def test_it_is_over_once_training_has_gone_on_without_the_node() -> None:
    assert row_of(NOTICE, None, 0.0) is None
    assert row_of(NOTICE, report(), 0.0) is None
    assert row_of(NOTICE, report(replace(ROW, pause_s=None)), 0.0) is None, "nobody trains yet"
    assert row_of(NOTICE, report(replace(ROW, node="b")), 0.0) is None
    assert row_of(NOTICE, report(ROW), 0.0) == ROW


def test_a_worker_that_failed_on_the_node_before_is_another_interruption() -> None:
    failed = replace(ROW, kind=InterruptionKind.WORKER)
    assert row_of(NOTICE, report(failed), 0.0) is None
    assert row_of(NOTICE, report(failed, ROW), 0.0) == ROW


def test_a_notice_that_the_node_did_not_live_to_use_is_still_its_end() -> None:
    lost = replace(ROW, kind=InterruptionKind.LOSS)
    assert row_of(NOTICE, report(lost), 0.0) == lost


def test_a_node_that_seems_never_to_have_trained_may_have_steps_that_are_not_published_yet() -> (
    None
):
    idle = replace(ROW, saved_step=None, pause_s=0.0, first_step_at=None)
    assert row_of(NOTICE, report(idle), PUBLISHED_WITHIN - 1) is None
    assert row_of(NOTICE, report(idle), PUBLISHED_WITHIN) == idle


def test_a_recommendation_takes_nothing_away_so_nothing_is_awaited() -> None:
    hint = replace(NOTICE, kind=InterruptionKind.REBALANCE)
    assert awaited((hint, NOTICE)) == (NOTICE,)


def test_what_it_cost_is_told_also_of_a_node_that_never_trained() -> None:
    assert outcome(replace(ROW, steps_lost=5)) == (
        "a is gone: training paused 0.50 s and continues from step 41, 5 steps repeated"
    )
    assert "training did not pause" in outcome(replace(ROW, saved_step=None, pause_s=0.0))
