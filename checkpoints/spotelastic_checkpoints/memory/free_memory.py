"""How much shared memory can still be had, and what bounds it."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from spotelastic_checkpoints.memory import cgroups


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """As a message it reads: "12 MiB are free in /dev/shm"."""

    free: int
    """Bytes."""
    where: str
    more: str
    """What makes it larger."""

    def __str__(self) -> str:
        return f"{mib(self.free)} are free {self.where}"


def room(folder: Path) -> FreeMemory:
    """For files in `folder`: the least of what its file system, this machine, and the memory limits
    of the container or service leave."""
    return min(_rooms(folder), key=lambda found: found.free)


def mib(size: int) -> str:
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
