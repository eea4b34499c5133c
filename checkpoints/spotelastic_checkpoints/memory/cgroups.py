"""Reads how much memory this process may still use within the limits of its cgroups.

Containers and services have such limits. Shared memory counts for the cgroup of the process that
touches it first. A cgroup that exceeds its limit gets no error; one of its processes is killed. So
the limits are read before memory is taken.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, slots=True)
class Limit:
    """The memory limit of one cgroup, in bytes."""

    cgroup: Path
    most: int
    used: int
    """Memory in use, without what the kernel would drop before it kills a process."""

    @property
    def free(self) -> int:
        """Bytes that may still be used."""
        return max(0, self.most - self.used)


@dataclass(frozen=True, slots=True)
class _Hierarchy:
    """How one version of cgroups names its files and the lines of `memory.stat`."""

    mount: str
    limits: tuple[str, ...]
    usage: str
    cache: tuple[str, ...]
    kills: str


# Beyond memory.high nothing is killed, but everything slows down until usage is below it again.
_V2 = _Hierarchy(
    "cgroup2",
    ("memory.max", "memory.high"),
    "memory.current",
    ("active_file", "inactive_file"),
    "memory.events",
)
_V1 = _Hierarchy(
    "cgroup",
    ("memory.limit_in_bytes",),
    "memory.usage_in_bytes",
    ("total_active_file", "total_inactive_file"),
    "memory.oom_control",
)


def tightest(process: Path = Path("/proc/self")) -> Limit | None:
    """Return the limit that leaves the least memory; None where there is none.

    Looks at the cgroup of the process and at all above it that are visible from here.
    """
    limits = [
        limit
        for kind in (_V2, _V1)
        for folder in _cgroups(process, kind)
        if (limit := _limit(folder, kind)) is not None
    ]
    return min(limits, key=lambda limit: limit.free, default=None)


def oom_kills(process: Path = Path("/proc/self")) -> int:
    """Return how often the kernel has killed a process in these cgroups because of their limits."""
    return sum(
        int(count)
        for kind in (_V2, _V1)
        for folder in _cgroups(process, kind)
        for line in _lines(folder / kind.kills)
        for name, _, count in (line.partition(" "),)
        if name == "oom_kill" and count.isdigit()
    )


def _cgroups(process: Path, kind: _Hierarchy) -> Iterator[Path]:
    """Yield the cgroups from the process's own up to the one that is mounted here.

    A container sees only its own part of the tree.
    """
    path, mount = _path(process, kind), _mount(process, kind)
    if path is None or mount is None:
        return
    root, point = mount
    inside = PurePosixPath()
    if path.is_relative_to(root) and ".." not in path.parts:
        inside = path.relative_to(root)
    for below in (inside, *inside.parents):
        yield point / below


def _path(process: Path, kind: _Hierarchy) -> PurePosixPath | None:
    for line in _lines(process / "cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0" if kind is _V2 else "memory" in controllers.split(","):
            return PurePosixPath(path)
    return None


def _mount(process: Path, kind: _Hierarchy) -> tuple[PurePosixPath, Path] | None:
    """Return the cgroup that is mounted, and where."""
    for line in _lines(process / "mountinfo"):
        place, _, file_system = line.partition(" - ")
        name, _, options = file_system.split(" ", 2)
        if name == kind.mount and (kind is _V2 or "memory" in options.split(",")):
            _, _, _, root, point, *_ = place.split(" ")
            return PurePosixPath(root), Path(point)
    return None


def _limit(folder: Path, kind: _Hierarchy) -> Limit | None:
    most = [number for name in kind.limits if (number := _number(folder / name)) is not None]
    usage = _number(folder / kind.usage)
    if not most or usage is None:
        return None
    counts = dict(line.split(" ", 1) for line in _lines(folder / "memory.stat"))
    # Pages read from and written to files count as used, but are dropped first. Without this a job
    # that has read its data once would find no memory. Shared memory is not part of them.
    cache = sum(int(counts.get(name, 0)) for name in kind.cache)
    return Limit(folder, min(most), max(0, usage - cache))


def _number(path: Path) -> int | None:
    """Return the number in the file; None where it says "max" or does not exist."""
    text = "".join(_lines(path))
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    """Return the lines of the file, or none: a cgroup may vanish, or be unreadable."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
