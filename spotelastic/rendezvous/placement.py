"""Pure: which nodes form a round, and in which slots.

Survivors keep their slots, so that a change moves as little as possible; holes are filled by the
highest slots; newcomers take the lowest free slots, those of one zone next to each other. When
slot 0 is vacant, the survivor with the longest tenure takes it: rank 0 is where scripts log.
"""

from collections.abc import Mapping, Sequence

from spotelastic.model.round import Member
from spotelastic.rendezvous.view import LiveNode


def place(
    previous: Sequence[Member], eligible: Mapping[str, LiveNode], limit: int
) -> tuple[Member, ...]:
    """Members of the next round, ordered by slot: at most `limit`, survivors before newcomers."""
    survivors = {
        m.slot: eligible[m.node]
        for m in previous
        if m.node in eligible and eligible[m.node].node.incarnation == m.incarnation
    }
    kept = dict(sorted(survivors.items())[:limit])
    held = {live.node.id for live in kept.values()}
    newcomers = _by_zone([live for name, live in eligible.items() if name not in held])
    size = min(limit, len(kept) + len(newcomers))

    _give_rank_zero_to_tenure(kept)
    free = [slot for slot in range(size) if slot not in kept]
    for slot in sorted((slot for slot in kept if slot >= size), reverse=True):
        kept[free.pop(0)] = kept.pop(slot)
    kept.update(zip(free, newcomers, strict=False))
    return tuple(_member(slot, live) for slot, live in sorted(kept.items()))


def _by_zone(newcomers: list[LiveNode]) -> list[LiveNode]:
    """Grouped by zone, zones in the order of their first arrival, then by arrival."""
    ordered = sorted(newcomers, key=lambda live: (live.joined, live.node.id))
    zones = list(dict.fromkeys(live.node.zone for live in ordered))
    return sorted(ordered, key=lambda live: zones.index(live.node.zone))


def _give_rank_zero_to_tenure(kept: dict[int, LiveNode]) -> None:
    if kept and 0 not in kept:
        slot = min(kept, key=lambda s: (kept[s].joined, s))
        kept[0] = kept.pop(slot)


def _member(slot: int, live: LiveNode) -> Member:
    node = live.node
    return Member(node.id, node.incarnation, slot, node.address, node.zone, node.workers)
