"""Slots: survivors stay, holes are filled, newcomers of one zone are neighbours."""

from hypothesis import given
from hypothesis import strategies as st

from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.round import Member
from spotelastic.rendezvous.placement import place
from spotelastic.rendezvous.view import LiveNode


def live(name: str, joined: int, zone: str = "a") -> LiveNode:
    return LiveNode(Node(name, f"{name}-1", "10.0.0.1", zone, Fingerprint()), joined, 0.0)


def members(*names: str) -> tuple[Member, ...]:
    return tuple(Member(n, f"{n}-1", slot, "10.0.0.1", "a", 1) for slot, n in enumerate(names))


def names(placed: tuple[Member, ...]) -> list[str]:
    assert [m.slot for m in placed] == list(range(len(placed)))
    return [m.node for m in placed]


def alive(*named: str, zones: str = "") -> dict[str, LiveNode]:
    zones = zones or "a" * len(named)
    return {n: live(n, joined, zones[joined]) for joined, n in enumerate(named)}


def test_survivors_keep_their_slots_and_the_highest_fills_the_hole() -> None:
    assert names(place(members(*"abcd"), alive(*"acd"), 4)) == ["a", "d", "c"]


def test_a_newcomer_takes_the_hole() -> None:
    assert names(place(members(*"abcd"), alive(*"acd", "x"), 4)) == ["a", "x", "c", "d"]


def test_rank_zero_goes_to_the_longest_tenure() -> None:
    eligible = {"b": live("b", 9), "c": live("c", 2), "d": live("d", 5)}
    assert names(place(members(*"abcd"), eligible, 4)) == ["c", "b", "d"]


def test_a_node_that_came_back_is_a_newcomer() -> None:
    eligible = alive("a", "b")
    again = LiveNode(Node("b", "b-2", "10.0.0.1", "a", Fingerprint()), 7, 0.0)
    placed = place(members("a", "b"), eligible | {"b": again}, 2)
    assert placed[1].incarnation == "b-2"


def test_newcomers_of_one_zone_are_neighbours() -> None:
    assert names(place((), alive(*"wxyz", zones="abab"), 4)) == ["w", "y", "x", "z"]


nodes = st.sets(st.sampled_from("abcdefghij"), max_size=10)


@given(nodes, nodes, st.integers(1, 8))
def test_every_slot_is_taken_once_and_nobody_moves_without_need(
    before: set[str], now: set[str], limit: int
) -> None:
    previous = members(*sorted(before))
    placed = place(previous, alive(*sorted(now)), limit)
    assert len(names(placed)) == len(set(names(placed))) == min(limit, len(now))
    assert set(names(placed)) <= now
    staying = [m for m in previous if m.node in now][:limit]
    assert {m.node for m in staying} <= set(names(placed)), "survivors before newcomers"
    if any(m.slot == 0 for m in staying):
        kept = {m.node: m.slot for m in placed}
        assert all(kept[m.node] == m.slot for m in staying if m.slot < len(placed))
