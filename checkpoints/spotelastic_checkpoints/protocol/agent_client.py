"""Lets the agent talk to the checkpoint daemon of its node, with a deadline on every call.

A call raises `DaemonUnavailable` when the deadline passes or the daemon is gone. The next call
connects again, so that one client survives a restart of the daemon. Needs only msgspec.
"""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from spotelastic_checkpoints.errors import DaemonUnavailable
from spotelastic_checkpoints.messages import (
    Begin,
    ClaimEpoch,
    Closed,
    DaemonEvent,
    End,
    Flush,
    FlushFiles,
    GetStatus,
    SetDeadline,
    SetTarget,
    Subscribe,
)
from spotelastic_checkpoints.protocol.connection import Connection
from spotelastic_checkpoints.types import DaemonStatus, EpochClaim, RoundInfo, Schedule, WorkerStep

T = TypeVar("T")

ANSWER_WITHIN = 5.0
"""Seconds for calls that are answered at once."""
_SLACK = 2.0
"""Seconds that an answer may take beyond the timeout in the request itself."""


class DaemonClient:
    """The agent's client of the daemon; thread-safe.

    Calls that may take long use a connection of their own, and block no other call.
    """

    def __init__(self, socket: str) -> None:
        """Connect to the daemon's socket."""
        self._path = socket
        self._lock = threading.Lock()
        self._connection: Connection | None = Connection.unix(socket, ANSWER_WITHIN)
        self._subscriptions: list[tuple[Connection, threading.Thread]] = []

    def begin(self, round: RoundInfo) -> None:
        """Tell the daemon that a round starts, before its workers do.

        Sent again for the same round, with a later epoch or to a restarted daemon, it keeps the
        pages of the workers.
        """
        self._call(Begin(round), type(None))

    def claim(
        self,
        owner: str,
        *,
        timeout: float,
        take_over: bool = False,
        rounds: Sequence[str] = (),
        run_id: str = "",
    ) -> EpochClaim:
        """Claim the next epoch of the storage (docs/explanation/protocols.md, Commits).

        `rounds` are the incarnations of the round that claims and of the one before it. `run_id`
        is the id for experiment trackers that a storage gets which has none. Raises
        `StorageUnavailable` after `timeout` seconds, and `StorageOwned` when the storage belongs
        to another run, unless `take_over`.
        """
        request = ClaimEpoch(owner, timeout, take_over, tuple(rounds), run_id)
        return self._call_alone(request, EpochClaim, timeout)

    def status(self) -> DaemonStatus:
        """Return what the daemon holds and does."""
        return self._call(GetStatus(), DaemonStatus)

    def set_target(
        self, round: str, proposal: str, target: int, schedule: Schedule | None = None
    ) -> list[WorkerStep]:
        """Write the target into every worker's page, then return how far the workers are.

        0 withdraws the target. Workers that wait at another target go on, by `schedule` where it is
        given.
        """
        return self._call(SetTarget(round, proposal, target, schedule), list[WorkerStep])

    def end(self) -> None:
        """Tell the daemon that the round's workers are dead.

        Unsealed slots are dropped. When this returns, the pages do not change any more.
        """
        self._call(End(), type(None))

    def flush(self, timeout: float) -> bool:
        """Wait until everything that is due is committed.

        Returns False if `timeout` (s) was not enough.
        """
        return self._call_alone(Flush(timeout), bool, timeout)

    def flush_files(self, timeout: float) -> bool:
        """Wait until the last files of the script are kept.

        Returns False if `timeout` (s) was not enough, or if they could not be.
        """
        return self._call_alone(FlushFiles(timeout), bool, timeout)

    def hurry(self, deadline: float) -> None:
        """Tell the daemon when this node will be gone (epoch seconds).

        It then uploads the newest sealed save.
        """
        self._call(SetDeadline(deadline), type(None))

    def subscribe(self, sink: Callable[[DaemonEvent], None]) -> None:
        """Call `sink` with each event from now on, in order, from a thread.

        `Closed` is the last event.
        """
        connection = Connection.unix(self._path, ANSWER_WITHIN)
        connection.call(Subscribe(), type(None), ANSWER_WITHIN)

        def deliver() -> None:
            try:
                connection.events(sink)
            except DaemonUnavailable:
                sink(Closed())

        thread = threading.Thread(target=deliver, name="daemon-events", daemon=True)
        self._subscriptions.append((connection, thread))
        thread.start()

    def close(self) -> None:
        """Close the connection and end the subscriptions."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
        for connection, thread in self._subscriptions:
            connection.close()
            if thread is not threading.current_thread():
                thread.join(ANSWER_WITHIN)
        self._subscriptions.clear()

    def _call(self, request: object, kind: type[T]) -> T:
        with self._lock:
            if self._connection is None:
                self._connection = Connection.unix(self._path, ANSWER_WITHIN)
            try:
                return self._connection.call(request, kind, ANSWER_WITHIN)
            except DaemonUnavailable:
                self._connection.close()
                self._connection = None
                raise

    def _call_alone(self, request: object, kind: type[T], timeout: float) -> T:
        connection = Connection.unix(self._path, ANSWER_WITHIN)
        try:
            return connection.call(request, kind, timeout + _SLACK)
        finally:
            connection.close()
