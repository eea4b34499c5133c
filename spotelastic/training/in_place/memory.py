"""Tells when a process that enters round after round keeps more and more memory.

Something may be kept of each round: a communicator, a connection, a model's buffers. A new process
has none of it. So one that grows is replaced where that costs no step: at a planned change, when
its last step is saved.
"""

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

GIB = 1 << 30
_PRIVATE = "RssAnon:"
"""Memory that is the process's own, without files and the slots of checkpoints."""


ROUNDS = 5
"""So many rounds each make a process larger that grows, and none between makes it smaller."""
SHARE, LEAST = 0.2, 256 << 20
"""Part by which the last one is larger than the first, and bytes by which it is in any case."""
LATER = 0.33
"""Part of that which the later half of them has: buffers that are only begun with do not."""
NOISE = 1 << 20
"""Bytes up to which a size is the same."""


def grown(sizes: Sequence[int]) -> int:
    """Return in how many rounds a process has grown too much; 0 if it has not."""
    rises: list[int] = []  # the last one first
    for after, before in itertools.pairwise(reversed(sizes)):
        if after - before < -NOISE:
            break
        if after - before > NOISE:
            rises.append(after - before)
    growth = sum(rises)
    if len(rises) < ROUNDS or growth <= max(LEAST, SHARE * (sizes[-1] - growth)):
        return 0
    return len(rises) if sum(rises[: len(rises) // 2]) >= LATER * growth else 0


def measured() -> dict[str, int]:
    """Return the bytes that this process holds, by kind of memory."""
    found = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        found["memory"] = int(status.partition(_PRIVATE)[2].split()[0]) << 10
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        free, total = torch.cuda.mem_get_info()
        found["GPU memory"] = total - free  # communicators have some beside torch's allocator
    return found


class Memory:
    """The sizes of this process, after each round that it has entered in place."""

    def __init__(self, measure: Callable[[], Mapping[str, int]] = measured) -> None:
        self._measure = measure
        self._sizes: dict[str, list[int]] = {}

    def note(self) -> None:
        """Note the sizes. Call it at the same place of each round."""
        for kind, size in self._measure().items():
            self._sizes.setdefault(kind, []).append(size)

    @property
    def problem(self) -> str:
        """What has grown too much; empty if nothing has."""
        for kind, sizes in self._sizes.items():
            if rounds := grown(sizes):
                return f"its {kind} grew in {rounds} rounds, to {sizes[-1] / GIB:.1f} GiB"
        return ""
