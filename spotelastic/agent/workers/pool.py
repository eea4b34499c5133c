"""The agent's side of the zygote: fork, kill, and hear of exits as events.

Events are put into the agent's queue by one reader thread. Kills go to the worker's whole process
group. After the zygote is gone its children are gone too (parent-death signal), which is reported
as their exit.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotelastic.agent.workers.zygote import PACKET


@dataclass(frozen=True, slots=True)
class Warm:
    """The zygote is ready to fork; `info` tells versions and what could not be preloaded."""

    info: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Exited:
    """A child ended; `code` is negative for a signal."""

    id: str
    code: int


@dataclass(frozen=True, slots=True)
class ZygoteGone:
    """The zygote ended, and all that it had forked."""


PoolEvent = Warm | Exited | ZygoteGone


@dataclass(frozen=True, slots=True)
class Order:
    """What to fork. `host` is only for a store."""

    id: str
    kind: str
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None
    cwd: str = ""
    host: str = ""
    entry: str = "script"
    numa: str = ""


class Zygote:
    """A running zygote. Must be made on the agent's main thread: it dies with that thread."""

    def __init__(
        self, modules: Sequence[str], env: Mapping[str, str], sink: Callable[[PoolEvent], None]
    ) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PACKET)
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "spotelastic.agent.workers.zygote",
                    str(theirs.fileno()),
                    ",".join(modules),
                    str(os.getpid()),
                ],
                env=dict(env),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._channel = ours
        self._sink = sink
        self._lock = threading.Lock()
        self._pids: dict[str, int] = {}
        self._ordered: set[str] = set()
        self._killed: set[str] = set()
        self._reader = threading.Thread(target=self._read, name="zygote", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def fork(self, order: Order, *output: int) -> None:
        """Ask for a child that writes to `output`: one descriptor, or stdout's and stderr's.

        They stay the caller's.

        Raises OSError when the zygote is gone.
        """
        with self._lock:
            self._ordered.add(order.id)
        message = {
            "id": order.id,
            "kind": order.kind,
            "argv": list(order.argv),
            "env": dict(order.env or {}),
            "cwd": order.cwd,
            "host": order.host,
            "entry": order.entry,
            "numa": order.numa,
        }
        socket.send_fds(self._channel, [json.dumps({"fork": message}).encode()], list(output))

    def kill(self, ids: Sequence[str], sig: int = signal.SIGKILL) -> None:
        """Signal children and all of their process group; one still to be forked is hit then."""
        with self._lock:
            for name in ids:
                pid = self._pids.get(name)
                if pid is None and name in self._ordered:
                    self._killed.add(name)
                elif pid is not None:
                    _signal_group(pid, sig)

    def close(self) -> None:
        """End the zygote and, by their parent-death signal, all that it forked."""
        self._process.kill()
        self._process.wait()
        self._reader.join(timeout=5)
        self._channel.close()

    def _read(self) -> None:
        while True:
            try:
                data = self._channel.recv(PACKET)
            except OSError:
                data = b""
            if not data:
                break
            message = json.loads(data)
            if "warm" in message:
                self._sink(Warm(message["warm"]))
            elif "forked" in message:
                self._forked(message["forked"]["id"], message["forked"]["pid"])
            elif "exited" in message:
                self._exited(message["exited"]["id"], message["exited"]["code"])
        with self._lock:
            lost = sorted(self._ordered)
            self._ordered.clear()
        for name in lost:
            self._sink(Exited(name, -signal.SIGKILL))
        self._sink(ZygoteGone())

    def _forked(self, name: str, pid: int) -> None:
        with self._lock:
            self._pids[name] = pid
            if name in self._killed:
                _signal_group(pid, signal.SIGKILL)

    def _exited(self, name: str, code: int) -> None:
        with self._lock:
            pid = self._pids.pop(name, None)
            self._ordered.discard(name)
            self._killed.discard(name)
            if pid is not None:
                _signal_group(pid, signal.SIGKILL)  # what the child left behind in its group
        self._sink(Exited(name, code))


def _signal_group(pid: int, sig: int) -> None:
    try:
        os.killpg(pid, sig)
    except ProcessLookupError:
        try:
            os.kill(pid, sig)  # forked, but not yet the leader of its own session
        except ProcessLookupError:
            return
    except PermissionError:
        return


def read_error_file(path: Path) -> tuple[str, str]:
    """Message and traceback that a worker left in torch's error file format; empty if none."""
    try:
        content = json.loads(path.read_text())["message"]
        if isinstance(content, str):
            return content, ""
        return str(content["message"]), str(content.get("extraInfo", {}).get("py_callstack", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "", ""
