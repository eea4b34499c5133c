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
from spotelastic.model.round import LARGE, Acknowledgement, Round
from spotelastic.rendezvous.view import RunState

FRUITLESS = 3
"""Rounds in a row that may be entered in place without a step. Then the processes are replaced:
something in them may be broken.
"""


def agreed_step(standings: Sequence[Standing]) -> int | None:
    """Return the step that all of these workers can go on from with the state they have.

    None if there is none.

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
    """Return the members of the proposed round whose workers all rest, with their standings.

    Who rests has a Checkpointer, whatever a round before has taken the script for (`Round.plain`):
    its workers may have come to it after a long start.
    """
    if round_.fruitless >= FRUITLESS:
        return {}
    workers = {member.node: member.workers for member in round_.members}
    return {
        ack.node: ack.standings
        for ack in acks
        if ack.rested == round_.parent != "" and len(ack.standings) == workers.get(ack.node)
    }


def source(round_: Round, step: int, chosen: Resume, *, all_keep: bool) -> Resume | None:
    """Return what a round resumes from whose workers go on from `step`; None if some could not.

    `chosen` is what all members could restore. Members without a state of their own need it, and
    it has to be the very step at which the others are.
    """
    if all_keep:
        return Resume("memory", step, round_.parent)
    same = chosen.kind == "memory" and chosen.incarnation == round_.parent
    return chosen if same and chosen.step == step else None


def lost_peer(seen: RunState, round_: Round) -> str:
    """Return the member of a proposed round that is almost certainly gone.

    The collectives of others have failed, none of their workers has, and only that member has not
    answered. Empty if there is none.
    """
    answered = {ack.node for ack in seen.acks.values() if ack.round == round_.incarnation}
    silent = [member.node for member in round_.members if member.node not in answered]
    return silent[0] if len(silent) == 1 and _broke(seen, round_.parent) else ""


def unheard(seen: RunState, round_: Round) -> tuple[str, ...]:
    """Return the members that may be why the collectives of the others have failed.

    They have told nothing. Empty where a worker has failed by itself, and in a large round.
    """
    if round_.phase == "proposed":
        return tuple(filter(None, (lost_peer(seen, round_),)))
    if not _broke(seen, round_.incarnation) or len(round_.members) > LARGE:
        return ()
    told = {node for node, failure in seen.failures.items() if failure.round == round_.incarnation}
    return tuple(member.node for member in round_.members if member.node not in told)


def vanished(seen: RunState, round_: Round) -> tuple[str, ...]:
    """Return the members of a started round that are gone although their leases are not.

    The collectives of others have failed, and nobody listens where the daemons of these members
    did.
    """
    return tuple(sorted(seen.refusing.intersection(unheard(seen, round_))))


def _broke(seen: RunState, round_: str) -> bool:
    """Whether workers of a round have told of failed collectives, and of nothing else."""
    told = [failure for failure in seen.failures.values() if failure.round == round_]
    return bool(told) and all(failure.broken for failure in told)


def fallen(round_: Round, failures: Collection[Failure]) -> set[str]:
    """Return the nodes that lost a worker, in a round whose other workers keep their state."""
    return {
        failure.node
        for failure in failures
        if failure.round == round_.incarnation and failure.rests and not failure.broken
    }
