"""The event log of an agent: a bounded file of what the agent was told, and what it decided.

    <logs>/agent-<node>.events      what happens now
    <logs>/agent-<node>.events.1    what came before, as much again

Each line is a JSON object with its time, `at`, and one of these:

    opened     versions, and whose log it is: the first line of a file
    event      what happened on the node
    store      keys that etcd delivered, with their values; null: the key was deleted
    decided    the actions of a decision, by name. Decisions to do nothing are left out
    unwritten  why a line could not be written
    ended      the traceback with which the agent ended; empty: as decided

A turn of the agent's loop appends its lines with one write, before it acts on the decision. What
was appended survives the agent, however that ends: SIGKILL too. Trouble with the disk ends the log,
never the agent.
"""

import contextlib
import errno
import logging
import os
import re
import traceback
from collections import deque
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import TracebackType

import msgspec

from spotelastic.agent.actions import TellProgress
from spotelastic.agent.decide import AgentDecision
from spotelastic.agent.state.events import LocalEvent, ProgressReported, Stepped
from spotelastic.agent.state.values import NEW, NodeState
from spotelastic.agent.watches import StoreChanged
from spotelastic.clock import Clock, unbroken
from spotelastic.model.protocol import PROTOCOL
from spotelastic.redaction import redactor
from spotelastic.rendezvous.view import RunState
from spotelastic.store.codec import plain
from spotelastic.store.keys import Keys
from spotelastic.store.port import Change, Health, Reset, StoredValue, WatchItem
from spotelastic.version import __version__

logger = logging.getLogger(__name__)

LIMIT = 2 * 2**20
"""Bytes of one of the two files."""
ORDINARY = (Stepped, ProgressReported, TellProgress)
"""Events and actions that come all the time while training goes on, and would fill the log."""


def log_file(folder: Path, node: str) -> Path:
    """Return the current file of a node's log."""
    return folder / f"agent-{re.sub(r'[^A-Za-z0-9_.-]', '_', node)}.events"


def earlier(current: Path) -> Path:
    """Return the file with what came before."""
    return current.with_name(f"{current.name}.1")


def was_killed(path: Path) -> bool:
    """Return whether the log is that of an agent which has not come to its end."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        for last in deque(file, 1):
            try:
                return "ended" not in msgspec.json.decode(last)
            except msgspec.DecodeError:  # it was killed while it wrote
                return True
    return False


def foreign(value: object) -> object:
    """Return what is written of a value that msgspec does not know."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, AbstractSet):
        return sorted(value)
    return None  # a connection, of which nothing can be kept


_encode = msgspec.json.Encoder(enc_hook=foreign).encode


class EventLog:
    """Writes the log of one agent. Used by the agent's main thread.

    `state` and `seen` are what the agent knows at this point. Another thread may read them: they
    are immutable.
    """

    def __init__(
        self,
        current: Path,
        keys: Keys,
        node: str,
        *,
        secrets: Iterable[str] = (),
        limit: int = LIMIT,
        clock: Clock = unbroken,
    ) -> None:
        self.state, self.seen = NEW, RunState()
        self.path, self._keys, self._node = current, keys, node
        self._limit, self._clock = limit, clock
        self._redact = redactor(secrets)
        self._frequent = (keys.progress(), keys.snapshots())
        """Prefixes of keys that would fill the log, and that the status tells of."""
        self._waiting = bytearray()
        self._size, self._fd = 0, -1
        self._open(clock())

    # -- what happens -------------------------------------------------------------------------

    def observed(self, event: LocalEvent, at: float, state: NodeState) -> None:
        """Record an event, with the state that follows from it."""
        self.state = state
        if not isinstance(event, ORDINARY):
            self._put(at, {"event": event})

    def read(self, changed: StoreChanged, at: float, seen: RunState) -> None:
        """Record what etcd has delivered, with the state of the run that follows from it."""
        self.seen = seen
        for item in changed.items:
            if told := self._delivered(item):
                self._put(at, {"store": told})

    def _delivered(self, item: WatchItem) -> Mapping[str, object]:
        found: dict[str, StoredValue | None]
        match item:
            case Change(key, value):
                found = {key: value}
            case Reset(values):
                found = {value.key: value for value in values}
            case Health(healthy):
                return {"answers": healthy}
        return {
            key.removeprefix(self._keys.root): None if value is None else _readable(value)
            for key, value in found.items()
            if not key.startswith(self._frequent)
        }

    def decided(self, at: float, decision: AgentDecision) -> None:
        """Record a decision, and writes all that has come together."""
        actions = [each for each in decision.actions if not isinstance(each, ORDINARY)]
        if actions:
            self._put(at, {"decided": [{type(each).__name__: each} for each in actions]})
        self._write()
        if self._size >= self._limit:
            self._open(at)

    # -- its end ------------------------------------------------------------------------------

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Record how the agent ends: with a traceback where that was not meant."""
        why = "" if error is None else "".join(traceback.format_exception(kind, error, trace))
        self._put(self._clock(), {"ended": why.encode(errors="backslashreplace").decode()})
        self._write()
        self._end()

    # -- writing ------------------------------------------------------------------------------

    def _put(self, at: float, told: Mapping[str, object]) -> None:
        if self._fd < 0:
            return
        try:
            line = _encode({"at": at, **told})
        except Exception as error:  # a value that cannot be written must not end the agent
            line = _encode({"at": at, "unwritten": f"{type(error).__name__}: {error!r:.200}"})
        self._waiting += line + b"\n"

    def _open(self, at: float) -> None:
        """Begins a file; the one before is kept."""
        try:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                self.path.replace(earlier(self.path))
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            self._fd, self._size = os.open(self.path, flags, 0o600), 0
        except OSError as error:
            self._give_up(error)
        whose = {"run": self._keys.run, "node": self._node, "pid": os.getpid()}
        self._put(at, {"opened": {"version": __version__, "protocol": PROTOCOL, **whose}})
        self._write()

    def _write(self) -> None:
        if self._fd >= 0 and self._waiting:
            data = self._redact(self._waiting.decode()).encode()
            try:
                written = os.write(self._fd, data)
                self._size += written
                if written < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                self._give_up(error)
        self._waiting.clear()

    def _give_up(self, error: OSError) -> None:
        logger.warning(f"{self.path}: {error.strerror}: this node keeps no event log")
        self._end()

    def _end(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _readable(value: StoredValue) -> object:
    try:
        return msgspec.json.decode(plain(value.data))
    except msgspec.DecodeError:
        return "not a value of spotelastic"
