"""Finds what a test has left behind: processes, threads, shared memory.

All processes of the machine are read only where one of ours may be among them. Most tests start
none, and reading them twice for each test would take a tenth of the whole suite's time.
"""

import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from spotelastic.process_environment import environment_of

MARK = "SPOTELASTIC_TEST_SESSION"
SHARED_MEMORY = Path("/dev/shm")
GRACE = 30.0
"""Seconds that what is on its way out may take, on a machine that has much else to do."""

# Inherited by whatever a test starts, also by what detaches itself from this process.
os.environ[MARK] = uuid.uuid4().hex

_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})
"""Python's audit events of a process that starts another one."""


class _Starts:
    """Knows whether this process has started any since none of them was there."""

    def __init__(self) -> None:
        self.count = 0
        self.none_after: int | None = None
        """The count at which a look at all processes found none of ours."""
        sys.addaudithook(self._hear)

    def _hear(self, event: str, _: object) -> None:
        if event in _STARTS:
            self.count += 1

    def processes(self) -> frozenset[str]:
        """Ours that live. A start that raises no audit event is noticed by the child."""
        count = self.count
        if count == self.none_after and not _has_children():
            return frozenset()
        found = frozenset(_processes())
        self.none_after = None if found else count
        return found


def _has_children() -> bool:
    """Whether one is there that was not waited for, be it that it has ended."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


_starts = _Starts()


@dataclass(frozen=True)
class Leftovers:
    processes: frozenset[str]
    threads: frozenset[str]
    shared_memory: frozenset[str]

    def since(self, before: "Leftovers") -> list[str]:
        new = self.shared_memory - before.shared_memory
        kinds = (
            ("process", self.processes - before.processes),
            ("thread", self.threads - before.threads),
            ("shared memory", {each for each in new if not _used_elsewhere(Path(each))}),
        )
        return [f"{kind} {each}" for kind, found in kinds for each in sorted(found)]


def settled(leftovers: Callable[[], list[str]]) -> list[str]:
    """What is still there after the grace; returns at once when nothing is."""
    deadline = time.monotonic() + GRACE
    while (found := leftovers()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def look() -> Leftovers:
    threads = (
        f"{thread.name} ({thread.ident})"
        for thread in threading.enumerate()
        if not thread.daemon and thread is not threading.main_thread()
    )
    memory = frozenset(map(str, SHARED_MEMORY.glob("spotelastic*")))
    return Leftovers(_starts.processes(), frozenset(threads), memory)


def _processes() -> Iterator[str]:
    """Descendants of this process, and what carries its mark. Zombies have ended."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    marked: set[int] = set()
    mark = f"{MARK}={os.environ[MARK]}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            name, _, rest = (entry / "stat").read_text().rpartition(")")
            state, parent = rest.split()[:2]
            environment = environment_of(int(entry.name))
        except OSError:
            continue  # it ended meanwhile, or is somebody else's
        if state == "Z":
            continue
        pid = int(entry.name)
        parents[pid], names[pid] = int(parent), name.partition("(")[2]
        if mark in environment.split(b"\0"):
            marked.add(pid)
    for pid in parents:
        if pid != os.getpid() and (pid in marked or _descends(pid, parents)):
            yield f"{names[pid]} ({pid})"


def _descends(pid: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == os.getpid():
            return True
    return False


def _used_elsewhere(entry: Path) -> bool:
    """Whether a process of another session on this machine works with it."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    owner = entry.name.removeprefix("spotelastic-run-").partition("-")[0]
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or process.name == str(os.getpid()):
            continue
        try:
            environment = (process / "environ").read_bytes()
            told = environment + (process / "cmdline").read_bytes()
            told += (process / "maps").read_bytes()
        except OSError:
            continue
        uses = process.name == owner or entry.name.encode() in told
        if mark not in environment and uses:
            return True
    return False
