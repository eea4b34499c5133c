"""A job beside a zone that takes nodes soon after their launch, under real decisions."""

import math
import sys

from common.replayed.zones import ZonesOutcome, play_in_zones

from spotelastic.controller.model.observation import ControllerPolicy
from spotelastic.controller.model.short_lives import SHORT_LIFE
from spotelastic.replay.scenario import NodeTimings, Scenario
from spotelastic.replay.trace import Span, Trace

LENGTH, NODES, LIFE, NOTICE = 5400.0, 3, 240.0, 120.0
SCENARIO = Scenario(1, NODES, notice=NOTICE, machines=NodeTimings(spot_usd=0.3, on_demand_usd=1.0))


def market(name: str, life: float) -> Trace:
    """Always has nodes, and warns each of them at that age."""
    starts = [0.0] if life == math.inf else [n * life for n in range(int(LENGTH / life))]
    spans = (
        Span(f"{at}-{n}", at + n, at + n + life + NOTICE) for at in starts for n in range(NODES)
    )
    return Trace(name, tuple(spans), LENGTH)


def played(other: Trace, policy: ControllerPolicy) -> ZonesOutcome:
    """A job that begins in zone a, which takes its nodes soon."""
    return play_in_zones({"a": market("a", LIFE), "b": other}, SCENARIO, policy)


def test_a_job_leaves_a_zone_that_takes_its_nodes_soon_and_makes_more_steps() -> None:
    good = market("b", math.inf)
    judged = played(good, ControllerPolicy())
    not_judged = played(good, ControllerPolicy(short_lives=sys.maxsize))
    first, left = (event for event in judged.events if event.data.get("zone") in ("a", "b")
                   and event.kind == "zone" and "go to" in event.message)  # fmt: skip
    assert (first.data["zone"], left.data["zone"], left.data["left"]) == ("a", "b", "a")
    assert left.data["times"] == ControllerPolicy().short_lives
    assert 0 < left.data["lived"] < LIFE + 10
    assert left.at < 5 * LIFE
    ours, without = (each.outcome.useful_node_hours for each in (judged, not_judged))
    assert ours > 1.2 * without


def test_a_job_stays_where_the_only_nodes_are_however_short_they_live() -> None:
    empty = Trace("b", (Span("once", 0.0, 60.0),), LENGTH)
    judged = played(empty, ControllerPolicy())
    not_judged = played(empty, ControllerPolicy(short_lives=sys.maxsize))
    assert any(event.kind == SHORT_LIFE for event in judged.events)
    ours, without = (each.outcome.useful_node_hours for each in (judged, not_judged))
    assert ours > 0.95 * without > 0
