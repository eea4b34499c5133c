"""Says which virtual rank is computed again by whom, and who is wrong if results differ (pure).

In one step of so many, drawn by its place in the data, a drawn virtual rank is computed by two
other ranks as well. With two ranks, both compute it once more than they would have: who changes its
answer is wrong. Each tells a hash of the gradients that it came to, and of its copy of parameters
and moments, which are the same on all ranks.

Must never happen:

- A rank is named that is right. It is named only if more than half of the ranks that were asked say
  otherwise, or if it is the only one that contradicts itself.
- Ranks take different steps for audited: what is drawn depends on the seed, the place in the data
  and the shares, which all have in common.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Answers = Mapping[int, Sequence[bytes]]
"""What each rank that was asked came to, each time that it has computed it."""


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """One virtual rank that is computed several times."""

    leaf: int
    owner: int
    """The rank that computes it in any case."""
    again: tuple[int, ...]
    """Those that do it once more; twice, if they are named twice."""


def plan(seed: int, place: tuple[int, int], every: int, own: Sequence[range]) -> AuditPlan | None:
    """Return what is computed again at a place in the data; None where nothing is.

    One place in `every` is drawn; 0: none. `own` are the virtual ranks that each rank computes.
    """
    if not every:
        return None
    epoch, consumed = place
    drawn = hashlib.blake2b(f"{seed}/{epoch}/{consumed}/audit".encode(), digest_size=24).digest()
    is_due, of_leaf, of_rank = (int.from_bytes(drawn[at : at + 8], "little") for at in (0, 8, 16))
    if is_due % every:
        return None
    leaf, ranks = of_leaf % sum(map(len, own)), len(own)
    owner = next(rank for rank, its in enumerate(own) if leaf in its)
    if ranks < 3:
        other = (owner + 1) % ranks
        return AuditPlan(leaf, owner, (owner, other, other) if ranks == 2 else (owner,))
    first = of_rank % (ranks - 1)
    second = (first + 1 + (of_rank >> 32) % (ranks - 2)) % (ranks - 1)
    again = ((owner + 1 + each) % ranks for each in sorted((first, second)))
    return AuditPlan(leaf, owner, tuple(again))


def all_agree(answers: Answers) -> bool:
    """Return whether all have come to the same, each time."""
    return len({each for told in answers.values() for each in told}) <= 1


def wrong(answers: Answers) -> tuple[int, ...]:
    """Return the ranks whose answers are wrong; none where all agree, or it cannot be told."""
    if all_agree(answers):
        return ()
    unsteady = tuple(rank for rank, told in answers.items() if len({*told}) > 1)
    if unsteady:
        return unsteady if len(unsteady) == 1 else ()
    told = {rank: each[0] for rank, each in answers.items() if each}
    [(usual, count)] = Counter(told.values()).most_common(1)
    return tuple(rank for rank in told if told[rank] != usual) if 2 * count > len(told) else ()
