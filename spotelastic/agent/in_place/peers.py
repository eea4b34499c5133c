"""Decides when a node looks whether its peers are gone, and what follows for the holder (pure).

A lease takes seconds to run out. Where a collective has failed, a member is gone, and whether it
is this one can be asked of its machine: where nobody listens at its daemon's port any more, it is.

Must never happen:

- two holders decide: who takes the place of one deletes its key, which each of its writes compares;
- a holder that lives is in the way: it steps down as soon as it sees another one's key;
- nodes depose each other in turn: one is deposed only by a member whose own collective has failed,
  in the round in which it did, once.
"""

from spotelastic.agent import actions as do
from spotelastic.agent.state.values import NodeState
from spotelastic.model.round import Round
from spotelastic.rendezvous.sources import in_place
from spotelastic.rendezvous.view import RunState


def refusing(local: NodeState, seen: RunState) -> frozenset[str]:
    """Return the members of the current round that this node has found to be gone."""
    probed, round_ = local.membership.probed, seen.round
    return probed.refusing if round_ and probed.round == round_.incarnation else frozenset()


def due(local: NodeState, seen: RunState) -> do.Action | None:
    """Return what this node has to do before it decides, or campaigns."""
    round_, mine = seen.round, local.membership
    if mine.node is None or seen.blind or not seen.healthy:
        return None
    me, held = mine.node.id, mine.leadership
    if held is not None and seen.holder != me and seen.revision >= held.revision:
        return do.StepDown()
    if round_ is None or round_.phase == "over":
        return None
    if held is not None:
        return _probe(local, round_, in_place.unheard(seen, round_), me)
    holder = round_.member(seen.holder)
    if holder is None or holder.node == me or not _broke(local, round_):
        return None
    if holder.node in refusing(local, seen):
        return do.Depose(holder.node)
    return _probe(local, round_, (holder.node,), me)


def _broke(local: NodeState, round_: Round) -> bool:
    """Whether a collective of this node's workers has failed in the round that trains."""
    workers = local.workers
    same = workers is not None and workers.round == round_.incarnation
    return round_.phase == "started" and same and workers is not None and bool(workers.broken)


def _probe(local: NodeState, round_: Round, nodes: tuple[str, ...], me: str) -> do.Action | None:
    """Look at those that were not looked at in this round."""
    probed = local.membership.probed
    known = probed.nodes if probed.round == round_.incarnation else frozenset()
    left = tuple(node for node in nodes if node != me and node not in known)
    return do.ProbePeers(round_, left) if left else None
