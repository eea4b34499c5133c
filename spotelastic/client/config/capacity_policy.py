"""Parses the flags that limit what may be bought for a job.

They concern on-demand nodes, prices, cost and the deadline.
"""

import math
import re
from dataclasses import replace

from spotelastic.errors import UsageError
from spotelastic.model.interval import Interval
from spotelastic.model.job import Capacity

ON_DEMAND = "never, fallback or base=N"
ON_DEMAND_PATTERN = r"(never)|(fallback)|base=(\d+)"
ZONES = "pack or spread"


def seconds_left(text: str | None, flag: str = "--deadline") -> float | None:
    """Parse a flag's time into seconds; None: it is not given. Raises `UsageError`."""
    if text is None:
        return None
    try:
        wanted = Interval.parse(text).seconds
    except ValueError:
        wanted = None
    if wanted is None:
        raise UsageError(f"{flag} {text}: expected a time, such as 90m or 8h")
    return wanted


def with_deadline(capacity: Capacity, within: float | None, now: float) -> Capacity:
    """Return the capacity with a deadline `within` seconds from `now`; None: without a deadline."""
    return replace(capacity, deadline=None if within is None else now + within, within=within)


def keep_deadline(asked: Capacity, known: Capacity) -> Capacity:
    """Return the requested capacity, with the deadline of the running job if it is kept.

    The deadline is kept if the same time is given again.

    Repeating the command must not move the deadline: the time began when it was first given.
    """
    if asked.within is None or asked.within != known.within:
        return asked
    return replace(asked, deadline=known.deadline)


def capacity(
    on_demand: str,
    spot_patience: float,
    most_nodes: int,
    *,
    zones: str = "pack",
    max_price: float | None = None,
    max_cost: float | None = None,
    keep_failed: bool = False,
) -> Capacity:
    """Return what may be bought, without a deadline (see `with_deadline`). Raises `UsageError`."""
    for flag, limit in (("--max-price", max_price), ("--max-cost", max_cost)):
        if limit is not None and not 0 < limit < math.inf:
            raise UsageError(f"{flag} {limit:g}: expected more than 0 US dollars")
    if not 0 <= spot_patience < math.inf:
        raise UsageError(f"--spot-patience {spot_patience:g}: expected 0 seconds or more")
    found = re.fullmatch(ON_DEMAND_PATTERN, on_demand)
    if found is None:
        raise UsageError(f"--on-demand {on_demand}: expected {ON_DEMAND}")
    base = int(found[3] or 0)
    if base > most_nodes:
        raise UsageError(f"--on-demand {on_demand} is more than --max {most_nodes}")
    if zones not in ("pack", "spread"):
        raise UsageError(f"--zones {zones}: expected {ZONES}")
    return Capacity(
        zones="pack" if zones == "pack" else "spread",
        on_demand="fallback" if found[2] else "never",
        base=base,
        spot_patience=spot_patience,
        max_price=max_price,
        max_cost=max_cost,
        keep_failed=keep_failed,
    )
