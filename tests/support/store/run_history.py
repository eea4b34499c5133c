"""Checks the rules that must hold over the whole history of a run, from every change in etcd.

`violations` is pure: it replays the changes in order and describes each broken rule. `Recorder`
collects all changes, from before the first node until after the last.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from spotelastic_checkpoints.types import Commit

from spotelastic.model.agreement import Proposal, Vote
from spotelastic.model.job import ENDED, Failure, Job, Settings
from spotelastic.model.node import Node
from spotelastic.model.round import Round
from spotelastic.store.codec import decode
from spotelastic.store.keys import Keys
from spotelastic.store.port import Change, Reset, WatchItem


@dataclass(frozen=True, slots=True)
class Entry:
    """One change of one key; those of one transaction share a revision. `data` None: deleted."""

    revision: int
    key: str
    data: bytes | None


class Recorder:
    """A watch's sink."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.gaps: list[str] = []
        """Where the watch had to read anew, and may have missed something."""
        self._begun = False
        self._changed = threading.Condition()

    def __call__(self, items: Sequence[WatchItem]) -> None:
        with self._changed:
            for item in items:
                match item:
                    case Change(key, value, revision):
                        data = value.data if value is not None else None
                        self.entries.append(Entry(revision, key, data))
                    case Reset(values, revision):
                        # Launchers that meet agree on their group before anybody can watch.
                        if self._begun or any(not value.key.endswith("/group") for value in values):
                            last = self.entries[-1].revision if self.entries else 0
                            self.gaps.append(f"read anew at revision {revision}, after {last}")
                        self._begun = True
            self._changed.notify_all()

    def begins(self, timeout: float) -> bool:
        """Until the watch sees whatever is written from now on."""
        with self._changed:
            return self._changed.wait_for(lambda: self._begun, timeout)

    def wait_for(self, key: str, timeout: float) -> bool:
        """Until a change of `key` has arrived, and with it all that was written before."""
        with self._changed:
            return self._changed.wait_for(lambda: any(e.key == key for e in self.entries), timeout)


@dataclass
class _State:
    """The run just before a change."""

    sharded: bool = False
    settings: Settings | None = None
    job: Job | None = None
    holder: str = ""
    live: dict[str, Node] = field(default_factory=dict)
    registered: set[tuple[str, str]] = field(default_factory=set)
    """Every (node, incarnation) that there ever was."""
    failures: dict[str, Failure] = field(default_factory=dict)
    votes: dict[str, Vote] = field(default_factory=dict)
    proposal: Proposal | None = None
    commit: Commit | None = None
    round: Round | None = None
    started: list[Round] = field(default_factory=list)
    """Each started round once, in order."""
    epochs: set[int] = field(default_factory=set)
    """All that started rounds have had."""
    committed: Commit | None = None
    """The newest commit when the current round was proposed."""
    agreed: int = 0
    """The step that all members had sealed when the current round was proposed, or 0."""


def violations(entries: Iterable[Entry], run: str, *, sharded: bool = False) -> list[str]:
    """Each broken rule as one line, in order; none for a sound history. `sharded`: every node holds
    a part of the state.
    """
    keys, state, found = Keys(run), _State(sharded), []
    for entry in entries:
        found += [f"revision {entry.revision}: {told}" for told in _take(state, keys, entry)]
    return found


def _take(state: _State, keys: Keys, entry: Entry) -> Iterator[str]:
    data = entry.data
    if entry.key == keys.round:
        if data is None:
            yield "the round was deleted"
            return
        yield from _round(state, decode(data, Round))
    elif entry.key == keys.commit and data is not None:
        commit, known = decode(data, Commit), state.commit
        if known is not None and _order(commit) <= _order(known):
            yield f"the newest commit went from {known} to {commit}"
        epochs = state.epochs
        if commit.epoch not in epochs and commit.epoch > min(epochs, default=commit.epoch):
            yield f"{commit} is of an epoch that no started round has"
        state.commit = commit
    elif entry.key == keys.job:
        state.job = decode(data, Job) if data is not None else None
    elif entry.key == keys.settings:
        state.settings = decode(data, Settings) if data is not None else None
    elif entry.key == keys.proposal:
        state.proposal = decode(data, Proposal) if data is not None else None
    elif entry.key == keys.holder:
        state.holder = data.decode() if data is not None else ""
    else:
        _take_of_node(state, keys, entry)


def _take_of_node(state: _State, keys: Keys, entry: Entry) -> None:
    branch, _, name = entry.key.removeprefix(keys.nodes).partition("/")
    data = entry.data
    if branch == "live":
        state.live.pop(name, None)
        if data is not None:
            node = state.live[name] = decode(data, Node)
            state.registered.add((name, node.incarnation))
    elif branch == "failure" and data is not None:
        state.failures[name] = decode(data, Failure)
    elif branch == "vote" and data is not None:
        state.votes[name] = decode(data, Vote)


def _order(commit: Commit) -> tuple[int, int]:
    return (commit.epoch, commit.step)


# -- the round ------------------------------------------------------------------------------------


def _round(state: _State, new: Round) -> Iterator[str]:
    old, state.round = state.round, new
    name = f"round {new.number} ({new.phase}, {new.reason})"
    told = [
        *_authority(state),
        *_succession(state, old, new),
        *_members(state, new),
        *_stability(state, old, new),
        *_charges(state, old, new),
    ]
    if old is None or new.number != old.number:
        state.committed, state.agreed = state.commit, _agreed(state)
    if new.phase == "started" and (old is None or old.phase == "proposed"):
        told += _resumption(state, new)
        state.started.append(new)
    elif new.phase == "started" and state.started:
        state.started[-1] = new
    if new.phase == "started" and new.epoch:
        state.epochs.add(new.epoch)
    yield from (f"{name}: {each}" for each in told)


def _authority(state: _State) -> Iterator[str]:
    if not state.holder:
        yield "written while nobody held the election key"
    if state.job is not None and state.job.state in ENDED:
        yield f"written after the job had {state.job.state}"


def _succession(state: _State, old: Round | None, new: Round) -> Iterator[str]:
    if old is None:
        if (new.number, new.phase, new.parent) != (1, "proposed", ""):
            yield "is no first round"
        return
    if new.incarnation == old.incarnation:
        yield from _advance(old, new)
        return
    if (old.phase, new.phase) not in (("proposed", "proposed"), ("started", "proposed")):
        yield f"follows a {old.phase} round"
    expected = old.number + (old.phase == "started")
    if new.number != expected:
        yield f"follows {old.phase} round {old.number}"
    parent = state.started[-1].incarnation if state.started else ""
    if new.parent != parent:
        yield f"has parent {new.parent}, but {parent} was the last to start"


def _advance(old: Round, new: Round) -> Iterator[str]:
    """The same round, held back, started, or given its storage epoch or other intervals;
    or its workers are known to rest."""
    if old.phase == "started":
        if new != replace(old, epoch=new.epoch, schedule=new.schedule, rests=new.rests):
            yield "changed after it had started"
    elif new.phase != "started" and new != replace(old, pause=new.pause, reason=new.reason):
        yield "was proposed twice"
    if (new.members, new.parent, new.number) != (old.members, old.parent, old.number):
        yield "is not as it was proposed"
    branches = new.phase == "started" and new.parent
    if branches and (not new.lineage or new.lineage[-1].incarnation != new.parent):
        yield "its lineage does not end with its parent"


def _members(state: _State, new: Round) -> Iterator[str]:
    slots = [member.slot for member in new.members]
    if slots != list(range(len(slots))):
        yield f"slots {slots} are no permutation in order"
    if len({member.node for member in new.members}) != len(slots):
        yield "a node has two slots"
    for member in new.members:
        if (member.node, member.incarnation) not in state.registered:
            yield f"{member.node} was never registered as {member.incarnation}"
        if member.incarnation in new.missed:
            yield f"{member.node} had missed a proposal as {member.incarnation}"
    settings = state.settings
    if settings is None:
        yield "there are no settings"
    elif len(slots) > settings.max_nodes:
        yield f"{len(slots)} nodes are more than {settings.max_nodes}"
    elif new.phase == "started" and len(slots) < settings.min_nodes:
        yield f"{len(slots)} nodes are fewer than {settings.min_nodes}"


def _stability(state: _State, old: Round | None, new: Round) -> Iterator[str]:
    """Survivors keep their slots; only slot 0 and holes are filled, the latter by the highest."""
    if old is None or (state.settings is not None and state.settings.rank_policy != "stable"):
        return
    before = {(m.node, m.incarnation): m.slot for m in old.members}
    for member in new.members:
        was = before.get((member.node, member.incarnation), member.slot)
        if member.slot not in (was, 0) and was < len(new.members):
            yield f"{member.node} moved from slot {was} to {member.slot}"


def _charges(state: _State, old: Round | None, new: Round) -> Iterator[str]:
    grown = len(new.charged) - (len(old.charged) if old is not None else 0)
    # What was excused is charged after all once those who seemed lost are back.
    excused = old.excused if old is not None and not new.excused else ()
    if grown > 0 and not (excused and set(excused) <= set(new.charged)):
        failed = old is not None and any(
            failure.round == old.incarnation and failure.rank >= 0
            for failure in state.failures.values()
        )
        if new.cause not in ("worker", "stall") or grown > 1 or not failed:
            yield f"charged {grown} failures for cause {new.cause}"
    settings = state.settings
    if new.phase == "started" and settings and len(new.charged) > settings.max_restarts:
        yield f"{len(new.charged)} failures exceed the budget of {settings.max_restarts}"


def _agreed(state: _State) -> int:
    """The step that every member of the last started round has sealed, as all have voted."""
    last, proposal = state.started[-1] if state.started else None, state.proposal
    if last is None or proposal is None or proposal.round != last.incarnation:
        return 0
    votes = [state.votes.get(member.node) for member in last.members]
    sealed = all(
        vote is not None and vote.proposal == proposal.id and vote.sealed == proposal.target
        for vote in votes
    )
    return proposal.target if sealed and not proposal.cancelled else 0


def _is_held(state: _State, last: Round, new: Round) -> bool:
    """Whether what all members of the last round have sealed can still be had from them.

    One of them suffices where each has all of it. Of a sharded state each holds a part, and serves
    it while it is registered, also outside of the round. A part that only a lost node has is lost,
    and so it is where a lease runs out and the node lives.
    """
    if state.sharded:
        live = {(name, node.incarnation) for name, node in state.live.items()}
        return all((m.node, m.incarnation) in live for m in last.members)
    here = {(m.node, m.incarnation) for m in new.members}
    return any((m.node, m.incarnation) in here for m in last.members)


def _resumption(state: _State, new: Round) -> Iterator[str]:
    """Nothing that was agreed or committed is lost, and nothing comes from another history."""
    resume, step = new.resume, new.resume.step
    if state.committed is not None and step < state.committed.step:
        yield f"resumes at {step}, but {state.committed} was there"
    last = state.started[-1] if state.started else None
    if last is None:
        return
    if step < state.agreed and _is_held(state, last, new):
        yield f"resumes at {step}, but step {state.agreed} was agreed on"
    if resume.kind == "memory":
        bounds = {branch.incarnation: branch.step for branch in new.lineage}
        if step > bounds.get(resume.incarnation, -1):
            yield f"resumes from {resume.incarnation}, which is not on its lineage at {step}"
    if new.epoch and new.epoch <= max(round_.epoch for round_ in state.started):
        yield f"its epoch {new.epoch} is not newer"
