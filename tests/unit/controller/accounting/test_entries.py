"""The ledger's rows as events: told once each, with what it cost, when that is known."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from spotelastic.cloud.events import WARNED_AHEAD
from spotelastic.controller.accounting.ledger_events import SETTLED_AFTER, entries, with_recorded
from spotelastic.controller.model.observation import account
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.progress import Event, Interruption, Report, ReportJob

NOTICE = Interruption(
    *(InterruptionKind.SPOT_INTERRUPTION, "i-1", 1000.0, 0.4, 60, True, 1.2, 3),
    told_by="imds",
    seen_after_by={"imds": 0.4, "sqs": 1.1},
    first_step_at=1005.0,
    usd=0.0123,
    round=4,
)
IDLE = replace(NOTICE, pause_s=0.0, steps_lost=0, usd=0.0, first_step_at=None, round=None)


def told(*rows: Interruption, now: float = 2000.0, state: str = "running") -> list[Event]:
    return list(entries(Report(ReportJob(state, 80, 90), rows, 0.9, 1.0, 1.0, 3.0), now))


def test_an_event_says_what_an_interruption_cost_and_carries_the_whole_row() -> None:
    (event,) = told(NOTICE)
    assert (event.kind, event.node, event.at) == ("ledger", "i-1", 2000.0)
    assert event.message == (
        "i-1 (spot notice): training paused 1.20 s, 3 steps repeated, $0.012, resumed from step 60"
    )
    stored = msgspec.json.decode(msgspec.json.encode(event), type=Event)
    assert msgspec.convert(stored.data["interruption"], Interruption) == NOTICE


def test_a_small_cost_is_not_told_as_none() -> None:
    (event,) = told(replace(NOTICE, usd=0.000023))
    assert ", $0.000023, " in event.message


@pytest.mark.parametrize(
    "row", [replace(NOTICE, pause_s=None), replace(NOTICE, steps_lost=None, usd=None)]
)
def test_a_row_without_its_price_is_not_told(row: Interruption) -> None:
    assert told(row) == told(row, state="succeeded") == []


def test_whoever_else_saw_it_has_a_while_to_tell_unless_the_job_has_ended() -> None:
    early = 1005.0 + SETTLED_AFTER - 0.1
    assert told(NOTICE, now=early) == []
    assert len(told(NOTICE, now=early + 0.1)) == 1
    assert len(told(NOTICE, now=early, state="failed")) == 1


def test_a_node_that_did_not_train_yet_kept_nobody_waiting() -> None:
    (event,) = told(IDLE)
    assert event.message == "i-1 (spot notice): it had not trained yet, so nothing was lost"


@pytest.mark.parametrize("kind", [InterruptionKind.SPOT_INTERRUPTION, InterruptionKind.LOSS])
def test_that_a_node_never_trained_is_told_when_it_must_be_gone(kind: Any) -> None:
    """A notice may be withdrawn, and a silent node come back, until then."""
    row, sure = replace(IDLE, kind=kind), IDLE.at + WARNED_AHEAD + SETTLED_AFTER
    assert told(row, now=sure - 0.1) == []
    assert len(told(row, now=sure)) == 1
    assert len(told(row, now=IDLE.at + 1.0, state="stopped")) == 1


def test_what_is_added_to_a_row_does_not_make_it_another() -> None:
    (first,), (again,) = (
        told(NOTICE),
        told(replace(NOTICE, kind=InterruptionKind.LOSS, at=999.0), now=2010.0),
    )
    assert account(first) == account(again)


def test_each_pause_etcd_member_and_node_has_an_event_of_its_own() -> None:
    etcd = Interruption(InterruptionKind.ETCD, "i-9", 1200.0, 0.1, None, None, 0.05, 0)
    worker = replace(NOTICE, kind=InterruptionKind.WORKER)
    rows = [
        *(worker, replace(worker, round=5), replace(worker, node="i-2")),
        *(etcd, replace(etcd, at=1300.0)),
    ]
    events = told(*rows)
    assert len({account(event) for event in events}) == len(rows)
    assert events[3].message == "i-9 (etcd died): training paused 0.05 s, 0 steps repeated"


def test_a_row_on_record_is_final_and_no_other_is_added_to_its_pause() -> None:
    other = replace(NOTICE, node="i-2")
    recorded = told(NOTICE, other)
    changed = replace(NOTICE, kind=InterruptionKind.LOSS, pause_s=9.0)
    late, next_pause = replace(NOTICE, node="i-3"), replace(NOTICE, round=5)
    assert with_recorded([changed, late, next_pause], recorded) == [NOTICE, other, next_pause]
    half = with_recorded([changed, other, late], recorded[:1])
    assert half == [NOTICE, other], "a leader that ended in between has left one untold"


def test_a_node_that_was_taken_before_it_trained_keeps_its_row_when_others_are() -> None:
    other = replace(IDLE, node="i-2")
    assert with_recorded([other], told(IDLE)) == [IDLE, other]
    waits = replace(NOTICE, round=None, pause_s=None, first_step_at=None)
    assert with_recorded([waits], told(IDLE)) == [IDLE, waits], "it has trained since, and was lost"
