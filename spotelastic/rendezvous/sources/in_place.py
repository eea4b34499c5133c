"""Decides whether workers outlive their round, and at which step they go on (pure).

Must never happen:

- two ranks go on from different steps: one step is written into the round, which each rank is at,
  or can make with the gradients that it has;
- a step is made twice: a rank makes its pending step only if the round's step is that one;
- a state that changed in part is trained on: nobody keeps its state then.
"""

from collections.abc import Collection, Iterable, Sequence

from spotelastic_checkpoints.types import Resume

from spotelastic.model.in_place import Standing
from spotelastic.model.job import Failure
from spotelastic.model.round import Acknowledgement, Round
from spotelastic.rendezvous.view import RunState

FRUITLESS = 3
"""Rounds in a row that may be entered in place without a step. Then the processes are replaced:
something in them may be broken.
"""


def agreed_step(standings: Sequence[Standing]) -> int | None:
    """Returns the step that all of these workers can go on from with the state that they have; None
    if there is none.

    A vote comes before each step of an optimizer. So workers are at most one step apart, and
    whoever is behind has all gradients of the step that it lacks.
    """
    if not standings or any(standing.change == "dirty" for standing in standings):
        return None
    newest = max(standing.step for standing in standings)
    if all(standing == Standing(newest, "pending") for standing in standings):
        return newest + 1  # everybody has the gradients of this step: nothing is computed twice
    behind = [standing for standing in standings if standing.step < newest]
    can_follow = all(standing == Standing(newest - 1, "pending") for standing in behind)
    return newest if can_follow else None


def keepers(round_: Round, acks: Iterable[Acknowledgement]) -> dict[str, tuple[Standing, ...]]:
    """Returns the members of the proposed round whose workers all rest, with their standings."""
    if round_.fruitless >= FRUITLESS or round_.plain:
        return {}
    workers = {member.node: member.workers for member in round_.members}
    return {
        ack.node: ack.standings
        for ack in acks
        if ack.rested == round_.parent != "" and len(ack.standings) == workers.get(ack.node)
    }


def source(round_: Round, step: int, chosen: Resume, *, all_keep: bool) -> Resume | None:
    """Returns what a round resumes from whose workers go on from `step`; None if some could not.

    `chosen` is what all members could restore. Members without a state of their own need it, and
    it has to be the very step at which the others are.
    """
    if all_keep:
        return Resume("memory", step, round_.parent)
    same = chosen.kind == "memory" and chosen.incarnation == round_.parent
    return chosen if same and chosen.step == step else None


def peer_is_lost(seen: RunState, round_: Round) -> bool:
    """Whether a member of a proposed round is almost certainly gone: the collectives of others have
    failed, none of their workers has, and only that member has not answered.
    """
    told = [failure for failure in seen.failures.values() if failure.round == round_.parent]
    answered = {ack.node for ack in seen.acks.values() if ack.round == round_.incarnation}
    silent = [member for member in round_.members if member.node not in answered]
    return bool(told) and all(failure.broken for failure in told) and len(silent) == 1


def fallen(round_: Round, failures: Collection[Failure]) -> set[str]:
    """Returns the nodes that lost a worker, in a round whose other workers keep their state."""
    return {
        failure.node
        for failure in failures
        if failure.round == round_.incarnation and failure.rests and not failure.broken
    }
