"""Provides what every benchmark needs: a description of the machine, waits with deadlines,
clean-up."""

import mmap
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

PATIENCE = 120.0
LOOKS, LOOK = 40, 0.25
"""How often it is checked whether the machine is idle, and the seconds of each check."""
T = TypeVar("T")


class Stuck(Exception):
    """What was to be measured never happened."""


def conduct(main: Callable[[], None]) -> None:
    """Run a benchmark's `main`. On a signal, what it has started is ended first."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        main()
    except Stuck as error:
        sys.exit(f"could not measure: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def where() -> str:
    """Return what the benchmark runs on, and what else runs there."""
    return f"{os.cpu_count()} cores, load {' '.join(f'{load:.1f}' for load in os.getloadavg())}"


def until(probe: Callable[[], T], what: str, *, within: float = PATIENCE, every: float = 0.05) -> T:
    """Poll until the first true answer, and return it."""
    deadline = time.monotonic() + within
    while not (answer := probe()):
        if time.monotonic() > deadline:
            raise Stuck(f"not within {within:g} s: {what}")
        time.sleep(every)
    return answer


def machine_at_rest() -> None:
    """Wait until the cores are idle for a moment, within limits.

    Servers that share the machine go on working for a while after they have answered.
    """
    for _ in range(LOOKS):
        busy = _busy_ticks()
        time.sleep(LOOK)
        if _busy_ticks() - busy <= LOOK * os.sysconf("SC_CLK_TCK") / 10:
            return


def memory_at_hand(nbytes: int) -> None:
    """Touch memory for a server that is about to keep that many bytes.

    The host of a virtual machine may take free memory back within seconds, and hand it out again
    page by page at a few hundred MB/s. That would be measured in place of the client. Memory that
    was just in use is reused first.
    """
    if not nbytes:
        return
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    populated = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    mmap.mmap(-1, min(nbytes, available // 2), flags=populated).close()


def _busy_ticks() -> int:
    of_all = Path("/proc/stat").read_text().splitlines()[0]
    user, nice, system, _, _, irq, soft, *_ = map(int, of_all.split()[1:])
    return user + nice + system + irq + soft


def rest(count: Callable[[], int], quiet: float, what: str) -> None:
    """Wait until a count has not changed for `quiet` seconds."""
    seen, since = count(), time.monotonic()

    def stands() -> bool:
        nonlocal seen, since
        if (now := count()) != seen:
            seen, since = now, time.monotonic()
        return time.monotonic() - since > quiet

    until(stands, what)
