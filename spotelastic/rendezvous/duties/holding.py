"""When a node that holds the election decides again (pure).

Must never happen: a holder decides from what it saw before its own last decision. So it waits until
its watch has shown the revision of what it wrote, or for half a second where the watch is late. The
transaction itself compares the election key and the round (`membership.perform`), so that a
decision from an old view writes nothing.
"""

from spotelastic.model.round import LARGE
from spotelastic.rendezvous.view import RunState
from spotelastic.store.port import TransactionResult

SEEN_WITHIN = 0.5
"""Seconds after which a holder decides again although its watch has not shown what it wrote."""


GATHER = 15e-6
"""Seconds for each node in which the holder of a large run gathers answers. A decision takes about
a tenth of that.
"""


def gathers(seen: RunState) -> float:
    """Return the seconds in which the holder awaits further events before it decides.

    In a large run all nodes answer at about the same time, and each decision looks at all of them.
    So the holder decides about many answers at once. In a small run it decides at once.
    """
    nodes = max(len(seen.nodes), len(seen.round.members) if seen.round is not None else 0)
    return GATHER * nodes if nodes > LARGE else 0.0


def written(outcome: TransactionResult, seen: RunState, now: float) -> tuple[int, float]:
    """Return `lead_after` and `lead_at` after a decision made at `now`.

    The decision was written, or it was found that something it depended on had changed.
    """
    after = outcome.revision if outcome.succeeded else seen.revision + 1
    return after, now + SEEN_WITHIN
