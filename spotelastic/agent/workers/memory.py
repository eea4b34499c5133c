"""Finds out whether the kernel killed a process for lack of memory, and what the memory limits are.

The kernel sends SIGKILL without a message, but counts such kills, per cgroup and for the machine.
"""

from dataclasses import dataclass
from pathlib import Path

from spotelastic_checkpoints.memory.cgroups import oom_kills, tightest

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Kills:
    """How often the kernel has killed processes for lack of memory so far."""

    here: int
    """Kills in this process's cgroup, or one above it, because of their limits."""
    anywhere: int
    """Kills on this machine, in any container."""


def kills(proc: Path = _PROC) -> Kills:
    return Kills(oom_kills(proc / "self"), _counter(proc / "vmstat", "oom_kill"))


def explanation(before: Kills, *, killed: bool, proc: Path = _PROC) -> str:
    """Return why a process that may have been `killed` has ended.

    Empty if memory is not the reason.

    Numbers that change from one time to the next are left out, so that equal failures read the
    same.
    """
    now = kills(proc)
    limit = tightest(proc / "self")
    if now.here > before.here:
        most = f"{_gib(limit.most)} ({limit.cgroup})" if limit is not None else "its cgroup"
        return f"out of memory: the kernel killed it at the limit of {most}"
    if killed and now.anywhere > before.anywhere:
        total = _gib(_counter(proc / "meminfo", "MemTotal:") * 1024)
        return f"out of memory: the kernel killed for lack of it (this machine has {total})"
    return ""


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB"


def _counter(file: Path, name: str) -> int:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    found = (line.split()[1] for line in lines if line.split()[:1] == [name])
    return int(next(found, "0"))
