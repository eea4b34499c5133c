"""What every benchmark does beside measuring: it says where, waits with an end, leaves nothing."""

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
"""How often, and for how many seconds, it is looked whether the machine is idle."""
T = TypeVar("T")


class Stuck(Exception):
    """What was to be measured never happened."""


def conduct(main: Callable[[], None]) -> None:
    """Calls a benchmark's `main`. Asked to end, it ends first what it has started."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        main()
    except Stuck as error:
        sys.exit(f"could not measure: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def where() -> str:
    """What it runs on, and what else does."""
    return f"{os.cpu_count()} cores, load {' '.join(f'{load:.1f}' for load in os.getloadavg())}"


def until(probe: Callable[[], T], what: str, *, within: float = PATIENCE, every: float = 0.05) -> T:
    """The first true answer of what can only be polled."""
    deadline = time.monotonic() + within
    while not (answer := probe()):
        if time.monotonic() > deadline:
            raise Stuck(f"not within {within:g} s: {what}")
        time.sleep(every)
    return answer


def machine_at_rest() -> None:
    """Until its cores have been idle for a moment, or for as long as is worth waiting: servers that
    share it go on working for a while after they have answered."""
    for _ in range(LOOKS):
        busy = _busy_ticks()
        time.sleep(LOOK)
        if _busy_ticks() - busy <= LOOK * os.sysconf("SC_CLK_TCK") / 10:
            return


def memory_at_hand(nbytes: int) -> None:
    """For a server that is about to keep so much in memory. The host of a virtual machine may take
    free memory back within seconds and hand it out again page by page, at a few hundred MB/s: that
    would be measured, not the client. What has just been used is used first."""
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
    """Until a count has stood still for `quiet` seconds."""
    seen, since = count(), time.monotonic()

    def stands() -> bool:
        nonlocal seen, since
        if (now := count()) != seen:
            seen, since = now, time.monotonic()
        return time.monotonic() - since > quiet

    until(stands, what)
