"""Measures how much shared memory is still free, and what limits it."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from spotelastic_checkpoints.memory import cgroups


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Free memory and its limit. As text it reads "12 MiB are free in /dev/shm"."""

    free: int
    """Free bytes."""
    where: str
    """Where they are free, for messages."""
    more: str
    """What the user can do to have more."""

    def __str__(self) -> str:
        return f"{mib(self.free)} are free {self.where}"


def room(folder: Path) -> FreeMemory:
    """Return the memory that is free for files in `folder`.

    That is the least of what the file system, the machine and the memory limits of the container or
    service leave.
    """
    return min(_rooms(folder), key=lambda found: found.free)


def mib(size: int) -> str:
    """Return a size as text, in MiB."""
    return f"{size / (1 << 20):,.0f} MiB"


def _rooms(folder: Path) -> Iterator[FreeMemory]:
    stat = os.statvfs(folder)
    yield FreeMemory(stat.f_bavail * stat.f_frsize, f"in {folder}", "enlarge /dev/shm")
    yield FreeMemory(_available(), "on this machine", "take a machine with more memory")
    limit = cgroups.tightest()
    if limit is not None:
        yield FreeMemory(
            limit.free,
            f"of the {mib(limit.most)} that {limit.cgroup} may use",
            "raise the memory limit of the container or service",
        )


def _available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 1 << 62
