"""Runs nodes of a rehearsal on this machine: processes of `spotelastic run`, and all below them."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spotelastic.errors import SpotelasticError
from spotelastic.signals import send

if TYPE_CHECKING:
    from spotelastic.store.tls import TlsFiles

MARK = "SPOTELASTIC_REHEARSAL_NODE"
"""Variable by which all processes of a node are found."""
ORDERS = "SPOTELASTIC_REHEARSAL"
SEED = "SPOTELASTIC_REHEARSAL_SEED"
LOOK = 0.05
_ENDED = re.compile(r"^\[spotelastic\] rank \d+: (.*)$", re.MULTILINE)
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')
_NOT_THE_SCRIPTS = ("/site-packages/", "/spotelastic/", "<frozen", "/lib/python")


class Stopped(SpotelasticError):
    """The rehearsal is being ended."""


class TooLong(SpotelasticError):
    """An act has taken longer than it may."""


@dataclass
class RehearsalNode:
    """One node."""

    name: str
    mark: str
    process: subprocess.Popen[bytes]
    output: Path
    since: float
    """When it was started."""

    @property
    def code(self) -> int | None:
        """Exit code; None while it runs."""
        return self.process.poll()

    def text(self) -> str:
        """Return what it has printed."""
        return self.output.read_text(errors="replace")

    def kill(self) -> None:
        """End everything on it at once, as when a machine vanishes."""
        mark = f"{MARK}={self.mark}\0".encode()
        send(self.process.pid, signal.SIGKILL)
        while found := [*_marked(mark)]:
            for pid in found:
                send(pid, signal.SIGKILL)
            time.sleep(0.01)
        self.process.wait()
        # What a run removes at its end; the next one on this machine would do it, too.
        for place in (Path("/dev/shm"), Path(tempfile.gettempdir())):
            for left in place.glob(f"spotelastic-*-{self.process.pid}-*"):
                shutil.rmtree(left, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Launch:
    """How the nodes of an act are started."""

    run: str
    """The run's name."""
    folder: Path
    """Where records and logs go."""
    storage: Path
    workdir: Path
    command: tuple[str, ...]
    """The script and its arguments."""
    nodes: str = "1"
    """Fewest and most nodes, as --nnodes has it."""
    workers: int = 1
    """Workers of each node."""
    flags: tuple[str, ...] = ()
    orders: Mapping[str, Any] | None = None
    seed: int = 1
    """What random numbers start from. Each start of a script has another one."""


class Nodes:
    """All nodes of a rehearsal. They end with it."""

    def __init__(self, endpoint: str, tls: "TlsFiles", within: float, gpus: int = 0) -> None:
        self._endpoint, self._tls = endpoint, tls
        self._within = within
        self._gpus = gpus
        self._running: list[RehearsalNode] = []
        self._lock = threading.Lock()
        self._stopped = False

    def start(self, launch: Launch, name: str, place: int = 0) -> RehearsalNode:
        """Start a node. On a machine with GPUs it has some of its own, by its `place`."""
        logs = launch.folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        mark, output = uuid.uuid4().hex, logs / f"{name}-{launch.seed}.out"
        env = {
            **os.environ,
            MARK: mark,
            ORDERS: json.dumps({"folder": str(launch.folder), **(launch.orders or {})}),
            SEED: str(launch.seed),
            "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", str(launch.seed)),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
            "GLOO_SOCKET_IFNAME": "lo",
            "SPOTELASTIC_REHEARSE": "off",
        }
        if self._gpus:
            own = range(place * launch.workers, (place + 1) * launch.workers)
            env["CUDA_VISIBLE_DEVICES"] = ",".join(str(each % self._gpus) for each in own)
        command = [
            *(sys.executable, "-m", "spotelastic", "run", "--rdzv-endpoint", self._endpoint),
            *("--rdzv-conf", f"{self._tls},daemon_tls=true"),
            *("--rdzv-id", launch.run, "--nnodes", launch.nodes, "--node-id", name),
            *("--nproc-per-node", str(launch.workers), "--local-addr", "127.0.0.1"),
            *("--storage", str(launch.storage), "--log-dir", str(logs / mark)),
            *launch.flags,
            *launch.command,
        ]
        with self._lock, output.open("wb") as out:
            if self._stopped:
                raise Stopped("stopped")
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=launch.workdir,
                env=env,
                start_new_session=True,
            )
            node = RehearsalNode(name, mark, process, output, time.time())
            self._running.append(node)
        return node

    def end(self, *nodes: RehearsalNode) -> None:
        """End nodes at once."""
        for node in nodes:
            node.kill()
            with self._lock:
                if node in self._running:
                    self._running.remove(node)

    def stop(self) -> None:
        """End all nodes, and start no more."""
        with self._lock:
            self._stopped, running = True, [*self._running]
        self.end(*running)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until something is so. Raises `TooLong` at the deadline of an act."""
        deadline = time.monotonic() + self._within
        while not condition():
            if self._stopped:
                raise Stopped("stopped")
            if time.monotonic() > deadline:
                raise TooLong(f"{what}: not within {self._within:g} s (--act-within)")
            time.sleep(LOOK)


def failure(nodes: Sequence[RehearsalNode], workdir: Path) -> str:
    """Return how the script failed on these nodes, in its own words and with the place.

    Empty if it did not fail. Places are told relative to the folder in which it ran.
    """
    for node in nodes:
        if node.code not in (None, 0):
            text = node.text()
            words = _ENDED.findall(text)
            told = words[-1] if words else _last_line(text)
            places = [
                f"{file.removeprefix(f'{workdir}/')}:{line}"
                for file, line in _PLACE.findall(text)
                if not any(each in file for each in _NOT_THE_SCRIPTS)
            ]
            return f"{told} ({places[-1]})" if places else told
    return ""


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return re.sub(r"^(\[\w+\] )?(spotelastic: )?", "", lines[-1]) if lines else "it said nothing"


def _marked(mark: bytes) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if mark in (entry / "environ").read_bytes():
                yield int(entry.name)
