"""Chooses the one source that every rank of the next round restores from (pure).

Must never happen: two ranks restore different states, or a state that is not on the history of
the round before (two halves of a split that both reached step 900 are different states). So only
sealed slots on the lineage count, a source is complete or not used, and the choice is written
into the round.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from spotelastic_checkpoints.types import Ancestry, Branch, Commit, Holder, Resume, Snapshot

from spotelastic.model.round import Round

LINEAGE_KEPT = 32


@dataclass(frozen=True, slots=True)
class Held:
    """The sealed slots that one reachable node holds."""

    node: str
    daemon: str
    snapshots: Sequence[Snapshot]


def choose(
    parent: str,
    lineage: Sequence[Branch],
    held: Iterable[Held],
    commits: Iterable[Commit],
    known: Commit | None = None,
) -> Resume:
    """Return the newest complete state: in memory, else the newest commit, else a fresh start.

    `parent` is the incarnation of the last round that started, `lineage` its ancestors, `known` the
    newest commit that existed when `parent` started.
    """
    newest = newest_known(commits)
    memory = _newest_in_memory(_bounds(parent, lineage), held)
    began = {branch.incarnation: branch.known for branch in lineage} | {parent: known}
    if newest is None or (memory and _is_later(memory, newest, began[memory.incarnation])):
        return memory or Resume()
    return Resume(kind="store", step=newest.step, epoch=newest.epoch)


def with_ancestors(
    round_: Round, told: Iterable[Ancestry], commits: Iterable[Commit], run_id: str
) -> Round:
    """Return the proposed round with the ancestors that its members know of.

    They are needed where the rendezvous store has lost them. `run_id` is what the storage says now;
    empty where it has not answered.

    Must never happen: it goes on from a history that another one has replaced. So all members know
    of one round that descends from all others that they know of; it is the round's own history
    that goes on, and no one else has begun the run afresh or committed since. Otherwise what is
    committed counts, as if nobody knew of anything.
    """
    # A job that was restarted has forgotten on purpose.
    known = {each.incarnation: each for each in told if round_.parent or round_.number == 1}
    roots = {round_.parent} - {""}
    later = [each for each in known.values() if roots <= _names(each)]
    newest = [each for each in later if {one.incarnation for one in later} <= _names(each)]
    if len(newest) != 1:
        return round_
    [found] = newest
    before = found.known or Commit(0, 0)
    replaced = found.epoch and run_id not in ("", found.run_id)
    if replaced or any(commit.epoch > max(found.epoch, before.epoch) for commit in commits):
        return round_
    return replace(round_, parent=found.incarnation, lineage=found.lineage, known=found.known)


def _names(ancestry: Ancestry) -> set[str]:
    return {ancestry.incarnation, *(branch.incarnation for branch in ancestry.lineage)}


def could_be_newer(
    resume: Resume, parent: str, lineage: Sequence[Branch], held: Iterable[Held]
) -> bool:
    """Whether a later state was sealed on the lineage but parts of it are missing."""
    bounds = _bounds(parent, lineage)
    generations = list(bounds)

    def is_newer(snapshot: Snapshot) -> bool:
        if resume.kind != "memory" or snapshot.incarnation == resume.incarnation:
            return snapshot.step > resume.step
        return generations.index(snapshot.incarnation) > generations.index(resume.incarnation)

    return any(
        _counts(snapshot, bounds) and is_newer(snapshot)
        for node in held
        for snapshot in node.snapshots
    )


def extend(round_: Round, resume: Resume) -> tuple[Branch, ...]:
    """Return the lineage of the round that branches off `round_`'s parent at the resumed step."""
    if not round_.parent:
        return ()
    ancestors = (*round_.lineage, Branch(round_.parent, resume.step, round_.known))
    return tuple(
        Branch(b.incarnation, min(b.step, resume.step), b.known) for b in ancestors[-LINEAGE_KEPT:]
    )


def is_newest(
    parent: str, step: int, commits: Iterable[Commit], known: Commit | None = None
) -> bool:
    """Whether no commit is later than the state that the workers of `parent` have at `step`."""
    newest = newest_known(commits)
    return newest is None or _is_later(Resume("memory", step, parent), newest, known)


def newest_known(commits: Iterable[Commit]) -> Commit | None:
    return max(commits, default=None)


def _is_later(memory: Resume, commit: Commit, known: Commit | None) -> bool:
    """Whether the round is later than the commit.

    A round that began when the commit existed, and was sent back by its script, is later at any
    step.
    """
    if known is not None and commit <= known:
        return True
    return memory.step >= commit.step


def _bounds(parent: str, lineage: Sequence[Branch]) -> Mapping[str, int | None]:
    """Return, for each round on the lineage, its last step that is part of the history.

    The oldest round comes first.
    """
    bounds: dict[str, int | None] = {branch.incarnation: branch.step for branch in lineage}
    if parent:
        bounds[parent] = None
    return bounds


def _newest_in_memory(bounds: Mapping[str, int | None], held: Iterable[Held]) -> Resume | None:
    sources: dict[tuple[int, str, str], list[tuple[Held, Snapshot]]] = {}
    for node in held:
        for snapshot in node.snapshots:
            if _counts(snapshot, bounds):
                key = (snapshot.step, snapshot.incarnation, snapshot.layout)
                sources.setdefault(key, []).append((node, snapshot))
    complete = [key for key, copies in sources.items() if _is_complete(copies)]
    if not complete:
        return None
    generations = list(bounds)
    # A later round may have been sent back to earlier steps.
    step, incarnation, layout = max(complete, key=lambda key: (generations.index(key[1]), *key))
    holders = tuple(
        Holder(node.node, node.daemon, snapshot.ranks, snapshot.whole, snapshot.replica)
        for node, snapshot in sorted(
            sources[step, incarnation, layout], key=lambda copy: copy[1].ranks
        )
    )
    return Resume("memory", step, incarnation, layout, holders)


def _counts(snapshot: Snapshot, bounds: Mapping[str, int | None]) -> bool:
    if snapshot.incarnation not in bounds:
        return False
    bound = bounds[snapshot.incarnation]
    return bound is None or snapshot.step <= bound


def _is_complete(copies: Sequence[tuple[Held, Snapshot]]) -> bool:
    """Whether each rank's part is there.

    It is in its node's slots, in a replica, or in the slots of a node that holds the same.
    """
    if any(snapshot.whole for _, snapshot in copies):
        return True
    ranks = {rank for _, each in copies for rank in (*each.ranks, *each.covers)}
    return ranks >= set(range(copies[0][1].world_size))
