"""Finds and kills the processes of the local cloud's instances, through /proc.

An instance's processes carry `SPOTELASTIC_INSTANCE` and `SPOTELASTIC_CLOUD` in their initial
environment. Descendants inherit it, and do not lose it with a new session or a dead parent. A
process started with another environment counts as long as it has such an ancestor. No privileges
are needed: everything runs as one user.
"""

import os
import select
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotelastic.process_environment import environment_of
from spotelastic.signals import send

INSTANCE = "SPOTELASTIC_INSTANCE"
CLOUD = "SPOTELASTIC_CLOUD"

_FIRST = ("se-agent", "se-controller")
"""Roles that are ended before all others, so that none reports on a half-dead instance."""
_PATIENCE = 5.0  # seconds until killed processes are looked for again


@dataclass(frozen=True, slots=True)
class LocalProcess:
    """A process of an instance."""

    pid: int
    role: str
    """The name that the process gave itself (/proc/PID/comm)."""
    instance: str
    cloud: str


def marked(cloud: str, instance: str = "") -> list[LocalProcess]:
    """Return the living processes of a cloud, or of one of its instances."""
    return [
        process
        for process in _marked()
        if process.cloud == cloud and instance in ("", process.instance)
    ]


def end(find: Callable[[], Sequence[LocalProcess]]) -> None:
    """Freeze and kill the processes that `find` returns, until it returns none."""
    while found := find():
        found = sorted(found, key=lambda process: process.role not in _FIRST)
        deaths = [death for process in found if (death := _watch(process.pid)) is not None]
        try:
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for process in found:
                    send(process.pid, number)
            _await_all(deaths)
        finally:
            for death in deaths:
                os.close(death)


def started_at(pid: int) -> int:
    """Return when a process started, in clock ticks since boot.

    0 if it does not exist or is a zombie.

    Together with the pid this identifies a process for good: pids are reused.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    fields = stat.rpartition(")")[2].split()
    return 0 if fields[0] in "ZX" else int(fields[19])


@dataclass(frozen=True, slots=True)
class _Entry:
    """One living process in /proc."""

    pid: int
    parent: int
    name: str
    marks: dict[str, str]


def _marked() -> Iterator[LocalProcess]:
    """Yield the processes with a mark, and those without one whose ancestor has one."""
    table = {entry.pid: entry for entry in _entries()}
    for entry in table.values():
        above: _Entry | None = entry
        while above is not None and INSTANCE not in above.marks:
            above = table.get(above.parent)
        if above is not None:
            marks = above.marks
            yield LocalProcess(entry.pid, entry.name, marks[INSTANCE], marks.get(CLOUD, ""))


def _entries() -> Iterator[_Entry]:
    for folder in os.scandir("/proc"):
        if not folder.name.isdigit():
            continue
        try:
            head, _, rest = Path(folder.path, "stat").read_text().rpartition(")")
            environment = environment_of(int(folder.name))
        except OSError:  # it is gone, or another user's
            continue
        state, parent = rest.split()[:2]
        if state not in "ZX":
            marks = _marks(environment) if CLOUD.encode() in environment else {}
            yield _Entry(int(folder.name), int(parent), head.partition("(")[2], marks)


def _marks(environment: bytes) -> dict[str, str]:
    items = (item.partition("=") for item in environment.decode(errors="replace").split("\0"))
    return {name: value for name, _, value in items if name in (INSTANCE, CLOUD) and value}


def _watch(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _await_all(deaths: Sequence[int]) -> None:
    poll = select.poll()
    for death in deaths:
        poll.register(death, select.POLLIN)
    left = len(deaths)
    while left and (ready := poll.poll(_PATIENCE * 1000)):
        for death, _ in ready:
            poll.unregister(death)
            left -= 1
