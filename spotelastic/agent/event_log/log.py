"""The event log of an agent: a bounded file of what the agent was told, and what it decided.

    <logs>/agent-<node>.events      what happens now
    <logs>/agent-<node>.events.1    what came before, as much again

Each file begins with the node's whole state. Every later record is an event, a decision, or a
change of the state that no event tells of. So `replay.py` can go through the same decisions again.

A turn of the agent's loop appends its records with one write, before it acts on the decision. What
was appended survives the agent, however that ends: SIGKILL too. Trouble with the disk ends the log,
never the agent.
"""

import errno
import json
import logging
import os
import re
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from operator import is_not
from pathlib import Path
from types import TracebackType
from typing import Any

from spotelastic.agent.decide import AgentDecision
from spotelastic.agent.event_log.codec import LENGTH, encode
from spotelastic.agent.state.values import NodeState
from spotelastic.agent.watches import StoreChanged
from spotelastic.clock import Clock, unbroken
from spotelastic.model.ids import new_id
from spotelastic.model.protocol import PROTOCOL
from spotelastic.redaction import SHORTEST
from spotelastic.rendezvous.view import RunState
from spotelastic.version import __version__

logger = logging.getLogger(__name__)

LIMIT = 4 * 2**20
"""Bytes of one of the two files."""
FORMAT = 1
"""Number of this format. A file of another one is not read."""
OPENED, EVENT, STORE, STATE, SEEN, DECIDED, LOST, CLOSED = range(8)
"""Kinds of records; `codec.py` says what each of them holds."""


def log_file(folder: Path, node: str) -> Path:
    """Returns the current file of a node's log."""
    return folder / f"agent-{re.sub(r'[^A-Za-z0-9_.-]', '_', node)}.events"


def earlier(current: Path) -> Path:
    """Returns the file with what came before."""
    return current.with_name(f"{current.name}.1")


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose log it is. The header of each file holds it."""

    run: str
    node: str


class EventLog:
    """Writes the log of one agent. Used by the agent's main thread, from the first state on.

    `state` and `seen` are what a reader of the log knows at this point. Another thread may read
    them: they are immutable.
    """

    def __init__(
        self,
        current: Path,
        origin: Origin,
        state: NodeState,
        seen: RunState,
        *,
        secrets: Iterable[str] = (),
        limit: int = LIMIT,
        clock: Clock = unbroken,
    ) -> None:
        self.state, self.seen = state, seen
        self.path, self._origin, self._limit, self._clock = current, origin, limit, clock
        self._masks = masks(secrets)
        self._log, self._part = new_id(), 0
        self._ids: list[str] = []
        self._waiting = bytearray()
        self._size, self._fd = 0, -1
        self._open(clock())

    # -- what happens -------------------------------------------------------------------------

    def new_id(self) -> str:
        """Returns a new id for a decision, which is recorded with it."""
        made = new_id()
        self._ids.append(made)
        return made

    def observed(self, event: object, at: float, before: NodeState, after: NodeState) -> None:
        """Records an event that `observe` has folded."""
        self._keep_up(at, before, self.seen)
        self._put(EVENT, at, type(event).__name__, event)
        self.state = after

    def read(self, changed: StoreChanged, at: float, before: RunState, after: RunState) -> None:
        """Records what etcd has delivered."""
        self._keep_up(at, self.state, before)
        self._put(STORE, at, changed.prefix, changed.items)
        self.seen = after

    def decided(self, state: NodeState, seen: RunState, at: float, decision: AgentDecision) -> None:
        """Records a decision, and writes all that has come together."""
        self._keep_up(at, state, seen)
        actions = [(type(each).__name__, each) for each in decision.actions]
        self._put(DECIDED, at, decision.wake_at, actions, self._ids)
        self._ids.clear()
        self._write()
        if self._size >= self._limit:
            self._part += 1
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
        """Records how the agent ends: with a traceback where that was not meant."""
        why = "" if error is None else "".join(traceback.format_exception(kind, error, trace))
        self._put(CLOSED, self._clock(), why.encode(errors="backslashreplace").decode())
        self._write()
        self._end()

    # -- writing ------------------------------------------------------------------------------

    def _keep_up(self, at: float, state: NodeState, seen: RunState) -> None:
        """Records what has changed without an event since the last record."""
        if state is not self.state:
            self._put(STATE, at, _changes(self.state, state))
            self.state = state
        if seen is not self.seen:
            self._put(SEEN, at, _changes(self.seen, seen))
            self.seen = seen

    def _put(self, kind: int, at: float, *told: object) -> None:
        if self._fd < 0:
            return
        try:
            data = encode((kind, at, *told))
        except Exception as error:  # a value that cannot be written must not end the agent
            data = encode((LOST, at, f"{type(error).__name__}: {error!r:.200}"))
        self._waiting += len(data).to_bytes(LENGTH, "big")
        self._waiting += masked(data, self._masks)

    def _open(self, at: float) -> None:
        """Begins a file with the whole state; the one before is kept."""
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
        self._put(OPENED, at, self._header(), self.state, self.seen)
        self._write()

    def _header(self) -> Mapping[str, object]:
        return {
            "format": FORMAT,
            "version": __version__,
            "protocol": PROTOCOL,
            "run": self._origin.run,
            "node": self._origin.node,
            "pid": os.getpid(),
            "log": self._log,
            "part": self._part,
        }

    def _write(self) -> None:
        if self._fd >= 0 and self._waiting:
            try:
                written = os.write(self._fd, self._waiting)
                self._size += written
                if written < len(self._waiting):  # what follows half a record cannot be read
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


_FIELDS = {kind: tuple(each.name for each in fields(kind)) for kind in (NodeState, RunState)}


def _changes(before: Any, after: Any) -> Mapping[str, object]:
    """Returns the fields in which two values of one dataclass differ."""
    return {
        name: value
        for name in _FIELDS[type(after)]
        if is_not(value := getattr(after, name), getattr(before, name))
    }


def masked(data: bytes, masks: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Returns a record without secrets, as long as it was."""
    for secret, mask in masks:
        data = data.replace(secret, mask)
    return data


def masks(secrets: Iterable[str]) -> tuple[tuple[bytes, bytes], ...]:
    """Returns the bytes of each secret, and as many asterisks: a record keeps its length."""
    forms = {form.encode(errors="replace") for form in written_forms(secrets)}
    return tuple((form, b"*" * len(form)) for form in sorted(forms, key=len, reverse=True))


def written_forms(secrets: Iterable[str]) -> frozenset[str]:
    """Returns each secret and each long line of one, as it is and as JSON has it."""
    parts = {part for secret in secrets for part in (secret, *secret.splitlines())}
    long = [part for part in parts if len(part) >= SHORTEST]
    return frozenset((*long, *(json.dumps(part, ensure_ascii=False)[1:-1] for part in long)))
