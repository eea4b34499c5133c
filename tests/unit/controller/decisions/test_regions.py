"""When a job moves to another region, and when it stays."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clusters.region_markets import drawn, play

from spotelastic.controller.decisions import regions
from spotelastic.controller.model.regions import (
    RegionDecision,
    RegionHistory,
    RegionOffer,
    RegionPolicy,
)
from spotelastic.model.counting import DAY, HOUR

POLICY = RegionPolicy(4, 8, prefer_capacity=False)
EAGER = replace(POLICY, prefer_capacity=True)
HOME = RegionHistory("a", since=0.0, looked_at=0.0)


def offer(region: str, nodes: int | None, usd: float = 0.3) -> RegionOffer:
    return RegionOffer(region, nodes, usd, move_seconds=300.0, move_usd=0.2)


def after(
    minutes: int,
    offers: Sequence[RegionOffer],
    policy: RegionPolicy = POLICY,
    history: RegionHistory = HOME,
) -> RegionDecision:
    """The decision when the regions have been so for some time."""
    begun = history.looked_at
    for minute in range(minutes + 1):
        now = begun + minute * 60.0
        history = regions.look(history, tuple(offers), now, policy)
    return regions.decide(history, tuple(offers), now, policy)


def test_nodes_above_max_are_worth_nothing() -> None:
    assert regions.worth(offer("a", 80), POLICY) == regions.worth(offer("a", 8), POLICY) > 0
    assert regions.worth(offer("a", 3), POLICY) == 0.0


def test_a_job_without_enough_nodes_moves_when_the_patience_is_over() -> None:
    offers = (offer("a", 3), offer("b", 8))
    assert after(19, offers) == RegionDecision("", "stays in a: fewer than 4 nodes for 19 min")
    moves = after(20, offers)
    assert moves.to == "b"
    assert moves.reason == "moves to b: a has had fewer than 4 nodes for 20 min"


def test_nobody_moves_where_no_region_has_enough() -> None:
    decision = after(600, (offer("a", 0), offer("b", 3)), EAGER)
    assert decision.to == ""
    assert decision.reason.endswith("for 600 min, and no other region has more")


def test_patience_begins_anew_when_there_have_been_enough_nodes() -> None:
    dry, wet = (offer("a", 0), offer("b", 8)), (offer("a", 4), offer("b", 8))
    history = regions.look(HOME, dry, 0.0, POLICY)
    history = regions.look(history, wet, 19 * 60.0, POLICY)
    assert after(19, dry, history=history).to == ""
    assert after(20, dry, history=history).to == "b"


def test_a_job_that_trains_stays_unless_capacity_is_preferred() -> None:
    offers = (offer("a", 4), offer("b", 8))
    assert after(600, offers).to == ""
    assert after(600, offers, EAGER).to == "b"


def test_what_has_been_missed_must_be_worth_the_move() -> None:
    """8 nodes against 4 for ten minutes are what five minutes without 8 nodes cost."""
    offers = (offer("a", 4), offer("b", 8))
    assert after(10, offers, EAGER).to == ""
    moves = after(15, offers, EAGER)
    assert moves.to == "b"
    assert "8 nodes against 4" in moves.reason


def test_a_region_that_is_better_for_a_moment_moves_nobody() -> None:
    history, policy = HOME, EAGER
    for minute in range(600):
        better = minute % 10 < 4
        offers = (offer("a", 4 if better else 8), offer("b", 8 if better else 4))
        history = regions.look(history, offers, minute * 60.0, policy)
        decision = regions.decide(history, offers, minute * 60.0, policy)
        assert decision.to == ""


def test_a_cheaper_region_is_worth_a_move_once_the_price_has_paid_for_it() -> None:
    dear, cheap = offer("a", 8, usd=0.9), offer("b", 8, usd=0.3)
    assert after(5, (dear, cheap), EAGER).to == ""
    assert after(30, (dear, cheap), EAGER).to == "b"


def test_of_several_the_best_is_chosen_and_among_equals_the_cheapest() -> None:
    offers = (offer("a", 0), offer("b", 6), offer("c", 8), offer("d", 8, usd=0.2))
    assert after(20, offers).to == "d"


def test_a_region_of_which_nothing_is_known_is_tried_when_none_is_known_to_have_nodes() -> None:
    unknown = (offer("a", 0), offer("b", None), offer("c", None))
    assert after(19, unknown).to == ""
    assert after(20, unknown).to == "b"
    known = (*unknown, offer("d", 5))
    assert after(20, known).to == "d"
    trains = (offer("a", 4), offer("b", None))
    assert after(600, trains, EAGER).to == ""
    disappointed = replace(HOME, caution={"b": 2})
    assert after(20, unknown, history=disappointed).to == "c"


def test_a_region_that_has_disappointed_is_left_alone_for_longer_and_longer() -> None:
    history = replace(HOME, home="b")
    for expected in (2, 4, 8, 8):
        assert history.home == "b"
        left = regions.arrive(history, "a", 100.0, 200.0, POLICY)
        assert left.caution["b"] == expected
        dry = (offer("a", 0), offer("b", None))
        assert after(20 * expected - 1, dry, history=left).to == ""
        assert after(20 * expected, dry, history=left).to == "b"
        history = replace(left, home="b", trained=0.0)
    stayed = replace(history, trained=POLICY.short_stay)
    assert regions.arrive(stayed, "a", 100.0, 200.0, POLICY).caution["b"] == 4


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 3), st.booleans())
def test_a_job_that_stands_still_watches_free_nodes_no_longer_for_having_been_there(
    caution: int, other: int, here: int, eager: bool
) -> None:
    """At most for as long as a move costs: an hour was watched, at eight times the price."""
    policy, offers = replace(POLICY, prefer_capacity=eager), (offer("a", here), offer("b", 8))
    cautious = replace(HOME, caution={"a": other, "b": caution})
    for minutes in (5, 6, 7, 8, 19, 20):
        moves = after(minutes, offers, policy, cautious).to
        assert moves == after(minutes, offers, policy).to
        assert bool(moves) is (minutes >= (8 if eager else 20))


def test_a_job_that_trains_is_cautious() -> None:
    offers, cautious = (offer("a", 4), offer("b", 8)), replace(HOME, caution={"b": 2})
    assert after(15, offers, EAGER).to == "b"
    assert after(28, offers, EAGER, cautious).to == ""
    assert after(29, offers, EAGER, cautious).to == "b"


def test_the_moves_of_a_day_are_limited() -> None:
    limited = replace(POLICY, moves_per_day=2)
    history = replace(HOME, moves=(0.0, 60.0))
    offers = (offer("a", 0), offer("b", 8))
    stays = after(60, offers, limited, history)
    assert stays.to == ""
    assert stays.reason == "stays in a: 2 moves within a day, the most allowed"
    assert after(int(DAY / 60), offers, limited, history).to == "b"
    assert after(60, offers, replace(POLICY, moves_per_day=0)).to == ""


def test_looks_that_were_missed_are_not_made_up() -> None:
    offers = (offer("a", 4), offer("b", 8))
    history = regions.look(HOME, offers, 10 * HOUR, EAGER)
    assert history.missed["b"] < regions.move_price(offers[1], offers[0], EAGER)


COUNTS = st.lists(st.integers(0, 10), min_size=12, max_size=60)


@settings(max_examples=30, deadline=None)
@given(st.lists(COUNTS, min_size=2, max_size=3), st.booleans(), st.integers(0, 3))
def test_no_market_makes_a_job_move_more_often_than_it_may(
    counts: list[list[int]], eager: bool, most: int
) -> None:
    gaps = min(len(its) for its in counts)
    markets = {f"r{index}": [*its[:gaps]] * 3 for index, its in enumerate(counts)}
    policy = replace(POLICY, prefer_capacity=eager, patience=300.0, moves_per_day=most)
    moves = play(markets, policy).moves
    assert all(sum(at <= each < at + DAY for each in moves) <= most for at in moves)


@pytest.mark.parametrize(
    "hours",
    [
        [(6.0, 6.0)] * 3,
        [(2.0, 2.0)] * 3,
        [(0.2, 0.2)] * 3,
        [(20.0, 0.5), (0.3, 0.3), (0.3, 0.3)],
        [(10.0, 0.2)] * 3,
        [(1.0, 0.3)] * 2,
    ],
)
def test_a_job_fares_no_worse_than_in_the_region_that_turns_out_best(
    hours: list[tuple[float, float]],
) -> None:
    markets = {f"r{index}": drawn(f"{index}", *its) for index, its in enumerate(hours)}
    counted = play(markets, EAGER)
    assert counted.job >= 0.98 * counted.single
    a_day = len(counted.moves) / 6
    if max(min(its) for its in hours) >= 6.0:
        assert a_day < 12
        assert counted.job >= 0.9 * counted.bound
