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


def ranked(name: str, joined: int, rank: int | None) -> LiveNode:
    node = Node(name, f"{name}-1", "10.0.0.1", "a", Fingerprint(), node_rank=rank)
    return LiveNode(node, joined, 0.0)


def test_a_node_rank_is_honoured_when_it_is_pinned_only() -> None:
    nodes = {"a": ranked("a", 1, 1), "b": ranked("b", 2, 0), "c": ranked("c", 3, None)}
    assert names(place((), nodes, 3)) == ["a", "b", "c"]
    assert names(place((), nodes, 3, "pinned")) == ["b", "a", "c"]


def test_a_pinned_rank_is_filled_while_its_node_is_gone_and_given_back() -> None:
    """The survivors close the gap; who comes back has its rank again."""
    all_three = {"a": ranked("a", 1, 0), "b": ranked("b", 2, 1), "c": ranked("c", 3, 2)}
    without = {name: all_three[name] for name in "bc"}
    short = place(members("a", "b", "c"), without, 3, "pinned")
    assert names(short) == ["c", "b"]
    assert names(place(short, without | {"a": ranked("a", 9, 0)}, 3, "pinned")) == ["a", "b", "c"]


def test_a_pinned_node_that_returns_takes_its_place_from_one_that_asked_for_none() -> None:
    full = {"b": ranked("b", 2, 1), "spare": ranked("spare", 3, None)}
    stand_in = place(members("a", "b"), full, 2, "pinned")
    assert names(stand_in) == ["spare", "b"]
    assert names(place(stand_in, full | {"a": ranked("a", 9, 0)}, 2, "pinned")) == ["a", "b"]


def test_of_two_that_ask_for_one_rank_the_elder_has_it() -> None:
    nodes = {"a": ranked("a", 5, 0), "b": ranked("b", 2, 0)}
    assert names(place((), nodes, 2, "pinned")) == ["b", "a"]


ranks = st.dictionaries(st.sampled_from("abcdefghij"), st.none() | st.integers(0, 9), max_size=10)


@given(nodes, ranks, st.integers(1, 8))
def test_pinned_ranks_are_a_permutation_and_stay(
    before: set[str], now: dict[str, int | None], limit: int
) -> None:
    eligible = {n: ranked(n, order, rank) for order, (n, rank) in enumerate(now.items())}
    placed = place(members(*sorted(before)), eligible, limit, "pinned")
    assert len(names(placed)) == len(set(names(placed))) == min(limit, len(now))
    wanted = {rank for rank in now.values() if rank is not None and rank < len(placed)}
    assert all(now[placed[rank].node] == rank for rank in wanted)
    assert place(placed, eligible, limit, "pinned") == placed, "nobody moves once it is there"


def bought(name: str, joined: int, *, spot: bool) -> LiveNode:
    node = Node(name, f"{name}-1", "10.0.0.1", "a", Fingerprint(), spot=spot)
    return LiveNode(node, joined, 0.0)


def test_a_node_on_demand_takes_the_first_rank_from_a_spot_node_when_it_comes() -> None:
    spot = {name: bought(name, at, spot=True) for at, name in enumerate("abc")}
    lasting = {name: bought(name, 9, spot=False) for name in "xy"}
    assert names(place(members(*"abc"), spot | lasting, 5)) == ["a", "b", "c", "x", "y"]
    placed = place(members(*"abc"), spot | lasting, 5, "on-demand-first")
    assert names(placed) == ["x", "y", "c", "b", "a"]
    without = {name: node for name, node in (spot | lasting).items() if name != "x"}
    assert names(place(placed, without, 5, "on-demand-first")) == ["y", "a", "c", "b"]


def test_a_node_on_demand_has_a_place_before_a_spot_node() -> None:
    nodes = {"a": bought("a", 0, spot=True), "x": bought("x", 9, spot=False)}
    assert names(place(members("a"), nodes, 1, "on-demand-first")) == ["x"]


kinds = st.dictionaries(st.sampled_from("abcdefghij"), st.booleans(), max_size=10)


@given(kinds, st.integers(1, 8), kinds, st.integers(1, 8))
def test_nodes_on_demand_have_the_first_ranks_and_nobody_moves_once_it_is_so(
    before: dict[str, bool], limit_before: int, now: dict[str, bool], limit: int
) -> None:
    known = {name: bought(name, at, spot=spot) for at, (name, spot) in enumerate(before.items())}
    previous = place((), known, limit_before, "on-demand-first")
    eligible = {n: bought(n, at, spot=before.get(n, s)) for at, (n, s) in enumerate(now.items())}
    placed = place(previous, eligible, limit, "on-demand-first")
    assert len(set(names(placed))) == min(limit, len(now))
    spots = [eligible[member.node].node.spot for member in placed]
    assert spots == sorted(spots)
    lasting = sum(not live.node.spot for live in eligible.values())
    assert spots.count(False) == min(lasting, limit)
    assert place(placed, eligible, limit, "on-demand-first") == placed
    had = {member.node: member.slot for member in previous}
    for member in placed:
        if not eligible[member.node].node.spot and had.get(member.node, limit) < spots.count(False):
            assert member.slot == had[member.node], "one that has such a rank keeps it"
