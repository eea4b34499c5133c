"""The agent's handle on the zygote: starts children, ends them, and reports their ends as events.

One reader thread puts the events into the agent's queue. When the zygote dies, its children die
with it (parent-death signal, and a sweep for detached ones), which is reported as their exit.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spotelastic_checkpoints.isolated import command

from spotelastic.agent.state.events import Exited, WorkerFailing, ZygoteGone
from spotelastic.agent.workers import trouble
from spotelastic.agent.workers.logs import last_lines, stacks
from spotelastic.agent.workers.zygote import MODULE, PACKET, ZygotePlan
from spotelastic.linux import END_WITHIN, end_marked, is_ending
from spotelastic.signals import send


@dataclass(frozen=True, slots=True)
class Warm:
    """The zygote is ready. `info` has versions, and what could not be preloaded."""

    info: Mapping[str, Any]


PoolEvent = Warm | Exited | WorkerFailing | ZygoteGone


@dataclass(frozen=True, slots=True)
class StartOrder:
    """What to start. `host` and `port` are for a store only; with `port` 0 it takes a new one."""

    id: str
    kind: str
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None
    cwd: str = ""
    host: str = ""
    port: int = 0
    entry: str = "script"
    numa: str = ""
    finalize: float = 10.0
    """Seconds that a worker which has failed may take to end."""
    stacks: str = ""
    """File for the stacks of all threads, which the signal `process.STACKS` requests."""
    files_of: int = -1
    """The group rank whose kept files are put back first; -1: none."""


class Zygote:
    """A running zygote. Must be created on the agent's main thread: it dies with that thread.

    `mark` is the variable in `env` by which processes that it leaves behind are recognized and
    ended.
    """

    def __init__(
        self,
        plan: ZygotePlan,
        env: Mapping[str, str],
        mark: Mapping[str, str],
        sink: Callable[[PoolEvent], None],
        python: str = sys.executable,
    ) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PACKET)
        with theirs:
            fd = theirs.fileno()
            self._process = subprocess.Popen(
                command(MODULE, str(fd), json.dumps(asdict(plan)), python=python),
                env=dict(env),
                pass_fds=(fd,),
                stdin=None if _has_input() else subprocess.DEVNULL,
                start_new_session=True,
            )
        self.warm = False
        self._channel = ours
        self._mark = mark
        self._sink = sink
        self._lock = threading.Lock()
        self._pids: dict[str, int] = {}
        self._ordered: set[str] = set()
        self._over: set[str] = set()
        """Whose end was told."""
        self._reader = threading.Thread(target=self._read, name="zygote", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, order: StartOrder, *output: int) -> None:
        """Request a child that writes to `output`: one descriptor, or stdout's and stderr's.

        The descriptors stay the caller's. Raises OSError if the zygote is gone.
        """
        with self._lock:
            self._ordered.add(order.id)
        message = asdict(order) | {"env": dict(order.env or {})}
        socket.send_fds(self._channel, [json.dumps({"start": message}).encode()], list(output))

    def end(self, ids: Sequence[str], sig: int = signal.SIGKILL) -> frozenset[str]:
        """End children, and return those that had ended before, by themselves.

        SIGTERM goes to each child, then to what it leaves behind; SIGKILL to all. SIGKILL ends the
        children even if the zygote does not answer. It does not go to their process groups, to
        which their cleaners belong.
        """
        # Looked at before the signal: after it, nothing tells whose doing an end was.
        with self._lock:
            pids = {name: self._pids[name] for name in self._pids.keys() & set(ids)}
            over = self._over & set(ids)
        over |= {name for name, pid in pids.items() if is_ending(pid)}
        message = {"end": {"ids": list(ids), "signal": sig}}
        with contextlib.suppress(OSError):
            self._channel.send(json.dumps(message).encode())
        if sig == signal.SIGKILL:
            self.send_signal(ids, sig)
        return frozenset(over)

    def send_signal(self, ids: Sequence[str], sig: int) -> None:
        """Send a signal to the children alone."""
        with self._lock:
            for name in self._pids.keys() & set(ids):
                send(self._pids[name], sig)

    def close(self) -> None:
        """End the zygote and everything below it."""
        if self.warm:
            with contextlib.suppress(OSError):
                self._channel.shutdown(socket.SHUT_WR)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_WITHIN)
        self._process.kill()
        self._process.wait()
        self._reader.join(END_WITHIN)
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
                self.warm = True
                self._sink(Warm(message["warm"]))
            elif "started" in message:
                with self._lock:
                    self._pids[message["started"]["id"]] = message["started"]["pid"]
            elif "failing" in message:
                self._sink(WorkerFailing(**message["failing"]))
            elif "ended" in message:
                self._ended(Exited(**message["ended"]))
        with self._lock:
            lost = sorted(self._ordered)
            self._ordered.clear()
            self._over.update(lost)
        # At once, before the peers' failures end this round: those would hide whose doing it was.
        for name in lost:
            self._sink(Exited(name, -signal.SIGKILL, gone=False))
        stuck = end_marked(self._mark, END_WITHIN)
        for name in lost:
            self._sink(Exited(name, -signal.SIGKILL, gone=not stuck))
        self._sink(ZygoteGone())

    def _ended(self, event: Exited) -> None:
        with self._lock:
            self._pids.pop(event.id, None)
            self._over.add(event.id)
            if event.gone:
                self._ordered.discard(event.id)
        self._sink(event)


def _has_input() -> bool:
    """Whether workers can read from this process's input. A descriptor of Python's own is none."""
    try:
        return os.get_inheritable(0)
    except OSError:
        return False


def read_error_file(path: Path) -> tuple[str, str]:
    """Return message and traceback that a worker left in torch's error file; empty if none."""
    try:
        content = json.loads(path.read_text())["message"]
        if isinstance(content, str):
            return trouble.without_advice(content), ""
        trace = str(content.get("extraInfo", {}).get("py_callstack", ""))
        return trouble.without_advice(str(content["message"])), trace
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "", ""


def read_trouble(code: int, folder: Path, rank: int, log: Path, script: Path) -> tuple[str, str]:
    """Return the message and the traceback of a worker that ended with this `code`.

    They come from its files in a `folder`, and from its log. `script` is the script's folder.
    """
    message, trace = read_error_file(folder / f"error-{rank}.json")
    if not message and trouble.has_last_words(code):
        return trouble.by_signal(code, last_lines(log), _whole(stacks(folder, rank)), script)
    return message or trouble.describe_exit(code), trace


def _whole(path: Path) -> str:
    """Return all stacks in a worker's dump; empty if none."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def read_stack(path: Path) -> str:
    """Return the last stack of a worker's main thread in its dump, innermost call first.

    Empty if there is none.

    The kernel delivers a process's signal to its main thread if possible, even while that blocks.
    """
    _, found, stack = _whole(path).rpartition("Current thread ")
    # Other threads, or the beginning of a further dump, may come behind it.
    return (found + stack).partition("\nThread ")[0]
