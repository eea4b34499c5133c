"""Chooses which nodes form a round, and assigns their group ranks (called slots here; pure).

Survivors keep their slots, so that a change moves as little as possible. Holes are filled by the
highest slots. Newcomers take the lowest free slots, with nodes of one zone next to each other. When
slot 0 is vacant, the survivor with the longest tenure takes it, because scripts log at rank 0.

Pinned ranks come first: while a node with a node rank lives, it has that slot, and a place in the
round before nodes that asked for none. A node rank beyond the size of the round is ignored, so that
slots are always 0 to n - 1.

With "on-demand-first", nodes on demand have the first slots, and a place in the round before spot
nodes: what serves the others at rank 0, and stands by at rank 1, then lives as long as it is paid.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter

from spotelastic.model.job import RankPolicy
from spotelastic.model.round import Member
from spotelastic.rendezvous.view import LiveNode


def place(
    previous: Sequence[Member],
    eligible: Mapping[str, LiveNode],
    limit: int,
    policy: RankPolicy = "stable",
) -> tuple[Member, ...]:
    """Return the members of the next round, ordered by slot.

    There are at most `limit` of them, and survivors come before newcomers.
    """
    size = min(limit, len(eligible))
    slots = _fixed(previous, eligible, size, policy)
    named = {live.node.id for live in slots.values()}
    kept = _survivors(previous, eligible, named)[: size - len(slots)]
    if kept and 0 not in slots and kept[0][0] != 0:
        first = min(kept, key=lambda pair: (pair[1].joined, pair[0]))
        kept.remove(first)
        kept.insert(0, (0, first[1]))
    moving: list[LiveNode] = []
    for slot, live in kept:
        if slot < size and slot not in slots:
            slots[slot] = live
        else:
            moving.insert(0, live)
    held = named | {live.node.id for _, live in kept}
    newcomers = _by_zone([live for name, live in eligible.items() if name not in held])
    free = [slot for slot in range(size) if slot not in slots]
    slots.update(zip(free, [*moving, *newcomers], strict=False))
    before = {member.slot: member for member in previous}
    return tuple(_member(slot, slots[slot], before.get(slot)) for slot in sorted(slots))


def _fixed(
    previous: Sequence[Member], eligible: Mapping[str, LiveNode], size: int, policy: RankPolicy
) -> dict[int, LiveNode]:
    """Return the nodes whose slots the policy names, by slot."""
    match policy:
        case "stable":
            return {}
        case "pinned":
            return _pinned(eligible.values(), size)
        case "on-demand-first":
            return _on_demand(previous, eligible, size)


def _on_demand(
    previous: Sequence[Member], eligible: Mapping[str, LiveNode], size: int
) -> dict[int, LiveNode]:
    """Return the nodes on demand, at the first slots. One that has such a slot keeps it."""
    had = {live.node.id: slot for slot, live in _survivors(previous, eligible, ())}
    lasting = [live for live in eligible.values() if not live.node.spot]
    lasting.sort(key=lambda live: (had.get(live.node.id, size), live.joined, live.node.id))
    lasting = lasting[:size]
    slots = {
        had[each.node.id]: each for each in lasting if had.get(each.node.id, size) < len(lasting)
    }
    held = {live.node.id for live in slots.values()}
    free = [slot for slot in range(len(lasting)) if slot not in slots]
    slots.update(zip(free, [each for each in lasting if each.node.id not in held], strict=True))
    return slots


def _pinned(eligible: Iterable[LiveNode], size: int) -> dict[int, LiveNode]:
    """Return nodes that ask for a slot, by slot.

    Of two that ask for the same, the one with the longer tenure has it.
    """
    slots: dict[int, LiveNode] = {}
    for live in sorted(eligible, key=lambda live: (live.joined, live.node.id)):
        rank = live.node.node_rank
        if rank is not None and rank < size:
            slots.setdefault(rank, live)
    return slots


def _survivors(
    previous: Sequence[Member], eligible: Mapping[str, LiveNode], named: Collection[str]
) -> list[tuple[int, LiveNode]]:
    """Return survivors with the slots that they had, in order, except those with a pinned slot."""
    found = [(member.slot, eligible.get(member.node), member) for member in previous]
    kept = [
        (slot, live)
        for slot, live, member in found
        if live is not None
        and live.node.incarnation == member.incarnation
        and member.node not in named
    ]
    kept.sort(key=itemgetter(0))
    return kept


def _by_zone(newcomers: list[LiveNode]) -> list[LiveNode]:
    """Group nodes by zone: zones by their first arrival, then nodes by arrival."""
    ordered = sorted(newcomers, key=lambda live: (live.joined, live.node.id))
    zones = list(dict.fromkeys(live.node.zone for live in ordered))
    return sorted(ordered, key=lambda live: zones.index(live.node.zone))


def _member(slot: int, live: LiveNode, before: Member | None) -> Member:
    node = live.node
    if (
        before is not None
        and before.node == node.id
        and before.incarnation == node.incarnation
        and (before.address, before.zone, before.workers) == (node.address, node.zone, node.workers)
        and before.efa == node.efa
    ):
        return before  # most stay as they are, and there may be thousands
    its = node.address, node.zone, node.workers, node.efa
    return Member(node.id, node.incarnation, slot, *its)
