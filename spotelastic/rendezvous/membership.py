"""Writes membership and rounds to etcd, in transactions that fail when their premises have changed.

Must never happen: a holder that lost its lease, or decided on an outdated round, overwrites the
current one. So `perform` is one transaction whose preconditions are the holder's election key and
the revision of the round it decided on; either all of a decision is written or nothing. After an
unknown outcome (`Unavailable`) nothing is assumed: the watch shows what holds, and the next
decision starts from there.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec
from spotelastic_checkpoints.types import Commit

from spotelastic.errors import Unavailable
from spotelastic.model.agreement import Vote
from spotelastic.model.job import Job, Reference, Settings
from spotelastic.model.node import Node
from spotelastic.model.notice import Drain
from spotelastic.model.progress import Event
from spotelastic.model.protocol import unfit
from spotelastic.model.round import Round, RoundRecord
from spotelastic.rendezvous import decision, intervals
from spotelastic.rendezvous.slowness import slow_nodes
from spotelastic.rendezvous.view import RunState
from spotelastic.store.codec import decode, encode, readable
from spotelastic.store.keys import Keys
from spotelastic.store.port import Compare, Delete, Put, Store, TransactionResult, Write


def renew(store: Store, keys: Keys, node: Node, lease: int, vote: Vote | None = None) -> None:
    """Register the same incarnation of a node under a new lease, with its vote and node rank.

    The node keeps its place and its drain. Its node rank may have gone to another node meanwhile.
    """
    store.put(keys.live(node.id), encode(node), lease)
    if vote is not None:
        store.put(keys.vote(node.id), encode(vote), lease)
    rank = _rank(store, keys, node, lease)
    if not isinstance(rank, Refusal):
        store.commit(*rank)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node may not join."""

    reason: str
    passing: bool = False
    """Whether waiting may help: the other node may be gone, and only its lease be left."""


def join(
    store: Store,
    keys: Keys,
    node: Node,
    settings: Settings,
    lease: int,
    seen: RunState | None = None,
) -> Refusal | None:
    """Register a new incarnation of a node under `lease`.

    Its predecessor's drain and failure are dropped.

    Returns None when registered, else why not. The first node of a run, or the first after all were
    gone, sets the measure that later nodes must match. The measure is a precondition of the
    registration. So the one that was seen may be tried first, which saves a read; a node is refused
    only by a measure that was read just now.
    """
    known = seen.reference if seen is not None else None
    if seen is not None and known is not None and known.refusal(node, settings) is None:
        measured = Compare(keys.reference, "modified", seen.reference_revision)
        if (registered := _register(store, keys, node, lease, measured)) is not False:
            return registered
    while True:
        if (value := store.get(keys.reference)) is None:
            _set_measure(store, keys, Reference(node, settings))
            continue
        try:
            reason = decode(value.data, Reference).refusal(node, settings)
        except msgspec.DecodeError as error:
            return Refusal(_of_another_version(store, keys, node) or f"{keys.reference}: {error}")
        measured = Compare(keys.reference, "modified", value.modified)
        if reason is not None:
            if store.range(keys.live())[0]:
                return Refusal(reason)
            if another := _of_another_version(store, keys, node):
                return Refusal(another)
            own = Put(keys.reference, encode(Reference(node, settings)))
            store.commit([measured], [own, Put(keys.settings, encode(settings))])
            continue
        if (registered := _register(store, keys, node, lease, measured)) is not False:
            return registered


def _register(
    store: Store, keys: Keys, node: Node, lease: int, measured: Compare
) -> Refusal | Literal[False] | None:
    """Write a node's keys; return False where the measure or a rank has changed since."""
    rank = _rank(store, keys, node, lease)
    if isinstance(rank, Refusal):
        return rank
    writes: list[Write] = [
        Put(keys.live(node.id), encode(node), lease),
        Delete(keys.drain(node.id)),
        Delete(keys.failure(node.id)),
    ]
    done = store.commit([measured, *rank[0]], [*writes, *rank[1]]).succeeded
    return None if done else False


def _of_another_version(store: Store, keys: Keys, node: Node) -> str | None:
    """Return why this node cannot use the run's keys, or None."""
    value = store.get(keys.reference)
    reason = unfit(value.data, f"the run {keys.run}", f"node {node.id}") if value else None
    return reason and f"{reason}, or begin another run (--rdzv-id; `up --name`)"


def _set_measure(store: Store, keys: Keys, first: Reference) -> None:
    """Write the measure, and the settings unless the job's owner has written them before."""
    compares = [Compare(keys.reference, "created", 0)]
    writes: list[Write] = [Put(keys.reference, encode(first))]
    if store.get(keys.settings) is None:
        compares.append(Compare(keys.settings, "created", 0))
        writes.append(Put(keys.settings, encode(first.settings)))
    store.commit(compares, writes)


def _rank(
    store: Store, keys: Keys, node: Node, lease: int
) -> Refusal | tuple[list[Compare], list[Write]]:
    """Return the preconditions and writes that take the node's pinned rank, if it has one."""
    if node.node_rank is None:
        return [], []
    key = keys.rank(node.node_rank)
    known = store.get(key)
    other = known.data.decode() if known is not None else node.id
    if other != node.id:
        return Refusal(
            f"node {node.id} has --node-rank {node.node_rank}, but node {other} of this run has it"
            " too: give each node its own",
            passing=True,
        )
    revision = known.modified if known is not None else 0
    return [Compare(key, "modified", revision)], [Put(key, node.id.encode(), lease)]


def write_drain(store: Store, keys: Keys, drain: Drain) -> None:
    """Write the node's drain, which makes it leave.

    Merges with a drain that is there: several sources see one notice, and EventBridge does not tell
    its deadline. Of two deadlines the earlier one counts. A node that turns out to be sick is so
    whatever else was announced: nobody waits for it any more.
    """
    key = keys.drain(drain.node)
    written, revision = drain, 0
    while not store.commit(
        [Compare(key, "modified", revision)], [Put(key, encode(written))]
    ).succeeded:
        known = store.get(key)
        written, revision = drain, 0
        if known is not None:
            first, revision = readable(known.data, Drain), known.modified
            if first is None:  # another version's: that the node leaves is what counts
                continue
            written = _merged(first, drain)
            if written == first:
                return


def _merged(first: Drain, other: Drain) -> Drain:
    deadlines = [d for d in (first.notice.deadline, other.notice.deadline) if d is not None]
    counts = other if other.notice.kind.traits.at_once else first
    return replace(counts, notice=replace(counts.notice, deadline=min(deadlines, default=None)))


def perform(
    store: Store,
    keys: Keys,
    seen: RunState,
    actions: Sequence[decision.Action],
    holding: Compare,
    now: float,
) -> TransactionResult:
    """Write a whole decision, or nothing if something that it depended on has changed."""
    compares = [holding, Compare(keys.round, "modified", seen.round_revision)]
    writes: list[Write] = []
    records: dict[int, RoundRecord] = {}
    for action in actions:
        match action:
            case decision.WriteRound(round_):
                writes.append(Put(keys.round, encode(round_)))
                if (event := _round_event(seen.round, round_, now)) is not None:
                    writes.append(_recorded(keys, event))
            case decision.CloseRound(round_):
                records[round_.number] = RoundRecord(round_, 0.0, round_.resume.step, 0.0, now)
            case decision.CompleteHistory():
                _complete(store, keys, records, action)
            case decision.WriteProposal(proposal):
                writes.append(Put(keys.proposal, encode(proposal)))
            case decision.EndJob(job):
                ended = Event(now, "job", f"{job.state}: {job.reason}")
                writes += Put(keys.job, encode(job)), _recorded(keys, ended)
            case decision.NameSlow(slow):
                named = _recorded(keys, slow_nodes.named(slow))
                writes += Put(keys.slow(slow.node), encode(slow)), named
            case decision.ClearSlow(slow, reason):
                over = slow_nodes.cleared(slow, reason, now)
                writes += Delete(keys.slow(slow.node)), _recorded(keys, over)
    writes += [Put(keys.history(number), encode(record)) for number, record in records.items()]
    return store.commit(compares, writes)


def record(store: Store, keys: Keys, event: Event) -> None:
    """Append an event to the run's events."""
    written = _recorded(keys, event)
    store.put(written.key, written.data)


def _recorded(keys: Keys, event: Event) -> Put:
    return Put(keys.event(event_name(event.at)), encode(event))


def fail(store: Store, keys: Keys, reason: str, at: float) -> None:
    """End a job that cannot start, unless it has ended already."""
    job, event = Job("failed", at, reason), Event(at, "job", f"failed: {reason}")
    writes = Put(keys.job, encode(job)), _recorded(keys, event)
    store.commit([Compare(keys.job, "created", 0)], writes)


def told_commit(store: Store, keys: Keys) -> Commit | None:
    """Return the newest commit that is recorded in etcd.

    It serves when the object store does not answer: a round must never begin from step 0 where a
    commit exists. Raises `Unavailable` where there is one that cannot be read.
    """
    known = store.get(keys.commit)
    if known is None:
        return None
    commit = readable(known.data, Commit)
    if commit is None:
        raise Unavailable(f"{keys.commit} in etcd holds what this version cannot read")
    return commit


def tell_commit(store: Store, keys: Keys, node: str, commit: Commit, at: float) -> None:
    """Record a commit, and its event, once: every node calls this, because any may be gone soon."""
    known = store.get(keys.commit)
    if known is not None:
        newest = readable(known.data, Commit)
        if newest is not None and (newest.epoch, newest.step) >= (commit.epoch, commit.step):
            return
    data = {"epoch": commit.epoch, "step": commit.step, "at": at}
    event = Event(at, "committed", f"step {commit.step} is committed", node, data)
    unchanged = Compare(keys.commit, "modified", known.modified if known is not None else 0)
    store.commit([unchanged], [Put(keys.commit, encode(commit)), _recorded(keys, event)])


def event_name(at: float) -> str:
    """Return a unique name that sorts by time."""
    return f"{at:017.6f}-{uuid.uuid4().hex[:8]}"


def _complete(
    store: Store, keys: Keys, records: dict[int, RoundRecord], action: decision.CompleteHistory
) -> None:
    known = records.get(action.number)
    if known is None:
        value = store.get(keys.history(action.number))
        known = readable(value.data, RoundRecord) if value is not None else None
        if known is None:
            return
    records[action.number] = RoundRecord(
        known.round,
        action.first_step_at or known.first_step_at,
        max(action.last_step, known.last_step),  # a round may end before its first step
        action.last_step_at or known.last_step_at,
        known.ended_at,
    )


def _round_event(known: Round | None, round_: Round, now: float) -> Event | None:
    """Return the event for a written round, or None where only its epoch is new.

    A storage may be claimed after the round has started.
    """
    epoch, schedule, rests = round_.epoch, round_.schedule, round_.rests
    if known and replace(known, epoch=epoch, schedule=schedule, rests=rests) == round_:
        return _schedule_event(round_, now) if known.schedule != round_.schedule else None
    step = f" at step {round_.resume.step}" if round_.phase == "started" else ""
    if round_.in_place == "keep":
        step += " in place"
    return Event(
        now,
        "round",
        f"round {round_.number} {round_.phase}{step}: {round_.reason}",
        data={
            "number": round_.number,
            "incarnation": round_.incarnation,
            "phase": round_.phase,
            "cause": round_.cause,
            "nodes": list(round_.nodes),
            "members": [m.node for m in round_.members],
            "step": round_.resume.step,
            "from": round_.resume.kind,
            "in_place": round_.in_place,
        },
    )


def _schedule_event(round_: Round, now: float) -> Event:
    wanted = round_.schedule
    data = {
        "number": round_.number,
        "snapshot_every": wanted.snapshot_every,
        "checkpoint_every": wanted.checkpoint_every,
    }
    return Event(now, "schedule", intervals.describe(wanted), data=data)
