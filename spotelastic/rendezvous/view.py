"""Folds what etcd's watches deliver into one immutable value: the state of a run (pure).

Stored values are parsed here, once. A value that does not parse is dropped and named, because a
foreign or newer writer must not stop a round. Times beside values are the observer's own: when it
saw the change, so that no decision compares the clocks of two machines.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import msgspec

from spotelastic.model.agreement import Proposal, Vote
from spotelastic.model.job import Ending, Failure, Finished, Job, Reference, Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Drain
from spotelastic.model.progress import Progress, SlowNode
from spotelastic.model.round import Acknowledgement, Round, SlotOffer
from spotelastic.rendezvous.slowness import paces
from spotelastic.rendezvous.slowness.paces import NodePace
from spotelastic.store.codec import decode
from spotelastic.store.keys import Keys
from spotelastic.store.port import Change, Health, Reset, StoredValue, WatchItem


@dataclass(frozen=True, slots=True)
class LiveNode:
    """A node whose lease is alive. `joined` (a store revision) orders nodes by tenure."""

    node: Node
    joined: int
    seen_at: float


def _empty() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RunState:
    """Everything that a decision about rounds depends on, except the time."""

    settings: Settings | None = None
    job: Job | None = None
    ending: Ending | None = None
    holder: str = ""
    reference: Reference | None = None
    """What nodes must match when they join."""
    reference_revision: int = 0
    round: Round | None = None
    round_revision: int = 0
    round_at: float = 0.0
    """When this observer saw the round enter its phase."""
    proposal: Proposal | None = None
    proposal_at: float = 0.0
    nodes: Mapping[str, LiveNode] = field(default_factory=_empty)
    acks: Mapping[str, Acknowledgement] = field(default_factory=_empty)
    votes: Mapping[str, Vote] = field(default_factory=_empty)
    progress: Mapping[str, Progress] = field(default_factory=_empty)
    paces: Mapping[str, NodePace] = field(default_factory=_empty)
    """What nodes have reported of their own time, since this observer began to watch them."""
    slow: Mapping[str, SlowNode] = field(default_factory=_empty)
    offers: Mapping[str, SlotOffer] = field(default_factory=_empty)
    drains: Mapping[str, Drain] = field(default_factory=_empty)
    failures: Mapping[str, Failure] = field(default_factory=_empty)
    finished: Mapping[str, Finished] = field(default_factory=_empty)
    """Finished members, keyed by `<round incarnation>/<node>`."""
    healthy_since: float = 0.0
    """When the connection to the store last came back; 0 if it was never lost."""
    healthy: bool = True
    revision: int = 0
    """Store revision of the newest change under `all/` that has been folded in."""
    refusing: frozenset[str] = frozenset()
    """Members of the current round whose daemons refuse connections. The one thing here that is not
    in etcd: this observer has tried.
    """
    unreadable: Mapping[str, str] = field(default_factory=_empty)
    """Why a value cannot be read by this version, by its key below the run's. What was read from
    the key before still counts."""

    @property
    def blind(self) -> str:
        """Why this node cannot follow the run, whose own values it cannot read; empty: it can."""
        if not self.unreadable:
            return ""
        own = (key for key in self.unreadable if key.startswith("all/"))
        return next((f"{key}: {self.unreadable[key]}" for key in own), "")


_SINGLE: dict[str, Any] = {
    "settings": Settings,
    "job": Job,
    "ending": Ending,
    "reference": Reference,
    "round": Round,
    "proposal": Proposal,
}
_PER_NODE: dict[str, tuple[str, Any]] = {
    "live": ("nodes", Node),
    "ack": ("acks", Acknowledgement),
    "vote": ("votes", Vote),
    "progress": ("progress", Progress),
    "snapshots": ("offers", SlotOffer),
    "drain": ("drains", Drain),
    "failure": ("failures", Failure),
    "slow": ("slow", SlowNode),
    "finished": ("finished", Finished),
}


def fold(
    seen: RunState, items: Iterable[WatchItem], keys: Keys, now: float, prefix: str
) -> RunState:
    """Return `seen` after the items of the watch on `prefix`, either `keys.all` or `keys.nodes`."""
    tables = _Tables()
    for item in items:
        match item:
            case Change():
                seen = _change(seen, item.key, item.value, keys, now, tables)
                if prefix == keys.all:
                    seen = replace(seen, revision=max(seen.revision, item.revision))
            case Reset():
                seen, tables = _reset(seen, item.values, keys, now, prefix), _Tables()
                if prefix == keys.all:  # also a lower one, of a store that has gone back
                    seen = replace(seen, revision=item.revision)
            case Health():
                since = now if item.healthy else seen.healthy_since
                seen = replace(seen, healthy=item.healthy, healthy_since=since)
    return seen


def has_gone_back(before: RunState, seen: RunState) -> bool:
    """Whether etcd was emptied, or set back to a round that is long over."""
    if seen.blind:  # it is there, written by another version
        return False
    if before.round is not None and (seen.round is None or seen.round.number < before.round.number):
        return True
    return before.settings is not None and seen.settings is None


def forget_nodes(seen: RunState) -> RunState:
    """Return `seen` without what only the holder watches."""
    empty: dict[str, Any] = {name: _empty() for name, _ in _PER_NODE.values()}
    run = {key: why for key, why in seen.unreadable.items() if not key.startswith("nodes/")}
    return replace(seen, unreadable=MappingProxyType(run), paces=_empty(), **empty)


class _Tables:
    """The tables of nodes that one `fold` changes.

    Each is copied once, however many items there are: all nodes answer at about the same time.
    """

    def __init__(self) -> None:
        self._mine: dict[str, dict[str, Any]] = {}

    def change(self, seen: RunState, attribute: str, name: str, value: Any) -> RunState:
        """Return `seen` with a node's value in one of its tables; None: the node has none."""
        table = self._mine.get(attribute)
        if table is None:
            table = self._mine[attribute] = _copied(getattr(seen, attribute))
            changed: dict[str, Any] = {attribute: MappingProxyType(table)}
            seen = replace(seen, **changed)
        if value is None:
            table.pop(name, None)
        else:
            table[name] = value
        return seen


def _copied(table: Mapping[str, Any]) -> dict[str, Any]:
    # `dict` of a proxy takes twenty times as long.
    return table.copy() if isinstance(table, MappingProxyType) else dict(table)


def _reset(
    seen: RunState, values: Iterable[StoredValue], keys: Keys, now: float, prefix: str
) -> RunState:
    """Replace a whole branch, keeping the times of values that did not change."""
    before = seen
    if prefix == keys.all:
        nothing: dict[str, Any] = dict.fromkeys(_SINGLE)
        seen = replace(seen, holder="", round_revision=0, **nothing)
    elif prefix == keys.nodes:
        seen = replace(forget_nodes(seen), paces=seen.paces)
    branch = prefix.removeprefix(keys.root)
    kept = {key: why for key, why in seen.unreadable.items() if not key.startswith(branch)}
    seen = replace(seen, unreadable=MappingProxyType(kept))
    tables = _Tables()
    for value in values:
        seen = _change(seen, value.key, value, keys, now, tables)
    if seen.paces.keys() - seen.progress.keys():
        there = {name: pace for name, pace in seen.paces.items() if name in seen.progress}
        seen = replace(seen, paces=MappingProxyType(there))
    unchanged = seen.round_revision == before.round_revision
    if seen.round is not None and (unchanged or _goes_on(before.round, seen.round)):
        seen = replace(seen, round_at=before.round_at)
    if seen.proposal is not None and seen.proposal == before.proposal:
        seen = replace(seen, proposal_at=before.proposal_at)
    return seen


def _change(
    seen: RunState, key: str, value: StoredValue | None, keys: Keys, now: float, tables: _Tables
) -> RunState:
    try:
        if key.startswith(keys.all):
            after = _change_single(seen, key.removeprefix(keys.all), value, now)
        elif key.startswith(keys.nodes):
            branch, _, name = key.removeprefix(keys.nodes).partition("/")
            after = _change_node(seen, branch, name, value, now, tables)
        else:
            return seen
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # includes ValidationError
        return _unread(seen, key.removeprefix(keys.root), str(error))
    return _unread(after, key.removeprefix(keys.root), "") if after.unreadable else after


def _unread(seen: RunState, key: str, why: str) -> RunState:
    """Return `seen` with a key marked as unreadable for the reason `why`.

    An empty `why` says that the key can be read again, or is gone.
    """
    others = {other: told for other, told in seen.unreadable.items() if other != key}
    return replace(seen, unreadable=MappingProxyType(others | ({key: why} if why else {})))


def _change_single(seen: RunState, name: str, value: StoredValue | None, now: float) -> RunState:
    if name == "holder":
        return replace(seen, holder=value.data.decode() if value else "")
    if name not in _SINGLE:
        return seen
    parsed: Any = decode(value.data, _SINGLE[name]) if value else None
    told: dict[str, Any] = {name: parsed}
    if name == "reference" and value is not None:
        shared = replace(parsed, node=_shared(parsed.node))
        told = {name: shared, "reference_revision": value.modified}
    before, seen = seen.round, replace(seen, **told)
    if name == "round":
        same = _goes_on(before, seen.round)
        at = seen.round_at if same else now
        return replace(seen, round_revision=value.modified if value else 0, round_at=at)
    if name == "proposal":
        return replace(seen, proposal_at=now)
    return seen


def _goes_on(before: Round | None, after: Round | None) -> bool:
    """Whether the same round goes on training, with at most another epoch or schedule."""
    return (
        before is not None
        and after is not None
        and before.phase == after.phase == "started"
        and before.incarnation == after.incarnation
    )


def _change_node(
    seen: RunState, branch: str, name: str, value: StoredValue | None, now: float, tables: _Tables
) -> RunState:
    if branch not in _PER_NODE:
        return seen
    attribute, kind = _PER_NODE[branch]
    told: Any = decode(value.data, kind) if value is not None else None
    if branch == "live" and value is not None:
        told = LiveNode(_shared(told), value.created, now)
    elif branch == "drain" and value is not None:
        told = _told_now(told, now)
    elif branch == "progress":
        before = seen.paces.get(name)
        pace = paces.after(before, told) if told is not None else None
        if pace is not before:
            seen = tables.change(seen, "paces", name, pace)
    return tables.change(seen, attribute, name, told)


def _shared(node: Node) -> Node:
    """Return the node with one and the same fingerprint for all that have equal ones.

    So most are compared by identity.
    """
    return replace(node, fingerprint=_same(node.fingerprint))


@lru_cache(maxsize=64)
def _same(fingerprint: Fingerprint) -> Fingerprint:
    return fingerprint


def _told_now(drain: Drain, now: float) -> Drain:
    """Return the drain with its deadline on the observer's clock: what counts is the time left."""
    notice = drain.notice
    if notice.deadline is None:
        return drain
    at_latest = now + (notice.deadline - notice.seen_at)
    if now < notice.deadline <= at_latest:
        return drain
    return replace(drain, notice=replace(notice, deadline=at_latest))
