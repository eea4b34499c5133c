"""A job that moves between regions in virtual time, under the decisions that a cluster makes."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from common.region_trips.compare import compare
from common.region_trips.moving import play
from common.region_trips.travel import Travel
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draws import drawn

from spotelastic.controller.model.regions import RegionPolicy
from spotelastic.model.job import Capacity
from spotelastic.replay.scenario import NodeTimings, Scenario
from spotelastic.replay.trace import Span, Trace

HOUR = 3600.0
LENGTH = 12 * HOUR
SCENARIO = Scenario(2, 4, automatic=True, machines=NodeTimings(spot_usd=0.3, on_demand_usd=1.0))
TRAVEL = Travel(RegionPolicy(2, 4))


def market(name: str, *hours: tuple[float, float], nodes: int = 4) -> Trace:
    """All nodes are there in these hours, and none otherwise."""
    spans = [
        Span(f"{name}{each}-{node}", start * HOUR, end * HOUR)
        for each, (start, end) in enumerate(hours)
        for node in range(nodes)
    ]
    return Trace(name, tuple(sorted(spans, key=lambda span: span.start)), LENGTH)


EAST, WEST = market("east", (0, 4), (9, math.inf)), market("west", (2, 10))
REGIONS = {"east": EAST, "west": WEST}


def test_a_job_goes_where_the_nodes_are_and_repeats_no_step() -> None:
    fared = play(REGIONS, SCENARIO, TRAVEL)
    assert [(move.left, move.region) for move in fared.moves] == [
        ("east", "west"),
        ("west", "east"),
    ]
    first, second = fared.moves
    assert 4 * HOUR < first.at < 4.4 * HOUR
    assert 10 * HOUR < second.at < 10.4 * HOUR
    assert fared.outcome.steps_lost == 0
    assert fared.useful_steps == fared.outcome.steps > 0.95 * 11.4 * HOUR
    assert fared.outcome.goodput > 0.93
    assert sum(fared.hours_in.values()) == pytest.approx(12, abs=0.3)


def test_nothing_runs_in_two_regions_at_once() -> None:
    fared = play(REGIONS, SCENARIO, TRAVEL)
    spans = fared.outcome.stretches
    assert all(before.end <= after.start for before, after in pairwise(spans))
    assert all(before.last >= after.first for before, after in pairwise(spans))
    for move in fared.moves:
        assert not any(span.start < move.arrived and span.end > move.arrived for span in spans)


def test_a_job_that_trains_leaves_at_an_agreed_step_for_more_nodes() -> None:
    few = {"east": market("east", (0, math.inf), nodes=2), "west": market("west", (3, math.inf))}
    fared = play(few, SCENARIO, TRAVEL)
    [move] = fared.moves
    assert 3 * HOUR < move.at < 3.5 * HOUR
    assert "4 nodes against 2" in move.reason
    assert fared.outcome.steps_lost == 0
    stays = play(few, SCENARIO, replace(TRAVEL, policy=RegionPolicy(2, 4, prefer_capacity=False)))
    assert stays.moves == ()


def test_without_scores_a_job_finds_out_by_going_there() -> None:
    fared = play(REGIONS, SCENARIO, replace(TRAVEL, scores=False))
    assert [move.region for move in fared.moves] == ["west", "east"]
    assert 4.3 * HOUR < fared.moves[0].at < 4.5 * HOUR, "its patience is what it has"


def test_a_move_is_paid_for() -> None:
    patient = replace(TRAVEL, policy=RegionPolicy(2, 4, prefer_capacity=False))
    free = play(REGIONS, SCENARIO, replace(patient, copy_usd=0.0))
    dear = play(REGIONS, SCENARIO, patient)
    copies = len(dear.moves) * patient.price(SCENARIO)
    assert copies > 0
    assert dear.outcome.bill.usd - free.outcome.bill.usd == pytest.approx(copies, rel=0.01)


def test_a_limit_holds_over_all_regions() -> None:
    limited = replace(SCENARIO, capacity=Capacity(max_cost=6.0))
    fared = play(REGIONS, limited, TRAVEL)
    assert 5.0 < fared.outcome.bill.usd <= 6.5
    assert len(fared.moves) == 1


@settings(max_examples=drawn(6), deadline=None)
@given(st.floats(0.1, 0.9), st.floats(0.1, 0.9))
def test_every_policy_pays_what_the_region_costs_in_which_its_nodes_are(
    east: float, west: float
) -> None:
    """Fail-over once paid the cheapest region's price wherever it was."""
    # Never at once: so nobody's choice depends on a price.
    apart = {"east": market("east", (0, 4), (9, math.inf)), "west": market("west", (4.5, 8.5))}

    def paid(policy: str, **usd: float) -> tuple[float, float]:
        there = replace(TRAVEL, spot_usd=usd, copy_usd=0.0)
        (its,) = compare(apart, SCENARIO, there, (policy,), None).outcomes
        return its.outcome.bill.usd, its.outcome.bill.hours

    for policy in ("spotelastic", "single", "fail-over"):
        (one, hours), (other, _) = (
            paid(policy, east=east, west=west),
            paid(policy, east=west, west=east),
        )
        assert one + other == pytest.approx((east + west) * hours), policy
        if policy == "single":
            assert one == pytest.approx(east * hours)
        else:
            assert one / hours == pytest.approx((7 * east + 4 * west) / 11, rel=0.05), policy


def test_every_policy_is_beside_the_same_bound() -> None:
    compared = compare(REGIONS, SCENARIO, TRAVEL, ("spotelastic", "single", "fail-over"), None)
    ours, single, failing = compared.outcomes
    assert single.outcome.policy in ("best single region (west)", "best single region (east)")
    assert failing.outcome.policy.startswith("fail-over, 4 nodes")
    assert single.outcome.goodput < 0.7 < ours.outcome.goodput
    assert compared.bound.bound.seconds == pytest.approx(12 * HOUR, rel=0.02)
    assert all(each.steps_per_hour <= compared.bound.steps_per_hour for each in compared.outcomes)
