"""Joins the local cloud for a command, so that it lives at least until the command leaves.

It is the command's side of users.py.
"""

import contextlib
import json
import os
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO

from spotelastic.errors import EnvironmentFailure, Unavailable
from spotelastic.local import cloud, users
from spotelastic.local.base import processes
from spotelastic.local.cloud import CloudInfo
from spotelastic.local.users import Ended

ENDS_WITHIN = 60.0
"""Seconds that a cloud which accepts no more users may take to end."""
TAKEN_DOWN_WITHIN = 660.0
"""Seconds that a cluster's teardown and the cloud's answer may take."""

Say = Callable[[str], None]


@dataclass(slots=True)
class CloudUse:
    """A command's use of the cloud, which lives until it is left or the process ends."""

    info: CloudInfo
    _connection: socket.socket
    cluster: str = ""
    """The cluster that the command works on."""
    _answers: IO[str] = field(init=False)

    def __post_init__(self) -> None:
        self._answers = self._connection.makefile()

    def works_on(self, cluster: str, *, stays: bool | None = None) -> None:
        """Declare the cluster. `stays`: whether it outlives its commands; None: unchanged."""
        self.cluster = cluster
        line: dict[str, object] = {"cluster": cluster}
        self._tell(line if stays is None else line | {"stays": stays})

    def leave(self, say: Say, *, down: bool = False) -> Ended:
        """End the use. The cluster and the cloud end if they are no longer needed.

        `down`: the cluster ends even if other commands work on it. Raises `EnvironmentFailure` if
        it could not be taken down.
        """
        if down:
            self._tell({"down": True})
        ended: Ended = "nothing"
        with self._connection, self._answers, contextlib.suppress(ConnectionError):
            self._connection.shutdown(socket.SHUT_WR)
            for line in self._answers:
                answer = json.loads(line)
                if "say" in answer:
                    say(answer["say"])
                if "failed" in answer:
                    raise EnvironmentFailure(answer["failed"])
                ended = answer.get("ended", ended)
        if ended == "cloud":
            say("ending the local cloud")
            cloud.stop(self.info)
        return ended

    def close(self) -> None:
        """End the use without waiting."""
        self._answers.close()
        self._connection.close()

    def _tell(self, line: dict[str, object]) -> None:
        """Send a line and wait until it is acknowledged.

        From then on the end of another command does not take the cluster down.
        """
        with contextlib.suppress(OSError):  # the cloud has ended; the next call reports it better
            self._connection.sendall(json.dumps(line).encode() + b"\n")
            for answer in self._answers:
                if "heard" in json.loads(answer):
                    return


def join(starting: Callable[[], None]) -> tuple[CloudUse, bool]:
    """Join the running cloud, or start one (True) that ends with its last user.

    `starting` is called before one is started.
    """
    while True:
        if (use := enter()) is not None:
            return use, False
        starting()
        ours, theirs = socket.socketpair()
        with theirs:
            ours.settimeout(TAKEN_DOWN_WITHIN)
            try:
                info = cloud.start(user=theirs)
            except cloud.RunsAlready:  # another command was faster
                ours.close()
                continue
            except BaseException:
                ours.close()
                raise
        return CloudUse(info, ours), True


def enter() -> CloudUse | None:
    """Join the running cloud; None if there is none. Waits for one that is just ending."""
    while (info := cloud.find()) is not None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(TAKEN_DOWN_WITHIN)
            connection.connect(users.address(info.id))
            if connection.recv(1, socket.MSG_PEEK):  # the welcome
                return CloudUse(info, connection)
        except ConnectionError:
            pass
        except BaseException:
            connection.close()
            raise
        connection.close()
        _await_end(info)
    return None


def _await_end(info: CloudInfo) -> None:
    with contextlib.suppress(ProcessLookupError):
        death = os.pidfd_open(info.pid)
        try:
            if processes.started_at(info.pid) != info.started:
                return
            if not select.select([death], [], [], ENDS_WITHIN)[0]:
                raise Unavailable(
                    f"the local cloud (pid {info.pid}) has neither answered nor ended for "
                    f"{ENDS_WITHIN:g} s: kill that process, and try again"
                )
        finally:
            os.close(death)
