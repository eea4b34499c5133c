"""Intervals as a pure function: near the optimum, and moved the right way by each cause."""

import math
import random
from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise

import pytest
from spotelastic_checkpoints.types import Schedule

from spotelastic.model.interval import Interval
from spotelastic.model.job import Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.progress import Progress
from spotelastic.model.round import Member, Past, Round
from spotelastic.rendezvous import intervals
from spotelastic.rendezvous.decision import Moment
from spotelastic.rendezvous.intervals import Costs, Rates, optimum, rates, schedule
from spotelastic.rendezvous.view import LiveNode, RunState

SETTINGS = Settings(1, 8)
HOUR = 3600.0
CASES = [random.Random(seed) for seed in range(60)]


def waste(every: float, cost: float, between: float) -> float:
    """Daly's expected time, per second of work, in saves and in work that is done again."""
    return (between / every) * math.expm1((every + cost) / between)


@pytest.mark.parametrize("case", CASES)
def test_no_other_interval_is_much_better(case: random.Random) -> None:
    between = 10 ** case.uniform(1, 6)
    cost = between * 10 ** case.uniform(-6, 0)
    best = optimum(cost, between)
    others = (waste(best * factor, cost, between) for factor in (0.5, 0.7, 0.9, 1.1, 1.4, 2.0))
    assert waste(best, cost, between) <= 1.01 * min(others)


def costs(case: random.Random) -> Costs:
    return Costs(10 ** case.uniform(-3, 1.5), 10 ** case.uniform(-4, 1), 10 ** case.uniform(-1, 3))


def past(case: random.Random) -> Past:
    return Past(10 ** case.uniform(0, 7), case.randrange(20), case.randrange(20))


@pytest.mark.parametrize("case", CASES)
def test_intervals_keep_within_their_limits(case: random.Random) -> None:
    of = costs(case)
    nodes = [case.random() < 0.5 for _ in range(case.randint(1, 64))]
    often = rates(past(case), nodes, case.randint(0, len(nodes)), whole=case.random() < 0.5)
    made = schedule(SETTINGS, of, often, intervals.START)

    assert made.checkpoint_every % made.snapshot_every == 0, "a commit is a snapshot"
    assert 1 <= made.snapshot_every <= made.checkpoint_every
    # Steps are whole, and said in two digits.
    least, most = (limit / of.step_time for limit in intervals.SNAPSHOTS)
    assert 0.95 * least - 0.5 <= made.snapshot_every <= 1.05 * most + 1
    between_uploads = 2 * of.commit_time / of.step_time
    assert made.checkpoint_every >= 0.95 * between_uploads - 0.5, "with a pause between them"


@pytest.mark.parametrize("case", CASES)
def test_more_setbacks_never_make_an_interval_longer(case: random.Random) -> None:
    of, known, nodes = costs(case), past(case), [True] * case.randint(1, 16)
    whole = case.random() < 0.5
    worse = [
        (known, 0),
        (replace(known, failures=known.failures + 3), 0),
        (replace(known, failures=known.failures + 3, losses=known.losses + 5), 0),
        (replace(known, failures=known.failures + 3, losses=known.losses + 5), 1),
    ]
    made = [
        schedule(
            SETTINGS,
            of,
            rates(each, nodes, at_risk, whole=whole),
            intervals.START,
        )
        for each, at_risk in worse
    ]
    for before, after in pairwise(made):
        assert after.snapshot_every <= before.snapshot_every
        # In whole snapshots, the nearest number of them: either may be half of one off.
        half_of_each = (before.snapshot_every + after.snapshot_every) / 2
        assert after.checkpoint_every <= before.checkpoint_every + half_of_each


@pytest.mark.parametrize("case", CASES)
def test_a_dearer_save_never_makes_its_interval_shorter(case: random.Random) -> None:
    of = costs(case)
    often = Rates(10 ** case.uniform(-7, -1), 10 ** case.uniform(-7, -1))
    made = [
        schedule(SETTINGS, replace(of, stall=of.stall * factor), often, intervals.START)
        for factor in (1, 3, 30)
    ]
    assert all(a.snapshot_every <= b.snapshot_every for a, b in pairwise(made))


def test_a_group_is_set_back_more_often_than_a_node_and_spot_more_often_than_others() -> None:
    one = rates(Past(), [True], 0, whole=False)
    eight = rates(Past(), [True] * 8, 0, whole=False)
    assert eight.to_snapshot == pytest.approx(8 * one.to_snapshot)
    assert eight.to_commit == pytest.approx(8 * one.to_commit)
    assert rates(Past(), [False], 0, whole=False).to_snapshot < one.to_snapshot
    assert one.to_snapshot == pytest.approx(1 / intervals.SPOT_NODE), "what is assumed of one"


def test_replicated_state_goes_back_to_a_commit_less_often() -> None:
    nodes = [True] * 8
    replicated = rates(Past(), nodes, 0, whole=True)
    sharded = rates(Past(), nodes, 0, whole=False)
    assert replicated.to_commit < sharded.to_commit
    assert replicated.to_snapshot == sharded.to_snapshot


def test_what_is_seen_soon_outweighs_what_was_assumed() -> None:
    calm = rates(Past(500 * HOUR), [True], 0, whole=False)
    stormy = rates(Past(2 * HOUR, losses=4), [True], 0, whole=False)
    assert calm.to_snapshot < 1 / intervals.SPOT_NODE / 10
    assert stormy.to_snapshot == pytest.approx(2 / HOUR, rel=0.6)


def test_only_what_is_not_measured_stays_as_it_is() -> None:
    often = Rates(1e-4, 1e-4)
    current = Schedule(11, 44)
    assert schedule(SETTINGS, Costs(), often, current) == current
    measured = schedule(SETTINGS, Costs(step_time=0.1, stall=0.1), often, current)
    assert measured.snapshot_every != 11
    assert measured.checkpoint_every == measured.snapshot_every, "44, in whole snapshots"


def test_dear_saves_are_as_rare_as_setbacks_allow() -> None:
    """Ten seconds every five minutes would cost more than three percent of a calm job."""
    calm = Rates(1 / (40 * HOUR), 1 / (40 * HOUR))
    made = schedule(SETTINGS, Costs(1.0, 10.0, 60.0), calm, intervals.START)
    assert made.snapshot_every == pytest.approx(optimum(10.0, 40 * HOUR), rel=0.05)
    calmer = schedule(SETTINGS, Costs(1.0, 10.0, 60.0), Rates(1e-9, 1e-9), intervals.START)
    assert calmer == Schedule(1800, 1800)


def test_commits_are_the_nearest_number_of_snapshots_but_with_a_pause_between_uploads() -> None:
    often = Rates(1e-4, 1e-4)
    alike = schedule(SETTINGS, Costs(1.0, 1.0, 2.0), often, intervals.START)
    assert alike.checkpoint_every == alike.snapshot_every, "a little more is not one more"
    slow = schedule(SETTINGS, Costs(1.0, 1.0, 80.0), often, intervals.START)
    assert 2 * 80 <= slow.checkpoint_every == 2 * slow.snapshot_every


# -- in a round ----------------------------------------------------------------------------------

NAMES = ("a", "b", "c", "d")
ROUND = Round(
    1,
    "first",
    "started",
    tuple(Member(name, name, slot, "", "z", 1) for slot, name in enumerate(NAMES)),
    "start",
    "",
    schedule=Schedule(100, 200),
)


def moment(now: float, *, there: Collection[str] = NAMES, at_risk: str = "") -> Moment:
    nodes = {
        name: LiveNode(Node(name, name, "", "z", Fingerprint()), rank, 0.0)
        for rank, name in enumerate(there)
    }
    told = {
        name: Progress(
            name, 1, 99, now, step_time=1.0, stall=1.0, commit_time=0.5, at_risk=name in at_risk
        )
        for name in NAMES
    }  # fmt: skip
    return Moment(RunState(settings=SETTINGS, nodes=nodes, progress=told), SETTINGS, now, str)


def test_a_node_that_leaves_takes_its_risk_along() -> None:
    past, members = Past(4 * HOUR), ROUND.members
    calm = intervals.following(moment(HOUR), ROUND, members, past)
    left = intervals.following(moment(HOUR, there="abc", at_risk="d"), ROUND, members[:3], past)
    stays = intervals.following(moment(HOUR, at_risk="d"), ROUND, members, past)
    assert left.snapshot_every >= calm.snapshot_every > 2 * stays.snapshot_every


def test_shards_of_which_each_node_keeps_a_replica_are_committed_less_often() -> None:
    def every(*keepers: str) -> int:
        at = moment(HOUR)
        told = {
            name: replace(each, replica=90 * (name in keepers))
            for name, each in at.seen.progress.items()
        }
        seen = replace(at.seen, progress=told)
        made = intervals.following(replace(at, seen=seen), ROUND, ROUND.members, Past(4 * HOUR))
        return made.checkpoint_every

    assert every(*NAMES) > every(*NAMES[1:]) == every()


@pytest.mark.parametrize("case", CASES)
def test_a_replica_is_whole_before_the_next_snapshot(case: random.Random) -> None:
    of = replace(costs(case), replica_time=10 ** case.uniform(-2, 3.5))
    often = rates(past(case), [True] * 4, 0, whole=True)
    made = schedule(SETTINGS, of, often, intervals.START)
    assert made.snapshot_every * of.step_time >= of.replica_time
    without = schedule(SETTINGS, replace(of, replica_time=0.0), often, intervals.START)
    assert made.snapshot_every >= without.snapshot_every
    asked = replace(SETTINGS, snapshot_every=Interval(steps=3))
    assert schedule(asked, of, often, intervals.START).snapshot_every == 3, "as the user says"


def test_where_nobody_is_left_intervals_stay() -> None:
    assert intervals.following(moment(HOUR, there=""), ROUND, (), Past()) == ROUND.schedule


def test_a_calm_round_changes_intervals_a_few_times_not_back_and_forth() -> None:
    """The state is in parts, so that both intervals are about the same."""
    held = [ROUND]
    for now in range(0, int(20 * HOUR), 10):
        better = intervals.change(moment(float(now)), held[-1])
        if better is not None:
            held.append(replace(ROUND, schedule=better))
    made = [each.schedule for each in held[1:]]
    assert 2 <= len(made) <= 6
    for before, after in pairwise(made):
        assert after.snapshot_every >= before.snapshot_every
        assert after.checkpoint_every >= before.checkpoint_every


# -- what people say -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("snapshot", "checkpoint", "expected"),
    [
        ("20", "500", Schedule(20, 500)),
        ("0", "500", Schedule(0, 500)),
        ("20", "0", Schedule(20, 0)),
        ("30s", "10m", Schedule(60, 1200)),
        ("5", "0.1s", Schedule(5, 1)),
        ("auto", "3", Schedule(3, 3)),
    ],
)
def test_what_the_user_says_is_done(snapshot: str, checkpoint: str, expected: Schedule) -> None:
    settings = replace(
        SETTINGS,
        snapshot_every=Interval.parse(snapshot),
        checkpoint_every=Interval.parse(checkpoint),
    )
    of = Costs(step_time=0.5, stall=0.01, commit_time=60.0)
    assert schedule(settings, of, Rates(1e-3, 1e-3), intervals.START) == expected


@pytest.mark.parametrize("text", ["", "ten", "-5", "10 m", "5d", "1e3", "0s", "0.0m", "10m5s"])
def test_an_interval_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="steps"):
        Interval.parse(text)


@pytest.mark.parametrize("text", ["auto", "500", "0", "600s"])
def test_an_interval_is_told_as_it_was_said(text: str) -> None:
    assert str(Interval.parse(text)) == text
