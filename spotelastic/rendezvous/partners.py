"""Chooses which node keeps a replica of which other node's shards (pure).

Nodes keep each other's in pairs: with two losses at random a pair is lost more rarely than two
neighbours of a ring are. Where their number is odd, three of them form a ring.

- A pair that lives stays, because what it keeps is of use only there. One is opened up into a ring
  for a node that would otherwise be alone.
- Pairs are formed within a zone, because traffic between zones costs money. A node that is alone
  in its zone has no partner.
- Two nodes of one machine are partners only if that cannot be avoided.
- A node under notice is nobody's partner: what it kept would be gone with it.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from spotelastic.model.round import Member


def partners(
    members: Sequence[Member], previous: Mapping[str, str], noticed: Collection[str] = ()
) -> dict[str, str]:
    """Return, for each node that has one, the node that keeps its replica.

    `previous` is what the round before had. A node keeps the replica of one other node at most.
    """
    zones: dict[str, list[Member]] = {}
    for member in sorted(members, key=lambda member: member.slot):
        if member.node not in noticed:
            zones.setdefault(member.zone, []).append(member)
    found: dict[str, str] = {}
    for group in zones.values():
        found |= _of_zone(group, previous)
    return found


def _of_zone(group: Sequence[Member], previous: Mapping[str, str]) -> dict[str, str]:
    by_name = {member.node: member for member in group}
    kept = list(_alive(by_name, previous, 2))
    rings = list(_alive(by_name, previous, 3))
    taken = {name for each in (*kept, *rings) for name in each}
    rest = [member for member in group if member.node not in taken]
    # One ring stays, and only where the others can form pairs.
    while rings and (len(rings) > 1 or len(rest) % 2):
        *two, third = rings.pop()
        kept.append(tuple(two))
        rest.append(by_name[third])
    fresh, odd = _pairs(rest)
    circles = [*kept, *fresh, *rings]
    if odd is not None and kept + fresh:
        pair = _to_open(kept, fresh, odd, by_name)
        circles.remove(pair)
        circles.append((*pair, odd.node))
    return {
        name: circle[(number + 1) % len(circle)]
        for circle in circles
        for number, name in enumerate(circle)
    }


def _alive(
    here: Collection[str], previous: Mapping[str, str], size: int
) -> Iterator[tuple[str, ...]]:
    """Yield the circles of `size` nodes that the round before had, and of which all are here."""
    seen: set[str] = set()
    for first in here:
        circle = [first]
        while len(circle) <= size and previous.get(circle[-1], first) != first:
            circle.append(previous[circle[-1]])
        closed = previous.get(circle[-1]) == first
        if len(circle) == size and closed and seen.isdisjoint(circle) and set(circle) <= set(here):
            seen.update(circle)
            yield tuple(circle)


def _pairs(rest: Sequence[Member]) -> tuple[list[tuple[str, ...]], Member | None]:
    """Return pairs of nodes that are on different machines where possible, and who is left over.

    In a list ordered by machine, a node and the one that is half a list away from it are on
    different machines, unless one machine has more than half of the nodes.
    """
    machines = Counter(member.address for member in rest)
    ordered = sorted(rest, key=lambda member: (-machines[member.address], member.address))
    odd = ordered.pop(0) if len(ordered) % 2 else None
    if odd is not None:
        machines[odd.address] -= 1
        ordered.sort(key=lambda member: (-machines[member.address], member.address))
    half = len(ordered) // 2
    both = zip(ordered[:half], ordered[half:], strict=True)
    return [(one.node, other.node) for one, other in both], odd


def _to_open(
    kept: Sequence[tuple[str, ...]],
    fresh: Sequence[tuple[str, ...]],
    odd: Member,
    by_name: Mapping[str, Member],
) -> tuple[str, ...]:
    """Return the pair that becomes a ring with the odd node.

    It is a new pair if possible, and one on other machines.
    """

    def cost(pair: tuple[str, ...]) -> tuple[bool, bool]:
        return odd.address in {by_name[name].address for name in pair}, pair not in fresh

    return min((*fresh, *kept), key=cost)
