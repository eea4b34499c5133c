"""What the limits of a container or a service leave of memory: those of this process's cgroups.

Shared memory counts for the cgroup of whoever touches it first, and one that goes beyond its limit
gets no error: something in it is killed. So the limits are looked at before memory is taken.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, slots=True)
class Limit:
    """One cgroup's, in bytes."""

    cgroup: Path
    most: int
    used: int
    """Without what the kernel would rather drop than kill for."""

    @property
    def free(self) -> int:
        return max(0, self.most - self.used)


@dataclass(frozen=True, slots=True)
class _Hierarchy:
    """How one version of cgroups calls its files, and the lines of `memory.stat`."""

    mount: str
    limits: tuple[str, ...]
    usage: str
    cache: tuple[str, ...]
    kills: str


# Beyond memory.high nothing is killed, but everything is slowed down until it is below again.
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
    """The limit that leaves least, of the process's own cgroup and of all above it that are seen
    from here; None where there is none."""
    limits = [
        limit
        for kind in (_V2, _V1)
        for folder in _cgroups(process, kind)
        if (limit := _limit(folder, kind)) is not None
    ]
    return min(limits, key=lambda limit: limit.free, default=None)


def oom_kills(process: Path = Path("/proc/self")) -> int:
    """How often the kernel has killed something in these cgroups because of their limits."""
    return sum(
        int(count)
        for kind in (_V2, _V1)
        for folder in _cgroups(process, kind)
        for line in _lines(folder / kind.kills)
        for name, _, count in (line.partition(" "),)
        if name == "oom_kill" and count.isdigit()
    )


def _cgroups(process: Path, kind: _Hierarchy) -> Iterator[Path]:
    """From the process's own up to what is mounted here: a container sees only its own part."""
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
    """The cgroup that is mounted, and where."""
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
    # What was read from files and what was written to them counts as used, and is dropped first:
    # without this a job that has read its data once would find no room. Shared memory is no part
    # of it: it has no file to be read from again.
    cache = sum(int(counts.get(name, 0)) for name in kind.cache)
    return Limit(folder, min(most), max(0, usage - cache))


def _number(path: Path) -> int | None:
    """None where the file says "max", or is missing."""
    text = "".join(_lines(path))
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    """A cgroup may go at any moment, and those above may be nobody's business."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
