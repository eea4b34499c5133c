"""What a node does about the election, and about rounds while it holds it (pure).

Must never happen: a holder decides from what it saw before its own last decision. So it waits until
its watch has shown the revision of what it wrote, or for half a second where the watch is late. The
transaction itself compares the election key and the round (`membership.perform`), so that a
decision from an old view writes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

from spotelastic.model.round import LARGE
from spotelastic.rendezvous import rounds
from spotelastic.rendezvous.decision import Action
from spotelastic.rendezvous.slowness import slow_nodes
from spotelastic.rendezvous.view import RunState
from spotelastic.store.port import TransactionResult

SEEN_WITHIN = 0.5
"""Seconds after which a holder decides again although its watch has not shown what it wrote."""


GATHER = 15e-6
"""Seconds for each node in which the holder of a large run gathers answers. A decision takes about
a tenth of that.
"""


@dataclass(frozen=True, slots=True)
class HolderStatus:
    """What a node that has registered knows of its own part in the election."""

    node: str
    leads: bool
    nodes_seen: bool
    """Whether its watch on the nodes' own keys has delivered what is there."""
    lead_after: int
    """Store revision that must be seen before it decides again."""
    lead_at: float
    """When it decides again anyway."""


@dataclass(frozen=True, slots=True)
class HolderDuty:
    """What to do now: campaign, write actions, or look again at a time."""

    campaign: bool = False
    actions: tuple[Action, ...] = ()
    wake_at: float | None = None


def duty(status: HolderStatus, seen: RunState, now: float, new_id: Callable[[], str]) -> HolderDuty:
    """Return what a registered node does about the election and about rounds."""
    if seen.settings is None or seen.blind:
        return HolderDuty()
    if not status.leads:
        # The key may be this node's own: of a history that the store has gone back to.
        return HolderDuty(campaign=seen.holder in ("", status.node))
    if not status.nodes_seen:
        return HolderDuty()
    if seen.revision < status.lead_after and now < status.lead_at:
        return HolderDuty(wake_at=status.lead_at)
    decision = rounds.decide(seen, now, new_id)
    actions = tuple(decision.actions) or slow_nodes.decide(seen, now)
    return HolderDuty(actions=actions, wake_at=decision.wake_at)


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
