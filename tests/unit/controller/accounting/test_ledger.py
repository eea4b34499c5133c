"""The ledger against hand-made histories: one row per interruption, with the right price."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console
from spotelastic_checkpoints.types import Holder, Resume
from support.clusters.job_history import STEP, Story, memory, only

from spotelastic.cli.render.tables import report_table
from spotelastic.controller.accounting.ledger import report
from spotelastic.controller.accounting.usage import Usage
from spotelastic.model.job import Job


def test_a_job_without_interruption_has_no_rows_and_full_goodput() -> None:
    story = Story().propose("start", "ab").train(50, after=3.0)
    result = story.report()
    assert result.job.final_step == result.job.steps_run == 50
    assert result.interruptions == ()
    assert result.goodput == 1.0


def test_a_noticed_node_costs_a_pause_but_no_step() -> None:
    story = Story().propose("start", "abc").train(30, after=1.0)
    story.tell(
        "notice", "b", kind="spot_interruption", at=story.now - 2.0, seen_at=story.now - 1.5
    ).end()
    story.propose("drain", "ac", about="b", resume=memory(30)).train(60, after=1.0)
    assert only(story.report(state="running")).committed is None, (
        "it is on its way, or was taken over"
    )
    story.tell("committed", epoch=1, step=30, at=story.now)
    row = only(story.report())
    assert (row.kind, row.node, row.saved_step, row.steps_lost) == ("spot_interruption", "b", 30, 0)
    assert (row.committed, row.round) == (True, 2)
    assert row.seen_after_s == pytest.approx(0.5)
    assert row.pause_s == pytest.approx(1.0 - STEP)


def test_a_row_tells_where_the_state_came_from() -> None:
    def source(resume: Resume) -> str:
        story = Story().propose("start", "abc").train(30, after=1.0)
        story.tell("loss", "b", at=story.now, seen_at=story.now).end()
        story.propose("loss", "ac", about="b", resume=resume).train(60, after=1.0)
        return only(story.report()).source

    kept = Holder("a", "a:1", (1,), replica=True), Holder("c", "c:1", (2,))
    assert source(memory(30)) == "memory"
    assert source(replace_holders(memory(30), kept)) == "replica"
    assert source(Resume("store", 20, epoch=1)) == "store"


def test_a_row_has_what_the_nodes_have_measured_of_their_restores() -> None:
    story = Story().propose("start", "abc").train(30, after=1.0)
    story.tell("loss", "b", at=story.now, seen_at=story.now).end()
    story.propose("loss", "ac", about="b", resume=memory(30)).train(60, after=1.0)
    row = only(story.report())
    assert (row.restore_s, row.restores) == (None, {})
    story.tell("restored", number=1, seconds={"store": 9.0})
    story.tell("restored", number=2, seconds={"memory": 0.2, "store": 1.5})
    row = only(story.report())
    assert (row.restore_s, row.restores) == (1.5, {"memory": 0.2, "store": 1.5})


def replace_holders(resume: Resume, holders: tuple[Holder, ...]) -> Resume:
    return Resume(resume.kind, resume.step, resume.incarnation, holders=holders)


def test_the_drained_node_being_killed_at_last_is_not_a_second_interruption() -> None:
    story = Story().propose("start", "abc").train(30, after=1.0)
    story.tell("notice", "b", kind="spot_interruption", at=story.now, seen_at=story.now).end()
    story.propose("drain", "ac", about="b", resume=memory(30)).train(60, after=1.0)
    story.tell("loss", "b", at=story.now, seen_at=story.now + 0.1).end()
    story.propose("arrival", "acd", about="d", resume=memory(60, 2)).train(90, after=1.0)
    assert [row.kind for row in story.report().interruptions] == ["spot_interruption"]


def test_a_noticed_node_that_was_killed_while_still_needed_counts_as_noticed() -> None:
    story = Story().propose("start", "ab").train(30, after=1.0)
    story.tell("notice", "b", kind="spot_interruption", at=story.now, seen_at=story.now + 0.2)
    story.tell("loss", "b", at=story.now + 15, seen_at=story.now + 16).end()
    story.propose("loss", "ac", about="b", resume=memory(25)).train(40, after=1.0)
    row = only(story.report())
    assert (row.kind, row.steps_lost) == ("spot_interruption", 5)
    assert row.seen_after_s == pytest.approx(0.2)


def test_a_node_that_left_for_a_sick_gpu_is_neither_a_notice_nor_a_failure() -> None:
    """Whose worker failed first, and whose group then ended the instance."""
    story = Story().propose("start", "abc").train(30, after=1.0)
    story.tell("failure", "b", round="r1", rank=1, at=story.now).end()
    story.propose("worker", "abc", about="b", resume=memory(28))
    story.tell("unhealthy", "b", kind="unhealthy", source="kernel", at=story.now, seen_at=story.now)
    story.tell("notice", "b", kind="planned", source="imds", at=story.now, seen_at=story.now)
    story.propose("drain", "ac", about="b", resume=memory(28)).train(60, after=1.0)
    row = only(story.report())
    assert (row.kind, row.node, row.steps_lost) == ("unhealthy", "b", 2)
    assert row.told_by == "kernel"


def test_a_node_that_was_given_up_was_not_taken_by_the_spot_market() -> None:
    """As with `scale`, or an on-demand node that spot takes the turn of."""
    story = Story().propose("start", "abc").train(30, after=1.0)
    story.tell("notice", "b", kind="planned", source="imds", at=story.now, seen_at=story.now)
    story.tell("notice", "c", kind="planned", source="imds", at=story.now, seen_at=story.now)
    story.tell(
        "notice", "c", kind="spot_interruption", source="sqs", at=story.now, seen_at=story.now
    ).end()
    story.propose("drain", "a", about="bc", resume=memory(28)).train(60, after=1.0)
    given_up, warned = sorted(story.report().interruptions, key=lambda row: row.node)
    assert (given_up.kind, given_up.steps_lost) == ("planned", 0)
    assert (warned.kind, warned.steps_lost) == ("spot_interruption", 2), "whose loss it is is one's"


@pytest.mark.parametrize(("ended", "kind"), [({}, "leave"), ({"kind": "by_hand"}, "by_hand")])
def test_a_node_that_was_asked_to_leave_is_told_by_who_asked(
    ended: dict[str, str], kind: str
) -> None:
    """An instance that somebody terminates ends its agent in order, and its end is told later."""
    story = Story().propose("start", "abc").train(30, after=1.0)
    story.tell("leave", "b", kind="leave", at=story.now, seen_at=story.now).end()
    story.propose("drain", "ac", about="b", resume=memory(30)).train(60, after=1.0)
    if ended:
        story.tell("loss", "b", at=story.now, seen_at=story.now, **ended)
    row = only(story.report())
    assert (row.kind, row.node, row.steps_lost) == (kind, "b", 0)


def test_a_loss_first_seen_as_a_worker_failure_is_one_row() -> None:
    """The peers' workers fail at once; the lost node is left out only of the second proposal."""
    story = Story().propose("start", "abc").train(37, after=1.0)
    story.tell("failure", "a", rank=0, at=story.now, seen_at=story.now, round="round-1").end()
    story.propose("worker", "abc", about="a", resume=memory(30)).end()
    story.now += 0.3
    story.propose("loss", "ac", about="b", resume=memory(30))
    story.tell("loss", "b", at=story.now, seen_at=story.now + 0.25)
    story.train(50, after=0.7)
    row = only(story.report())
    assert (row.kind, row.node, row.saved_step, row.steps_lost) == ("loss", "b", 30, 7)
    assert row.seen_after_s == pytest.approx(0.25)
    assert row.pause_s == pytest.approx(1.0 - STEP)
    assert row.committed is False, "the job is over"


def test_a_lost_node_is_a_loss_even_when_the_round_says_worker_and_nobody_reported_it() -> None:
    story = Story().propose("start", "abc").train(37, after=1.0).end()
    story.propose("worker", "ac", about="a", resume=memory(30)).train(50, after=1.0)
    row = only(story.report())
    assert (row.kind, row.node, row.seen_after_s) == ("loss", "b", None)


def test_a_node_that_only_answered_late_and_came_back_is_no_loss() -> None:
    story = Story().propose("start", "abc").train(37, after=1.0)
    story.tell("failure", "a", rank=0, at=story.now, seen_at=story.now + 0.1, round="round-1").end()
    story.propose("worker", "ac", about="a", resume=memory(30)).train(50, after=1.0).end()
    story.propose("arrival", "acB", about="b", resume=memory(50, 2)).train(60, after=1.0)
    row = only(story.report())
    assert (row.kind, row.node, row.steps_lost) == ("worker", "a", 7)


def test_a_worker_that_fails_costs_the_steps_since_the_snapshot() -> None:
    story = Story().propose("start", "ab").train(36, after=1.0)
    story.tell(
        "failure", "b", rank=1, at=story.now, seen_at=story.now + 0.01, round="round-1"
    ).end()
    story.propose("worker", "ab", about="b", resume=memory(30)).train(50, after=0.5)
    result = story.report()
    row = only(result)
    assert (row.kind, row.node, row.steps_lost) == ("worker", "b", 6)
    assert row.seen_after_s == pytest.approx(0.01)
    assert result.job.steps_run == 56


def test_a_notice_and_a_loss_in_one_pause_are_two_rows_that_lose_steps_once() -> None:
    story = Story().propose("start", "abcd").train(36, after=1.0)
    story.tell("notice", "b", kind="spot_interruption", at=story.now, seen_at=story.now)
    story.tell("loss", "c", at=story.now, seen_at=story.now + 1).end()
    story.propose("loss", "ad", about="c", resume=memory(30)).train(50, after=0.5)
    result = story.report()
    assert {row.kind: row.steps_lost for row in result.interruptions} == {
        "spot_interruption": 0,
        "loss": 6,
    }


def test_arrivals_and_changed_settings_are_no_interruptions() -> None:
    story = Story().propose("start", "ab").train(30, after=1.0).end()
    story.propose("arrival", "abc", about="c", resume=memory(30)).train(60, after=1.0).end()
    story.propose("settings", "ab", about="c", resume=memory(60, 2)).train(90, after=1.0)
    result = story.report()
    assert result.interruptions == ()
    assert 0.7 < result.goodput < 1.0


def test_of_two_accounts_the_first_to_see_and_the_better_clock_count() -> None:
    story = Story(now=1000.9).propose("start", "abc").train(30, after=1.0)
    now = story.now
    # The queue's event names the second; the metadata document ends the two minutes of a notice
    # that in truth was shorter.
    story.tell(
        "notice", "b", kind="spot_interruption", source="sqs", at=float(int(now)), seen_at=now + 0.4
    )
    story.tell(
        "notice", "b", kind="spot_interruption", source="imds", at=now - 105.0, seen_at=now + 0.1
    )
    story.end().propose("drain", "ac", about="b", resume=memory(30)).train(60, after=1.0)
    row = only(story.report())
    assert row.at == int(now)
    assert row.seen_after_s == pytest.approx(now + 0.1 - int(now), abs=0.001)
    assert row.told_by == "imds"
    assert row.seen_after_by["sqs"] - row.seen_after_by["imds"] == pytest.approx(0.3, abs=0.002)


@pytest.mark.parametrize("teller", ["cloud", "lease"])
def test_a_loss_names_who_told_of_it_and_how_late(teller: str) -> None:
    story = Story().propose("start", "ab").train(30, after=1.0)
    story.tell("loss", "b", source=teller, at=story.now, seen_at=story.now + 0.3).end()
    story.propose("loss", "a", about="b", resume=memory(25)).train(60, after=1.0)
    row = only(story.report())
    assert (row.kind, row.told_by) == ("loss", teller)
    assert row.seen_after_by == {teller: pytest.approx(0.3)}


def test_a_node_that_is_taken_before_it_trains_is_a_row_that_cost_no_step() -> None:
    """c boots, d waits, and e is given up; b trains on after its notice, until the job ends."""
    story = Story().propose("start", "ab").train(30, after=1.0)
    story.tell(
        "notice", "c", kind="spot_interruption", source="sqs", at=story.now, seen_at=story.now + 0.4
    )
    story.tell("notice", "c", kind="planned", source="imds", at=story.now, seen_at=story.now + 1)
    story.tell("loss", "c", source="cloud", at=story.now + 2, seen_at=story.now + 2)
    story.tell("loss", "d", source="lease", at=story.now, seen_at=story.now + 0.5)
    story.tell("notice", "e", kind="planned", source="imds", at=story.now, seen_at=story.now)
    story.tell("notice", "e", kind="rebalance", source="sqs", at=story.now, seen_at=story.now)
    story.tell(
        "notice", "b", kind="spot_interruption", source="sqs", at=story.now, seen_at=story.now
    )
    without = Story(records=story.records, points=story.points, current=story.current)
    story.train(60, after=STEP)
    result = story.report()
    assert {row.node: (row.kind, row.told_by) for row in result.interruptions} == {
        "c": ("spot_interruption", "sqs"),
        "d": ("loss", "lease"),
    }
    prices = {(row.pause_s, row.steps_lost, row.usd) for row in result.interruptions}
    assert prices == {(0.0, 0, 0.0)}
    assert result.job.steps_run == result.job.final_step == 60
    assert result.goodput == without.report().goodput == 1.0


def test_what_an_interruption_costs_a_script_without_a_checkpointer_is_not_known() -> None:
    """It tells no steps. A node that only booted cost none, whatever the script does."""
    story = Story().propose("start", "ab").end()
    story.tell("loss", "a", source="cloud", at=story.now, seen_at=story.now)
    story.tell("loss", "c", source="cloud", at=story.now, seen_at=story.now)
    story.propose("loss", "b", about="a")
    assert story.current is not None
    story.current = replace(story.current, plain=2)
    found = story.report(state="running")
    assert {row.node: (row.pause_s, row.steps_lost, row.usd) for row in found.interruptions} == {
        "a": (None, None, None),
        "c": (0.0, 0, 0.0),
    }
    text = StringIO()
    Console(file=text, width=200).print(report_table(found))
    assert "goodput" not in text.getvalue()


@pytest.mark.parametrize(
    ("goodput", "shown"), [(1.0, "100.0%"), (0.99999, "99.9%"), (0.72, "72.0%")]
)
def test_only_a_job_that_lost_nothing_had_a_goodput_of_all(goodput: float, shown: str) -> None:
    found = replace(Story().propose("start", "ab").train(9, after=1.0).report(), goodput=goodput)
    text = StringIO()
    Console(file=text, width=200).print(report_table(found))
    assert f"goodput {shown}" in text.getvalue()


def test_a_node_that_trained_later_or_was_told_of_after_the_end_is_no_row_of_its_own() -> None:
    story = Story().propose("start", "ab").train(30, after=1.0)
    story.tell(
        "notice", "c", kind="spot_interruption", source="sqs", at=story.now, seen_at=story.now
    ).end()
    story.propose("arrival", "abc", about="c", resume=memory(30)).train(60, after=1.0).end()
    story.propose("drain", "ab", about="c", resume=memory(60, 2)).train(90, after=1.0)
    now = story.now
    story.now += 10.0
    story.tell(
        "notice", "d", kind="spot_interruption", source="sqs", at=story.now, seen_at=story.now
    )
    story.now = now
    assert only(story.report()).node == "c"


def test_what_befalls_a_node_while_its_round_restores_is_told_when_that_has_stepped() -> None:
    story = Story().propose("start", "ab").train(30, after=1.0).end()
    story.propose("arrival", "abc", about="c", resume=memory(30))
    story.tell(
        "notice", "c", kind="spot_interruption", source="imds", at=story.now, seen_at=story.now
    )
    story.now += 40.0
    assert story.report(state="running").interruptions == ()
    ended = only(story.report(state="stopped"))
    assert (ended.node, ended.pause_s, ended.round) == ("c", 0.0, None), "it never trained"
    story.train(60, after=1.0)
    assert story.report(state="running").interruptions == ()
    story.end().propose("drain", "ab", about="c", resume=memory(60, 2)).train(90, after=1.0)
    row = only(story.report(state="running"))
    assert (row.kind, row.node, row.round, row.steps_lost) == ("spot_interruption", "c", 3, 0)


def test_a_rebalance_recommendation_moves_nobody() -> None:
    story = Story().propose("start", "ab").train(30, after=1.0)
    story.tell("notice", "b", kind="rebalance", at=story.now, seen_at=story.now)
    story.tell("loss", "b", at=story.now, seen_at=story.now).end()
    story.propose("loss", "a", about="b", resume=memory(30)).train(60, after=1.0)
    assert only(story.report()).kind == "loss"


def test_an_etcd_member_that_dies_costs_no_round_and_at_most_a_hiccup() -> None:
    story = Story().propose("start", "ab").train(30, after=1.0)
    killed = story.now
    story.train(60, after=0.75)
    story.tell("etcd", "control-a", at=killed, back_at=killed + 2, member="a")
    story.tell("etcd", "control-a", at=killed + 0.5, back_at=killed + 3, member="a")
    row = only(story.report())
    assert (row.kind, row.node, row.steps_lost) == ("etcd", "control-a", 0)
    assert (row.saved_step, row.committed) == (None, None)
    assert row.pause_s == pytest.approx(0.75 - STEP)


def test_two_outages_of_one_etcd_member_are_two_rows() -> None:
    story = Story().propose("start", "ab").train(300, after=1.0)
    story.tell("etcd", "control-a", at=1003.0, back_at=1004.0, member="a")
    story.tell("etcd", "control-a", at=1020.0, back_at=1021.0, member="a")
    assert [row.at for row in story.report().interruptions] == [1003.0, 1020.0]


def test_a_restore_from_the_object_store_is_committed_by_nature() -> None:
    story = Story().propose("start", "ab").train(60, after=1.0).end()
    story.propose("loss", "cd", about="ab", resume=Resume("store", 50, epoch=1))
    story.train(80, after=9.0)
    rows = story.report().interruptions
    assert {(row.node, row.committed, row.saved_step) for row in rows} == {
        ("a", True, 50),
        ("b", True, 50),
    }
    assert sum(row.steps_lost or 0 for row in rows) == 10


def test_an_interruption_that_training_has_not_recovered_from_has_no_pause_yet() -> None:
    story = Story().propose("start", "ab").train(36, after=1.0).end()
    story.propose("loss", "a", about="b", resume=memory(30))
    row = only(story.report(state="running"))
    assert (row.saved_step, row.pause_s) == (30, None)


def test_a_round_that_is_only_proposed_tells_nothing_about_the_step_to_resume_from() -> None:
    story = Story().propose("start", "ab").train(36, after=1.0).end()
    story.propose("loss", "a", about="b", started=False)
    row = only(story.report(state="running"))
    assert (row.saved_step, row.committed, row.steps_lost, row.pause_s) == (None, None, None, None)


def test_a_script_that_fails_again_and_again_is_one_row_from_its_first_failure() -> None:
    story = Story().propose("start", "ab").train(36, after=1.0).end()
    story.propose("arrival", "abc", about="c", resume=memory(36))
    for number in (2, 3):
        story.now += 0.5
        story.tell("failure", "c", at=story.now, seen_at=story.now + 0.1, round=f"round-{number}")
        story.end().propose("worker", "abc", about="c", resume=memory(36))
    first = story.events[0].at
    story.propose("worker", "abc", about="c", started=False)
    row = only(story.report(state="failed"))
    assert (row.kind, row.node, row.at, row.saved_step, row.steps_lost) == (
        "worker",
        "c",
        first,
        36,
        0,
    )
    assert row.seen_after_s == pytest.approx(0.1)


def test_steps_run_less_the_final_step_is_what_the_rows_say_was_lost() -> None:
    story = Story().propose("start", "abc").train(30, after=1.0)
    story.tell("notice", "b", kind="spot_interruption", at=story.now, seen_at=story.now).end()
    story.propose("drain", "ac", about="b", resume=memory(30)).train(77, after=1.0).end()
    story.propose("loss", "a", about="c", resume=memory(70, 2)).train(104, after=1.0).end()
    story.propose("worker", "a", about="a", resume=memory(100, 3)).train(150, after=1.0)
    result = story.report()
    assert [row.kind for row in result.interruptions] == ["spot_interruption", "loss", "worker"]
    lost = sum(row.steps_lost or 0 for row in result.interruptions)
    assert result.job.steps_run - result.job.final_step == lost == 11
    assert result.job.final_step == 150


def test_the_final_step_counts_even_if_its_point_was_not_published() -> None:
    story = Story().propose("start", "ab").train(50, after=1.0)
    last = story.points.pop()
    job = Job("succeeded", last.at, final_step=50)
    result = report([], story.current, job, (), story.points, (), story.now)
    assert result.job.steps_run == 50


@pytest.mark.parametrize("told", [0, 35])
@pytest.mark.parametrize("resume", [memory(40, 2), Resume("store", 40, epoch=2)])
def test_steps_that_a_later_round_went_on_from_were_run_though_nobody_could_tell_of_them(
    told: int, resume: Resume
) -> None:
    story = Story().propose("start", "ab").train(30, after=1.0).end()
    story.propose("arrival", "abc", resume=memory(30)).train(40, after=1.0)
    assert story.current is not None
    story.current = replace(story.current, epoch=2)
    story.points = [point for point in story.points if point.step <= max(told, 30)]
    story.end()
    story.propose("loss", "d", about="abc", resume=resume).train(60, after=9.0)
    result = story.report()
    assert (result.job.final_step, result.job.steps_run) == (60, 60)
    assert {row.steps_lost for row in result.interruptions} == {0}


def test_the_bill_adds_up_hours_and_what_on_demand_would_have_cost() -> None:
    story = Story().propose("start", "ab").train(10, after=1.0)
    usage = (
        Usage("a", "g5.xlarge", True, story.now - 3600, None, 0.4, 1.0),
        Usage("b", "g5.xlarge", True, story.now - 3600, story.now - 1800, 0.4, 1.0),
    )
    result = story.report(usage=usage)
    assert result.node_hours == pytest.approx(1.5)
    assert result.cost_usd == pytest.approx(0.6)
    assert result.on_demand_usd == pytest.approx(1.5)


def test_a_pause_costs_what_was_billed_and_repeated_steps_the_nodes_that_repeat_them() -> None:
    story = Story().propose("start", "abcd").train(30, after=1.0)
    story.tell("notice", "b", kind="spot_interruption", at=story.now, seen_at=story.now)
    story.tell("loss", "c", at=story.now, seen_at=story.now).end()
    gone = {"b": story.now + 0.5, "c": story.now}
    story.propose("loss", "ad", about="c", resume=memory(20)).train(60, after=1.0 + STEP)
    bill = tuple(
        Usage(node, "t", True, 0.0, gone.get(node), 3600.0 * price, 3600.0)
        for node, price in (("a", 0.25), ("b", 4.0), ("c", 9.0), ("d", 0.5), ("waits", 1.0))
    )
    result = story.report(usage=bill)
    noticed, lost = sorted(result.interruptions, key=lambda row: row.kind, reverse=True)
    assert (noticed.kind, lost.kind) == ("spot_interruption", "loss")
    assert noticed.usd == 0.0
    assert lost.usd == pytest.approx(1.0 * 1.75 + 0.5 * 4.0 + 10 * STEP * 0.75, rel=0.01)
    assert lost.first_step_at is not None
    assert result.usd_per_hour == pytest.approx(3600.0 * 1.75)


def test_hours_without_any_instance_cost_nothing() -> None:
    story = Story().propose("start", "ab").train(30, after=1.0)
    story.tell("loss", "a", at=story.now, seen_at=story.now)
    story.tell("loss", "b", at=story.now, seen_at=story.now).end()
    gone, back = story.now, story.now + 7200.0
    story.propose("loss", "cd", about="ab", resume=Resume("store", 30, epoch=1))
    story.train(60, after=back + 5.0 - gone)
    ended = [Usage(node, "t", True, 0.0, gone, 3600.0, 7200.0) for node in "ab"]
    came = [Usage(node, "t", True, back, None, 3600.0, 7200.0) for node in "cd"]
    rows = story.report(usage=(*ended, *came)).interruptions
    assert max(row.pause_s or 0.0 for row in rows) > 7200.0
    assert sum(row.usd or 0.0 for row in rows) == pytest.approx(2 * 5.0, abs=2 * STEP + 0.01)


def test_before_the_first_step_there_is_nothing_to_report() -> None:
    result = report([], None, Job("pending", 0.0), (), (), (), 1.0)
    assert (result.job.steps_run, result.goodput, result.interruptions) == (0, 0.0, ())


PEER = "rank 0 lost a peer: RuntimeError: Connection reset by peer"


def failing(story: Story, node: str, round: int = 1, after: float = 0.0, **data: object) -> Story:
    """A failure is told on a node; with `lost_peer` unless it is a kill."""
    at = story.now + after
    kill = {"exit_code": -9, "lost_peer": False}
    own = {"exit_code": 1, "lost_peer": True} if not data else kill | data
    told = {"round": f"round-{round}", "rank": 0, "at": at, "seen_at": at, **own}
    return story.tell("failure", node, **told)


def test_a_neighbour_that_lost_its_peer_is_not_named_though_it_told_first() -> None:
    story = Story().propose("start", "abc").train(36, after=1.0)
    failing(failing(story, "a"), "b", after=0.3, exit_code=-9).end()
    story.propose("worker", "abc", about="a", resume=memory(30)).train(50, after=1.0)
    row = only(story.report())
    assert (row.kind, row.node) == ("worker", "b")


def test_failures_of_an_earlier_version_tell_of_a_peer_in_their_message() -> None:
    story = Story().propose("start", "abc").train(36, after=1.0)
    failing(story, "a")
    story.events[-1] = replace(
        story.events[-1], message=PEER, data={**story.events[-1].data, "lost_peer": None}
    )
    failing(story, "b", after=0.3, exit_code=-9).end()
    story.propose("worker", "abc", resume=memory(30)).train(50, after=1.0)
    assert only(story.report()).node == "b"


def test_workers_that_were_killed_and_nodes_that_were_lost_in_one_pause_are_all_named() -> None:
    story = Story().propose("start", "abcd").train(36, after=1.0)
    failing(failing(failing(story, "a"), "b", exit_code=-9), "c", exit_code=-9)
    story.tell("loss", "d", at=story.now + 2, seen_at=story.now + 2, source="lease").end()
    story.propose("loss", "abc", about="d", resume=memory(30)).train(50, after=1.0)
    rows = {row.node: (row.kind, row.steps_lost) for row in story.report().interruptions}
    assert rows == {"b": ("worker", 0), "c": ("worker", 0), "d": ("loss", 6)}


def test_a_node_that_was_lost_while_a_round_waited_for_it_has_a_row_though_it_came_back() -> None:
    story = Story().propose("start", "abc").train(36, after=1.0)
    failing(story, "a", exit_code=-9)
    at = story.now + 0.1
    story.tell("loss", "b", at=at, seen_at=at + 0.1, incarnation="b-incarnation").end()
    story.propose("worker", "abc", about="a", resume=memory(36)).train(60, after=3.0)
    rows = {row.node: (row.kind, row.at) for row in story.report().interruptions}
    assert {node: kind for node, (kind, _) in rows.items()} == {"a": "worker", "b": "loss"}
    again = story.now
    story.tell("loss", "b", at=again, seen_at=again + 0.1, incarnation="b-incarnation").end()
    story.propose("loss", "ac", about="b", resume=memory(60, 2)).train(90, after=1.0)
    later = [row for row in story.report().interruptions if row.at > rows["b"][1] + 1]
    assert [(row.kind, row.node, row.at) for row in later] == [("loss", "b", again)]


def test_a_node_that_is_lost_again_has_each_time_its_own_row() -> None:
    """A frozen agent comes back under a new lease, as the same incarnation."""
    story = Story().propose("start", "abc").train(36, after=1.0)
    lost = []
    for _ in range(3):
        story.tell("loss", "b", at=story.now, seen_at=story.now + 0.2, incarnation="b-incarnation")
        lost.append(story.now)
        step = story.points[-1].step
        story.end().propose("loss", "ac", about="b", resume=memory(step, len(story.records)))
        story.train(step + 5, after=1.0).end()
        story.propose("arrival", "abc", about="b", resume=memory(step + 5, len(story.records)))
        story.train(step + 300, after=1.0)
    assert [row.at for row in story.report().interruptions] == lost


def test_what_befalls_a_node_after_training_has_gone_on_explains_no_pause_before() -> None:
    """Its worker was killed, the others went on, and then it was warned and lost."""
    story = Story().propose("start", "abc").train(36, after=1.0)
    failing(story, "b", exit_code=-9).end()
    story.propose("worker", "ac", about="b", resume=memory(36)).train(60, after=0.3)
    now = story.now
    story.tell("notice", "b", kind="spot_interruption", at=now, seen_at=now)
    story.tell("loss", "b", at=now + 1, seen_at=now + 1, incarnation="b-incarnation")
    row = only(story.report())
    assert (row.kind, row.node) == ("worker", "b")


def test_a_node_that_answered_late_explains_a_pause_that_nothing_else_explains() -> None:
    def rows(*killed: str) -> list[tuple[str, str]]:
        story = Story().propose("start", "abc").train(36, after=1.0)
        for node in killed:
            failing(story, node, exit_code=-9)
        story.end().propose("loss", "ac", about="b", resume=memory(36))
        assert story.current is not None
        story.current = replace(story.current, missed=("b-incarnation",))
        story.train(60, after=0.3)
        return [(row.kind, row.node) for row in story.report().interruptions]

    assert rows() == [("loss", "b")]
    assert rows("a") == [("worker", "a")]


def test_if_only_peers_have_told_and_all_are_there_the_silent_one_is_named_or_nobody() -> None:
    def named(*told: str) -> str:
        story = Story().propose("start", "abc").train(36, after=1.0)
        for node in told:
            failing(story, node)
        story.end().propose("worker", "abc", resume=memory(30)).train(50, after=1.0)
        return only(story.report()).node

    assert named("a", "c") == "b"
    assert named("a") == ""


def test_a_stall_is_a_row_of_the_node_that_the_round_names() -> None:
    story = Story().propose("start", "abc").train(36, after=1.0)
    failing(failing(story, "a", exit_code=0), "b", after=0.1, exit_code=0).end()
    story.propose("stall", "abc", about="b", resume=memory(30)).train(50, after=9.0)
    row = only(story.report())
    assert (row.kind, row.node, row.steps_lost) == ("worker", "b", 6)


def test_a_pause_leaves_out_the_ordinary_step_of_its_time() -> None:
    story = Story().propose("start", "abc").train(36, after=1.0)
    failing(story, "b", exit_code=-9).end()
    story.propose("worker", "abc", about="b", resume=memory(36)).train(50, after=1.0)
    first = only(story.report())
    assert (first.step_s, first.pause_s) == pytest.approx((STEP, 1.0 - STEP))
    for step in range(51, 500):  # the job has become slower
        story.train(step, after=1.0)
    assert only(story.report()) == first
