"""Counts the users of the local cloud, and decides what ends with a command.

The users are commands and clusters.

Each command holds a connection, which ends with it. It says which cluster it works on, and whether
the cluster outlives it. A cluster that does not ends with the last command that works on it,
however that ends. The cloud ends when no command uses it and it has no cluster.

The connection carries lines of JSON. A command sends `{"cluster": ..., "stays": ...}` and `{"down":
true}`, each answered by `{"heard": true}`, so that no other command's end comes in between. Once it
sends no more, it gets `{"say": ...}`, then `{"failed": ...}` or `{"ended": ...}` with what has
ended: "nothing", "cluster", or "cloud", which is about to end.
"""

import contextlib
import json
import logging
import os
import socket
import struct
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Literal

from spotelastic.errors import told

Say = Callable[[str], None]
Ended = Literal["nothing", "cluster", "cloud"]

ACCEPT_AGAIN = 0.1
"""Seconds until the next try to accept a connection, after one that failed."""

_log = logging.getLogger(__name__)


def address(cloud: str) -> str:
    """Return the address of an abstract socket, which is as wide as the loopback interface."""
    return f"\0spotelastic-users-{cloud}"


@dataclass(eq=False, slots=True)
class _User:
    """One command."""

    cluster: str = ""
    down: bool = False
    """Whether the command takes the cluster down despite other users, or without a cluster the
    cloud."""


class Users:
    """Counts users, and reports when the cloud is to end."""

    def __init__(
        self,
        cloud: str,
        *,
        clusters: Callable[[], Collection[str]],
        take_down: Callable[[str, Say], None],
        over: Callable[[], None],
        ends_unused: bool,
    ) -> None:
        """`ends_unused` False: only a command that takes the last cluster down ends the cloud."""
        self._clusters = clusters
        self._take_down = take_down
        self._over = over
        self._ends_unused = ends_unused
        self._lock = Lock()
        self._users: set[_User] = set()
        self._stays: dict[str, bool] = {}
        """By cluster that a command has made: whether it outlives its commands."""
        self._closing = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(address(cloud))
        self._listener.listen()

    def start(self, first: Iterable[socket.socket]) -> None:
        """Admit commands; `first` is the connection of the command that started the cloud."""
        for connection in first:
            self._admit(connection)
        Thread(target=self._listen, name="users", daemon=True).start()

    def look(self) -> None:
        """Check whether the cloud is still used: a cluster may be gone."""
        with self._lock:
            self._close_if_unused(self._ends_unused)
        if self._closing:
            self._over()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # no descriptor is left, or the command has gone: others may come
                Event().wait(ACCEPT_AGAIN)
                continue
            if _is_ours(connection):
                self._admit(connection)
            else:
                connection.close()

    def _admit(self, connection: socket.socket) -> None:
        user = _User()
        with self._lock:
            if self._closing:
                connection.close()
                return
            self._users.add(user)
        Thread(target=self._serve, args=(connection, user), name="user", daemon=True).start()

    def _serve(self, connection: socket.socket, user: _User) -> None:
        def answer(**line: object) -> None:
            with contextlib.suppress(OSError):  # the command has ended
                connection.sendall(json.dumps(line).encode() + b"\n")

        with connection:
            answer(welcome=True)
            # A line that makes no sense ends the connection, as its end does: else the cloud would
            # count a command that is not there, and never end.
            with (
                contextlib.suppress(OSError, ValueError, AttributeError, RecursionError),
                connection.makefile() as lines,
            ):
                for line in lines:
                    self._hear(user, json.loads(line))
                    answer(heard=True)
            try:
                ended = self._leave(user, lambda text: answer(say=text))
            except Exception as error:  # the cloud would not end with its last user any more
                _log.warning("%s could not be taken down: %s", user.cluster, told(error))
                answer(failed=told(error))
            else:
                answer(ended=ended)
        if self._closing:
            self._over()

    def _hear(self, user: _User, line: dict[str, object]) -> None:
        with self._lock:
            user.cluster = str(line.get("cluster", user.cluster))
            user.down = bool(line.get("down", user.down))
            if "stays" in line:
                self._stays[user.cluster] = bool(line["stays"])

    def _leave(self, user: _User, say: Say) -> Ended:
        with self._lock:
            others = [other.cluster for other in self._users if other is not user]
            may_end = self._ends_unused or user.down
            clusters, name = self._clusters(), user.cluster
            owned = name in clusters and not self._stays.get(name, True)
            goes = bool(name) and (user.down or (owned and name not in others))
            ends = parting(name, others, clusters, goes=goes, may_end=may_end)
            self._closing = self._closing or ends == "cloud"
        try:
            if ends == "cluster":
                self._take_down(name, say)
            elif ends == "nothing" and owned:
                say(f"{name} keeps running: another command works on it")
        finally:
            with self._lock:
                self._users.discard(user)
                self._close_if_unused(may_end)
        return "cloud" if self._closing else ends

    def _close_if_unused(self, may_end: bool) -> None:
        if may_end and not self._users and not self._clusters():
            self._closing = True


def parting(
    name: str, others: Collection[str], clusters: Collection[str], *, goes: bool, may_end: bool
) -> Ended:
    """Return what ends with a command that worked on the cluster `name`, if any (pure).

    `others`: the clusters of the other commands, "" for one that has not said yet. `goes`: the
    cluster ends now. If the cloud is not needed any more, it ends together with the cluster, which
    is faster.
    """
    left = set(clusters) - ({name} if goes else set())
    missed = any(other != name or not goes for other in others)
    if may_end and not left and not missed:
        return "cloud"
    return "cluster" if goes else "nothing"


def _is_ours(connection: socket.socket) -> bool:
    """Whether the connection comes from a process of the same user."""
    size = struct.calcsize("3i")
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return bool(struct.unpack("3i", peer)[1] == os.getuid())
