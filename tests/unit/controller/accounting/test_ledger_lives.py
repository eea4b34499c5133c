"""The ledger of jobs that were restarted, and of runs that were sent back."""

from dataclasses import replace

import pytest
from spotelastic_checkpoints.types import Resume
from support.clusters.job_history import STEP, Story, memory, only

from spotelastic.controller.accounting.ledger import report
from spotelastic.model.job import Job
from spotelastic.model.round import Cause, Round


def test_the_time_between_a_jobs_end_and_its_restart_is_not_the_jobs() -> None:
    story = Story().propose("start", "ab").train(50, after=1.0).end()
    story.now += 3600.0
    again = Resume("store", 50, epoch=1)
    result = story.propose("start", "cd", resume=again).train(100, after=2.0).report()
    assert result.interruptions == ()
    assert result.goodput == 1.0
    assert (result.job.final_step, result.job.steps_run) == (100, 100)


def test_a_restart_that_crashes_at_first_has_lost_no_node_of_the_life_before() -> None:
    story = Story().propose("start", "ab").train(50, after=1.0).end()
    story.now += 3600.0
    again = Resume("store", 50, epoch=1)
    story.propose("start", "cd", resume=again)
    story.now += 5.0
    story.tell("failure", "c", at=story.now, seen_at=story.now, round="round-2").end()
    assert story.propose("worker", "cd", about="c", resume=again).report().interruptions == ()
    result = story.train(100, after=2.0).report()
    assert result.interruptions == ()
    assert result.goodput == 1.0
    assert (result.job.final_step, result.job.steps_run) == (100, 100)


def test_a_restart_is_one_though_a_node_was_lost_before_its_first_round_started() -> None:
    """That round's cause is a loss then; it has no round before it all the same."""
    story = Story().propose("start", "ab").train(50, after=1.0).end()
    story.now += 3600.0
    story.propose("loss", "cd", about="e", resume=Resume("store", 50, epoch=1))
    assert story.current is not None
    story.current = replace(story.current, parent="")
    result = story.train(100, after=2.0).report()
    assert result.interruptions == ()
    assert result.goodput == 1.0


def test_a_round_that_is_over_when_the_job_goes_on_has_lost_nobody() -> None:
    over = Round(3, "round-3", "over", (), "worker", "")
    story = Story().propose("start", "abc").train(50, after=1.0)
    story.tell("loss", "b", source="cloud", at=story.now, seen_at=story.now + 0.3).end()
    without = replace(story, records=[*story.records], current=over)
    assert without.report(state="running").interruptions == ()
    story.propose("loss", "ac", about="b", resume=memory(45)).end()
    story.current = over
    row = only(story.report(state="running"))
    assert (row.kind, row.node, row.told_by, row.pause_s) == ("loss", "b", "cloud", None)


def test_a_node_lost_just_before_the_end_keeps_its_row_when_the_job_is_restarted() -> None:
    """What happens later is none of that life's, though c, which answered late in it, is there."""
    story = Story().propose("start", "abc").train(50, after=1.0)
    story.tell("loss", "b", source="cloud", at=story.now, seen_at=story.now + 0.3).end()
    story.propose("loss", "ac", about="b", resume=memory(45))
    story.now += 5.0
    story.tell("failure", "a", at=story.now, seen_at=story.now, round="round-2").end()
    story.propose("worker", "a", about="a", resume=memory(45)).end()
    story.now += 3600.0
    again = Resume("store", 45, epoch=1)
    story.propose("start", "ac", resume=again).train(60, after=1.0)
    lost = only(story.report())
    assert (lost.kind, lost.node, lost.saved_step, lost.steps_lost) == ("loss", "b", 45, 5)
    assert (lost.pause_s, lost.first_step_at, lost.round) == (None, None, None)
    story.tell(
        "notice", "c", kind="spot_interruption", source="sqs", at=story.now, seen_at=story.now
    ).end()
    story.propose("drain", "a", about="c", resume=memory(60, 4)).train(80, after=1.0)
    first, second = story.report().interruptions
    assert first == lost
    assert (second.kind, second.node, second.round) == ("spot_interruption", "c", 5)


def sent_back(cause: Cause) -> Story:
    """Run to 100; the round after resumes from 95, and goes back to 20 by itself."""
    story = Story().propose("start", "abc").train(100, after=1.0).end()
    story.propose(cause, "ac", about="b", resume=memory(95)).train(60, after=2.0, back_to=20)
    return story


@pytest.mark.parametrize("cause", ["start", "settings"])
def test_a_run_that_was_sent_back_loses_what_it_did_itself(cause: Cause) -> None:
    story = sent_back(cause).end()
    story.propose("loss", "a", about="c", resume=memory(55, 2)).train(90, after=1.5)
    result = story.report()
    row = next(row for row in result.interruptions if row.round == 3)
    assert (row.kind, row.node, row.saved_step, row.steps_lost) == ("loss", "c", 55, 5)
    assert row.pause_s == pytest.approx(1.5 - STEP)
    assert (result.job.final_step, result.job.steps_run) == (90, 100 + 40 + 35)
    trained, paused = (100 + 40 + 35) * STEP, 1.5 - STEP
    if cause != "start":
        paused += 2.0 - STEP
    kept = (20 + 35 + 35) * STEP
    assert result.goodput == pytest.approx(kept / (trained + paused), abs=0.001)


def test_steps_that_a_damaged_checkpoint_cost_are_those_of_the_interruption_before() -> None:
    story = sent_back("loss")
    row = only(story.report(state="running"))
    assert (row.node, row.saved_step, row.committed, row.steps_lost) == ("b", 20, True, 80)
    assert row.pause_s == pytest.approx(2.0 - STEP)
    story.end().propose("loss", "a", about="c", resume=memory(55, 2)).train(90, after=1.0)
    result = story.report()
    assert [row.steps_lost for row in result.interruptions] == [80, 5]
    assert result.job.steps_run - result.job.final_step == 85


def test_a_run_that_was_sent_back_may_pass_the_step_that_it_had_resumed_from() -> None:
    story = sent_back("settings").train(120, after=STEP).end()
    story.propose("loss", "a", about="c", resume=memory(110, 2)).train(130, after=1.0)
    result = story.report()
    assert only(result).steps_lost == 10
    assert result.job.steps_run == 100 + 100 + 20


def test_a_job_that_was_sent_back_is_where_its_last_run_is() -> None:
    story = sent_back("settings")
    for final in (
        0,
        60,
        95,
    ):  # of a round without further steps, that which it resumed from is told
        job = Job("failed" if final == 0 else "succeeded", story.now, final_step=final)
        result = report(story.records, story.current, job, (), story.points, (), story.now)
        assert result.job.steps_run == 140
    result = story.end().report(state="failed")
    assert (result.job.final_step, result.job.steps_run) == (60, 140)


def test_of_a_run_that_was_sent_back_a_later_round_tells_how_far_it_came() -> None:
    story = sent_back("settings").end()
    story.points = [point for point in story.points if point.at < story.now - 1.0]
    assert story.points[-1].step < 55
    story.propose("loss", "a", about="c", resume=memory(58, 2)).train(90, after=1.0)
    result = story.report()
    assert only(result).steps_lost == 0
    assert result.job.steps_run == 100 + 38 + 32


@pytest.mark.parametrize("back_to", [None, 20])
def test_steps_of_the_run_before_that_seem_to_come_later_send_nobody_back(
    back_to: int | None,
) -> None:
    """By the clock of another node, the last ones were executed after the next round started."""
    story = Story().propose("start", "abc").train(100, after=1.0).end()
    story.now -= 4.5 * STEP
    story.propose("loss", "ac", about="b", resume=memory(100)).train(
        150, after=2.0, back_to=back_to
    )
    result = story.report(state="running")
    row = only(result)
    assert row.saved_step == (100 if back_to is None else 20)
    assert row.steps_lost == (0 if back_to is None else 80)
    assert result.job.steps_run == (150 if back_to is None else 100 + 130)


def test_a_cluster_that_is_taken_down_interrupts_nobody() -> None:
    def asked(nodes: str) -> Story:
        story = Story().propose("start", "abc").train(30, after=1.0)
        for node in nodes:
            story.tell("leave", node, kind="leave", at=story.now, seen_at=story.now)
        return story.end().propose("drain", "", about=nodes, started=False)

    assert asked("abc").report(state="running").interruptions == ()
    assert [row.node for row in asked("ab").report(state="running").interruptions] == ["a", "b"]
    story = asked("abc").end().propose("drain", "def", resume=memory(30)).train(60, after=9.0)
    rows = story.report().interruptions
    assert [row.node for row in rows] == ["a", "b", "c"], "others went on"
    assert all(row.first_step_at is not None for row in rows)


def test_a_step_that_a_later_commit_has_passed_does_not_come_into_the_store() -> None:
    story = Story().propose("start", "ab").train(37, after=1.0)
    story.tell("loss", "b", at=story.now, seen_at=story.now + 0.25).end()
    story.propose("loss", "a", about="b", resume=memory(30)).train(50, after=0.7)
    assert only(story.report(state="running")).committed is None
    assert only(story.report(state="failed")).committed is False, "none follows"
    story.tell("committed", epoch=2, step=45, at=story.now)
    assert only(story.report(state="running")).committed is False
