"""What a node answers to a round and to a proposed save step, as values to write (pure).

Must never happen:

- a node confirms a target that one of its workers might have passed: the steps must have been read
  after the target was written, and each must be two short of it, because a worker publishes its
  step before it looks for a target;
- a round is given the storage epoch that was claimed for another one.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

from spotelastic_checkpoints.types import WorkerStep

from spotelastic.model.agreement import Proposal, Vote
from spotelastic.model.job import Settings
from spotelastic.model.node import Node
from spotelastic.model.round import LARGE, Acknowledgement, Member, Round

SURE = 2
"""Steps that a worker must be short of a target to be certain to see it in time."""


def place(node: Node, round_: Round) -> Member | None:
    """Return the node's place in the round; None if it is left out.

    A node that registered anew is another one than the member of that name.
    """
    member = round_.member(node.id)
    return member if member is not None and member.incarnation == node.incarnation else None


def missed(node: Node, round_: Round | None) -> bool:
    """Whether the node did not answer a proposal in time: it has to register anew, as a newcomer.

    One that cannot read what others write must not: it would come and go with every round.
    """
    return round_ is not None and node.incarnation in round_.missed


def phase_due(
    told: tuple[str, str], round_: Round, *, can_start: bool
) -> Literal["seen", "ready"] | None:
    """Return what a member of a proposed round has to answer now, if anything.

    `told`: the round and the phase of its last answer. `can_start`: no worker of another round
    lives here, and all that the round needs of this node is there.
    """
    if told == (round_.incarnation, "ready"):
        return None
    if can_start:
        return "ready"
    return "seen" if told[0] != round_.incarnation else None


def seen_after(settings: Settings | None, round_: Round, member: Member) -> float:
    """Return the seconds after which a member says that it has seen a proposal.

    It does not say so if it can say before that it is ready.

    It answers at once in a round of up to `LARGE` members. In a larger one all would write at the
    same time what nobody waits for, because most are ready a moment later. So each waits, at most
    for a quarter of the time that the holder gives it beyond that of a small round.
    """
    more = len(round_.members) / LARGE - 1.0
    if settings is None or more <= 0.0:
        return 0.0
    share = 0.5 + 0.5 * member.slot / len(round_.members)
    return share * 0.25 * more * settings.seen_within


def seen(node: Node, round_: Round) -> Acknowledgement:
    """Return that the node has seen a proposed round, and is getting ready.

    One that is ready says instead what it can contribute: no worker of another round trains on it.
    """
    return Acknowledgement(node.id, node.incarnation, round_.incarnation, "seen")


def highest(steps: Iterable[WorkerStep], resumed: int) -> int:
    """Return the highest step that a worker has finished.

    A worker that has not restored yet counts as having finished the round's resumed step. One that
    has restored may be behind it, if its script or a damaged checkpoint sent it back.
    """
    return max((worker.step or resumed for worker in steps), default=resumed)


def vote(
    node: str,
    proposal: Proposal,
    steps: Sequence[WorkerStep],
    resumed: int,
    *,
    sealed: bool = False,
) -> Vote:
    """Return the node's vote on a proposal.

    Where the proposal has a target, `steps` were read after it was written. `sealed`: all workers
    have saved at it, and wait.
    """
    step, target = highest(steps, resumed), proposal.target
    sure = sealed or step <= target - SURE
    return Vote(
        node,
        proposal.id,
        step,
        step_time=max((worker.step_time for worker in steps), default=0.0),
        aimed=target,
        confirmed=target if sure else 0,
        sealed=target if sealed else 0,
    )
