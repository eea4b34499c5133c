"""A cloud whose nodes are plain processes of this machine, without any API of AWS.

It shows what another provider takes: groups (those of memory, whose launches and ends are processes
here), notices that a node reads from its own folder, and a bucket that is a folder.
"""

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from support.clusters.memory_capacity import MemoryCapacity, MemoryHooks
from support.places import TESTS

from spotelastic.clock import unbroken
from spotelastic.cloud.bucket import ClusterBucket
from spotelastic.cloud.events import CloudEvent
from spotelastic.cloud.memory.prices import FixedPrices
from spotelastic.cloud.memory.queue import MemoryQueue
from spotelastic.cloud.model import Instance, ZoneOffer
from spotelastic.cloud.port import Cloud
from spotelastic.local.base import processes
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.notice import Notice
from spotelastic.model.requests.command import Command

DRAIN_WITHIN = 60.0
WARNED_AHEAD = 120.0
INVISIBLE_FOR = 1.0
ZONES = tuple(ZoneOffer(name, (f"rack-{name}",), name, 0.5, 5) for name in "abc")

Boot = Callable[[Instance, Path], Sequence[str]]
"""Returns the command that an instance runs; the folder is the instance's own."""


@dataclass(frozen=True)
class FolderBucket(ClusterBucket):
    """The objects of one cluster, as files. Writers of all processes exclude each other."""

    folder: Path
    cluster: str

    def url(self, name: str) -> str:
        return str(self._path(name))

    def read(self, name: str) -> tuple[bytes, str] | None:
        try:
            data = self._path(name).read_bytes()
        except FileNotFoundError:
            return None
        return data[_VERSION:], data[:_VERSION].decode()

    def put(self, name: str, data: bytes | IO[bytes]) -> None:
        path, content = self._path(name), data if isinstance(data, bytes) else data.read()
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
        written.write_bytes(uuid.uuid4().hex.encode() + content)
        written.replace(path)

    def create(self, name: str, data: bytes) -> bool:
        with self._alone():
            if self.has(name):
                return False
            self.put(name, data)
            return True

    def replace(self, name: str, data: bytes, version: str) -> bool:
        with self._alone():
            found = self.read(name)
            if found is None or found[1] != version:
                return False
            self.put(name, data)
            return True

    def names(self, prefix: str) -> tuple[str, ...]:
        root = self.folder / self.cluster
        files = (path for path in root.rglob("*") if path.is_file() and path.name[0] != ".")
        found = (str(path.relative_to(root)) for path in files)
        return tuple(sorted(name for name in found if name.startswith(prefix)))

    def has(self, name: str) -> bool:
        return self._path(name).exists()

    def delete(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self.folder / self.cluster / name

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


_VERSION = len(uuid.uuid4().hex)


class FolderNotices:
    """The notices about a node, as files in its folder."""

    def __init__(self, folder: Path, node: str) -> None:
        self._folder, self._node, self._seen = folder, node, set[str]()

    def poll(self) -> tuple[Notice, ...]:
        now, new = unbroken(), []
        for file in sorted(self._folder.glob("notice-*.json")):
            if file.name not in self._seen:
                self._seen.add(file.name)
                said = json.loads(file.read_text())
                kind = InterruptionKind(said["kind"])
                new.append(Notice(kind, self._node, "imds", said["at"], now, said["deadline"]))
        return tuple(new)


class ProcessCloud:
    """The groups of one cluster, each instance a process with its descendants and a folder."""

    def __init__(self, boot: Boot, cluster: str = "demo") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="se-"))
        """Short, because sockets lie below it."""
        self._mark = f"processes-{hashlib.sha256(bytes(self.folder)).hexdigest()[:12]}"
        self._boot = boot
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._events = MemoryQueue[CloudEvent](INVISIBLE_FOR)
        self._commands = MemoryQueue[Command | None](INVISIBLE_FOR)
        hooks = MemoryHooks(
            launched=self._launch, drains=self._drain, ended=self._end, emit=self._events.send
        )
        self.capacity = ProcessCapacity(
            unbroken, hooks, offered=ZONES, type="process", address="127.9.0.{}".format,
            drain_within=DRAIN_WITHIN,
        )  # fmt: skip
        self.capacity.console_of = lambda instance: self.place(instance) / "console"
        self.objects = FolderBucket(self.folder / "bucket", cluster)
        self.cloud = Cloud(
            self.capacity, self._events, self._commands, FixedPrices(0.5, 1.5), self.objects
        )

    def __enter__(self) -> "ProcessCloud":
        return self

    def __exit__(self, *_: object) -> None:
        self.capacity.tear_down()
        shutil.rmtree(self.folder)

    def place(self, instance: str) -> Path:
        """The instance's folder."""
        return self.folder / instance

    def shm(self, instance: str) -> Path:
        """The instance's folder in shared memory."""
        return Path("/dev/shm") / f"{self.folder.name}-{instance}"

    def send(self, command: Command | None) -> None:
        self._commands.send(command)

    def warn(self, instance: str) -> None:
        """Announces an interruption to the node itself and to the controller."""
        if self.place(instance).exists():
            self._notify(instance, InterruptionKind.SPOT_INTERRUPTION, WARNED_AHEAD)
        self.capacity.warn(instance, WARNED_AHEAD)

    @contextlib.contextmanager
    def throttled(self, instance: str, every: float = 0.4) -> Iterator[None]:
        """The workers of an instance stand still half of the time."""
        over = threading.Event()

        def halve() -> None:
            found: list[processes.LocalProcess] = []
            for turn in itertools.count():
                if turn % 10 == 0:  # there are others in each round
                    named = processes.marked(self._mark, instance)
                    found = [each for each in named if each.role.startswith("se-worker")]
                _signal(found, signal.SIGSTOP)
                over.wait(every / 2)
                _signal(found, signal.SIGCONT)
                if over.wait(every / 2):
                    return

        thread = threading.Thread(target=halve, name="throttle")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _launch(self, instance: Instance) -> None:
        place = self.place(instance.id)
        place.mkdir()
        marks = {processes.CLOUD: self._mark, processes.INSTANCE: instance.id}
        with (place / "console").open("wb") as console:
            self._started[instance.id] = subprocess.Popen(
                [*self._boot(instance, place)],
                cwd=place, stdin=subprocess.DEVNULL, stdout=console, stderr=console,
                env={**os.environ, **marks, "PYTHONPATH": str(TESTS)}, start_new_session=True,
            )  # fmt: skip

    def _drain(self, instance: str) -> None:
        self._notify(instance, InterruptionKind.PLANNED, DRAIN_WITHIN)

    def _notify(self, instance: str, kind: InterruptionKind, ahead: float) -> None:
        now = unbroken()
        written = self.place(instance) / f".{kind}"
        written.write_text(json.dumps({"kind": kind, "at": now, "deadline": now + ahead}))
        written.replace(written.with_name(f"notice-{kind}.json"))

    def _end(self, instance: str) -> None:
        """Kills all processes of the instance, as a machine that is switched off."""
        first = self._started.pop(instance)
        first.kill()  # one that has just been started has no mark yet
        processes.end(lambda: processes.marked(self._mark, instance))
        first.wait()
        shutil.rmtree(self.shm(instance), ignore_errors=True)


def _signal(found: Sequence[processes.LocalProcess], number: int) -> None:
    for process in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


class ProcessCapacity(MemoryCapacity):
    """The groups of memory, with the consoles of processes."""

    console_of: Callable[[str], Path]

    def console(self, instance: str) -> str:
        file = self.console_of(instance)
        return file.read_text(errors="replace")[-16_000:] if file.exists() else ""


def agents(cloud: Callable[[], ProcessCloud]) -> Boot:
    """Returns what boots an instance as a node of the job that the bucket describes."""

    def boot(instance: Instance, place: Path) -> Sequence[str]:
        its = cloud()
        told = {
            "instance": instance.id, "address": instance.address, "zone": instance.zone,
            "spot": instance.spot, "shm": str(its.shm(instance.id)),
            "bucket": str(its.objects.folder), "cluster": its.objects.cluster,
        }  # fmt: skip
        (place / "node.json").write_text(json.dumps(told))
        return sys.executable, "-m", "support.clusters.process_node", str(place)

    return boot
