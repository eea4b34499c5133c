"""What the agent says to its node's checkpoint daemon. Stdlib and msgspec only.

Every call has a deadline and raises `DaemonUnavailable` when it passes or the daemon is gone; the
next call connects anew, so that one client outlives a restart of the daemon.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

from spotelastic_checkpoints.errors import DaemonUnavailable
from spotelastic_checkpoints.messages import (
    Begin,
    ClaimEpoch,
    Closed,
    DaemonEvent,
    End,
    Flush,
    GetStatus,
    SetDeadline,
    SetTarget,
    Subscribe,
)
from spotelastic_checkpoints.protocol.connection import Connection
from spotelastic_checkpoints.types import DaemonStatus, EpochClaim, RoundInfo, Schedule, WorkerStep

T = TypeVar("T")

_SLACK = 2.0
"""Seconds that an answer may take beyond the deadline that the request itself carries."""


class DaemonClient:
    """Thread-safe. Calls that may take long use a connection of their own and block no other."""

    def __init__(self, socket: str, *, timeout: float = 5.0) -> None:
        self._path = socket
        self._timeout = timeout
        self._lock = threading.Lock()
        self._connection: Connection | None = Connection.unix(socket, timeout)
        self._subscriptions: list[tuple[Connection, threading.Thread]] = []

    def begin(self, round: RoundInfo) -> None:
        """A round starts on this node; before its workers do.

        The same round again (a later epoch, a restarted daemon) keeps its workers' pages.
        """
        self._call(Begin(round), type(None))

    def claim(self, owner: str, *, timeout: float, take_over: bool = False) -> EpochClaim:
        """Claim the store for a new epoch (docs/explanation/protocols.md, Commit).

        Raises `StorageUnavailable` after `timeout` seconds, and `StorageRefused` when the store
        belongs to another owner, unless `take_over`.
        """
        return self._call_alone(ClaimEpoch(owner, timeout, take_over), EpochClaim, timeout)

    def status(self) -> DaemonStatus:
        return self._call(GetStatus(), DaemonStatus)

    def set_target(
        self, round: str, proposal: str, target: int, schedule: Schedule | None = None
    ) -> list[WorkerStep]:
        """Write the target into every worker's page, then read their steps; 0 withdraws it.

        Workers that wait at another target go on, by `schedule` where it is given.
        """
        return self._call(SetTarget(round, proposal, target, schedule), list[WorkerStep])

    def end(self) -> None:
        """The round's workers are dead: unsealed slots are dropped, pages are final on return."""
        self._call(End(), type(None))

    def flush(self, timeout: float) -> bool:
        """Wait until all that is due is committed; False when it was not within `timeout` s."""
        return self._call_alone(Flush(timeout), bool, timeout)

    def hurry(self, deadline: float) -> None:
        """This node will be gone at the deadline (epoch seconds): upload the newest sealed save."""
        self._call(SetDeadline(deadline), type(None))

    def subscribe(self, sink: Callable[[DaemonEvent], None]) -> None:
        """Events from now on, in order, from a thread of their own; `Closed` is the last."""
        connection = Connection.unix(self._path, self._timeout)
        connection.call(Subscribe(), type(None), self._timeout)

        def deliver() -> None:
            try:
                connection.events(sink)
            except DaemonUnavailable:
                sink(Closed())

        thread = threading.Thread(target=deliver, name="daemon-events", daemon=True)
        self._subscriptions.append((connection, thread))
        thread.start()

    def close(self) -> None:
        """Ends the subscriptions too."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
        for connection, thread in self._subscriptions:
            connection.close()
            if thread is not threading.current_thread():
                thread.join(self._timeout)
        self._subscriptions.clear()

    def _call(self, request: object, kind: type[T]) -> T:
        with self._lock:
            if self._connection is None:
                self._connection = Connection.unix(self._path, self._timeout)
            try:
                return self._connection.call(request, kind, self._timeout)
            except DaemonUnavailable:
                self._connection.close()
                self._connection = None
                raise

    def _call_alone(self, request: object, kind: type[T], timeout: float) -> T:
        connection = Connection.unix(self._path, self._timeout)
        try:
            return connection.call(request, kind, timeout + _SLACK)
        finally:
            connection.close()
