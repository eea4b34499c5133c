"""Jobs on spot traces in virtual time, under the decisions that a cluster makes."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from common.replayed import baselines
from common.replayed.policies import compare
from hypothesis import given, settings
from hypothesis import strategies as st
from spotelastic_checkpoints.types import Schedule
from support.draws import drawn

from spotelastic.model.job import Capacity
from spotelastic.model.round import Member, Round
from spotelastic.replay.outcome import ReplayOutcome, allowed_anywhere
from spotelastic.replay.play import play
from spotelastic.replay.scenario import NodeTimings, Scenario
from spotelastic.replay.trace import Span, Trace
from spotelastic.replay.training import Training

SCENARIO = Scenario(
    2, 4, state=10e9, schedule=Schedule(20, 100), machines=NodeTimings(spot_usd=1.0)
)


def trace(*spans: tuple[float, float], length: float = 3000.0) -> Trace:
    made = (Span(f"n{index}", *span) for index, span in enumerate(spans))
    return Trace("made", tuple(sorted(made, key=lambda span: span.start)), length)


def steady(count: int) -> list[tuple[float, float]]:
    return [(0.0, math.inf)] * count


def test_an_undisturbed_job_trains_all_the_time_that_it_has() -> None:
    outcome = play(trace(*steady(4)), replace(SCENARIO, schedule=Schedule(500, 500)))
    assert outcome.starts == 1
    assert outcome.steps_lost == 0
    assert outcome.goodput > 0.99
    assert outcome.bill.usd == pytest.approx(4 * 3000 / 3600, rel=0.001)


def test_a_node_with_notice_costs_no_step_and_one_without_those_since_the_last_snapshot() -> None:
    market = trace(*steady(3), (0.0, 1500.0))
    warned = play(market, SCENARIO)
    assert [stretch.nodes for stretch in warned.stretches] == [4, 3]
    assert warned.steps_lost == 0
    unwarned = play(market, replace(SCENARIO, notice=0.0))
    assert [stretch.nodes for stretch in unwarned.stretches] == [4, 3]
    assert 0 < unwarned.steps_lost < 20
    sharded = play(market, replace(SCENARIO, notice=0.0, sharded=True))
    assert 20 <= sharded.steps_lost < 200


def test_a_replacement_is_launched_at_the_notice_where_the_market_has_one() -> None:
    market = trace(*steady(4), (0.0, 1500.0))
    outcome = play(market, SCENARIO)
    assert outcome.most_nodes == 4
    assert [stretch.nodes for stretch in outcome.stretches] in ([4], [4, 3, 4])
    one_goes = play(trace((0.0, 1500.0), *steady(4)), SCENARIO)
    assert [stretch.nodes for stretch in one_goes.stretches] == [4, 3, 4]
    came = one_goes.stretches[2].start
    assert came < 1500.0, "the replacement trains before the noticed node is gone"


def test_with_fewer_than_min_nothing_trains_and_all_resume_from_the_last_commit() -> None:
    market = trace((0.0, 1000.0), (0.0, 1100.0), (2000.0, math.inf), (2000.0, math.inf))
    outcome = play(market, replace(SCENARIO, notice=0.0))
    first, second = outcome.stretches
    assert first.end <= 1000.0
    assert second.start >= 2000.0
    assert second.first % 100 == 0
    assert 0 < first.last - second.first < 200


def test_a_noticed_node_trains_on_while_the_survivors_would_be_too_few() -> None:
    market = trace((0.0, math.inf), (0.0, 1000.0))
    outcome = play(market, SCENARIO)
    (only,) = outcome.stretches
    assert only.end > 1000.0 - 10.0
    gone_at_once = play(trace(*steady(2), (0.0, 1000.0)), SCENARIO)
    assert gone_at_once.stretches[0].end < 1000.0 - 100.0


@pytest.mark.parametrize(("step", "state"), [(0.2, 1e9), (1.0, 10e9), (3.0, 40e9)])
def test_a_noticed_node_that_trains_on_leaves_in_time_for_its_last_save(
    step: float, state: float
) -> None:
    """However long steps and copies take: what is kept for the save is what was measured."""
    market = trace((0.0, math.inf), (0.0, 1000.0), (2000.0, math.inf))
    slow = replace(SCENARIO, step=step, state=state, schedule=Schedule(5000, 5000))
    outcome = play(market, slow)
    assert len(outcome.stretches) == 2
    assert outcome.steps_lost == 0


def test_nodes_beyond_max_are_not_rented() -> None:
    outcome = play(trace(*steady(9)), SCENARIO)
    assert outcome.most_nodes == 4
    assert outcome.bill.hours == pytest.approx(4 * 3000 / 3600, rel=0.001)


def test_on_demand_nodes_fill_up_to_min_after_the_patience_and_go_when_spot_is_back() -> None:
    market = trace(
        (0.0, 1000.0), (0.0, 1100.0), (3000.0, math.inf), (3500.0, math.inf), (4000.0, math.inf),
        (4000.0, math.inf), length=6000.0,
    )  # fmt: skip
    waits = play(market, SCENARIO)
    assert not any(1200.0 < s.start < 3000.0 for s in waits.stretches)
    prices = replace(SCENARIO.machines, on_demand_usd=3.0)
    bought = Capacity("fallback", spot_patience=300.0)
    filled = play(market, replace(SCENARIO, machines=prices, capacity=bought))
    second = filled.stretches[1]
    patient = filled.stretches[0].end + 300.0 + SCENARIO.machines.boot
    assert patient <= second.start < patient + 60.0
    assert [stretch.nodes for stretch in filled.stretches][-1] == filled.most_nodes == 4
    assert 0 < filled.bill.on_demand_hours < 2 * 3.0 / 3
    spot_only = replace(filled.bill, usd=filled.bill.spot_hours, on_demand_hours=0.0)
    assert filled.bill.usd == pytest.approx(spot_only.usd + 3.0 * filled.bill.on_demand_hours)


def test_a_job_with_a_limit_ends_before_it_costs_more() -> None:
    whole = play(trace(*steady(4)), SCENARIO)
    limited = play(trace(*steady(4)), replace(SCENARIO, capacity=Capacity(max_cost=2.0)))
    assert limited.bill.usd <= 2.0 < whole.bill.usd
    assert limited.bill.usd > 1.7
    assert limited.stretches[-1].end < whole.stretches[-1].end


# -- the others ----------------------------------------------------------------------------------


def test_torchrun_loses_what_was_not_committed_at_every_change() -> None:
    outcome = baselines.torchrun(trace(*steady(2), (0.0, 1500.0), (2000.0, math.inf)), SCENARIO)
    assert [stretch.nodes for stretch in outcome.stretches] == [3, 2, 3]
    before, between, after = outcome.stretches
    assert between.start >= before.end + baselines.AFTER_LOSS
    assert after.start >= between.end + baselines.AFTER_ARRIVAL
    assert between.first % 100 == after.first % 100 == 0
    assert outcome.steps_lost == before.last - between.first + between.last - after.first


def test_a_full_restart_waits_until_all_are_there_and_takes_the_size_that_does_best() -> None:
    market = trace(*steady(2), (0.0, 1000.0), (2400.0, math.inf))
    two = baselines.full_restart(market, SCENARIO)
    assert two.policy == "full restart, 2 nodes"
    assert two.starts == 1
    three = baselines.full_restart(market, replace(SCENARIO, min_nodes=3))
    assert three.policy == "full restart, 3 nodes"
    assert three.stretches[1].start > 2400.0 + SCENARIO.machines.boot
    assert three.bill.hours == pytest.approx(3 * (1000 + 600) / 3600)


def test_without_a_schedule_the_product_chooses_its_own_as_it_goes() -> None:
    calm, stormy = trace(*steady(4)), trace(*steady(2), *((0.0, 400.0 * n) for n in range(1, 6)))
    chooses = replace(SCENARIO, automatic=True, max_nodes=8, notice=0.0)
    in_the_end = play(calm, chooses).schedule
    assert in_the_end.snapshot_every > 50, "10 steps were only assumed"
    assert in_the_end.checkpoint_every % in_the_end.snapshot_every == 0
    assert play(stormy, chooses).schedule.snapshot_every < in_the_end.snapshot_every
    seldom = replace(chooses, state=100e9)
    assert play(calm, seldom).schedule.snapshot_every > in_the_end.snapshot_every


def test_commits_follow_the_intervals_that_the_product_chooses() -> None:
    """All nodes vanish long after the intervals have changed within their only round."""
    market = trace(*([(0.0, 1500.0)] * 2), *([(2000.0, math.inf)] * 2))
    outcome = play(market, replace(SCENARIO, automatic=True, notice=0.0))
    first, second = outcome.stretches
    assert second.first > 50
    assert second.first % 50 != 0, "neither the intervals that were assumed"
    assert 0 < first.last - second.first <= 1500 / 2


def test_what_was_sealed_by_agreement_stays_sealed_under_other_intervals() -> None:
    member = Member("a", "a", 0, "", "z", 1)
    round_ = Round(1, "r", "started", (member,), "start", "", schedule=Schedule(10, 50))
    training = Training(round_, replace(SCENARIO, state=0.0), 100.0)
    assert training.sealed(127.5) == 20
    held = training.hold(33)
    assert training.step(held + 5.0) == training.sealed(held + 5.0) == 33
    training.release(200.0, Schedule(100, 100))
    assert training.step(203.5) == 36
    assert training.sealed(203.5) == 33
    assert training.sealed(270.5) == 100
    assert training.mean_step == SCENARIO.step


def test_each_policy_saves_as_often_as_its_own_losses_ask_for() -> None:
    market = trace(*steady(3), (0.0, 900.0), (0.0, 1800.0), (1200.0, math.inf))
    ours, theirs, all_or_nothing = compare(
        market, SCENARIO, ("spotelastic", "torchrun", "full-restart"), None
    )
    assert ours.schedule.snapshot_every > all_or_nothing.schedule.snapshot_every
    assert all_or_nothing.schedule.snapshot_every > theirs.schedule.snapshot_every
    (told,) = compare(market, SCENARIO, ("spotelastic",), Schedule(7, 70))
    assert told.schedule == Schedule(7, 70)


# -- what always holds ---------------------------------------------------------------------------

spans = st.tuples(
    st.integers(0, 40).map(lambda minute: minute * 60.0),
    st.integers(1, 40).map(lambda minutes: minutes * 60.0) | st.just(math.inf),
).map(lambda pair: (pair[0], pair[0] + pair[1]))
markets = st.lists(spans, min_size=1, max_size=12).map(lambda made: trace(*made, length=3600.0))
scenarios = st.builds(
    lambda low, more, notice, sharded: replace(
        SCENARIO, min_nodes=low, max_nodes=low + more, notice=notice, sharded=sharded
    ),
    st.integers(1, 3),
    st.integers(0, 3),
    st.sampled_from([0.0, 30.0, 120.0]),
    st.booleans(),
)


def holds(outcome: ReplayOutcome, market: Trace, scenario: Scenario) -> None:
    for stretch in outcome.stretches:
        assert scenario.min_nodes <= stretch.nodes <= scenario.max_nodes
        assert 0 <= stretch.start <= stretch.end <= market.length
        assert stretch.first <= stretch.last
    for one, other in pairwise(outcome.stretches):
        assert one.end <= other.start + 1e-6
        assert other.first <= max(stretch.last for stretch in outcome.stretches)
    most = allowed_anywhere((market,), replace(scenario, notice=0.0))
    assert outcome.useful_node_hours * 3600 <= most.node_seconds


@settings(max_examples=drawn(60), deadline=None)
@given(markets, scenarios)
def test_any_trace_is_played_within_min_and_max_and_counts_no_step_twice(
    market: Trace, scenario: Scenario
) -> None:
    chooses = replace(scenario, automatic=True)
    for policy, of in ((play, scenario), (play, chooses), (baselines.torchrun, scenario)):
        holds(policy(market, of), market, of)
    assert play(market, chooses) == play(market, chooses)


@settings(max_examples=drawn(40), deadline=None)
@given(markets, scenarios)
def test_notices_are_worth_steps(market: Trace, scenario: Scenario) -> None:
    """Never a repeated step while all that leaves is announced in time and enough are left."""
    safe = Trace("safe", (*market.spans, *(Span(f"s{n}", 0.0, math.inf) for n in range(3))), 3600.0)
    assert play(safe, replace(scenario, max_nodes=20, notice=120.0)).steps_lost == 0
