"""What ends a job that nobody stopped: its deadline, or what it may cost (pure)."""

from collections.abc import Iterator

from spotelastic.controller.seen import Policy, Seen
from spotelastic.model.job import Job

HOUR = 3600.0


def verdict(seen: Seen, now: float, policy: Policy) -> Job | None:
    """How the job ends now, with the figures that it ends for; None: it goes on.

    The cost counts what it takes to end: the limit is not passed by the last save.
    """
    capacity, money = policy.capacity, seen.money
    if seen.ended:
        return None
    step = f"the newest commit is of step {seen.committed}"
    if capacity.deadline is not None and now >= capacity.deadline:
        late = now - capacity.deadline
        return Job("timed out", now, f"its deadline passed {late:.0f} s ago; {step}")
    if capacity.max_cost is not None:
        ending = money.per_hour * policy.ends_within / HOUR
        if money.spent + ending >= capacity.max_cost:
            return Job(
                "stopped",
                now,
                f"it has cost ${money.spent:.2f} at ${money.per_hour:.2f} an hour "
                f"(--max-cost {capacity.max_cost:g}); {step}",
            )
    return None


def wakes(seen: Seen, now: float, policy: Policy) -> Iterator[float]:
    """When a limit is reached if nothing changes."""
    capacity, money = policy.capacity, seen.money
    if capacity.deadline is not None:
        yield capacity.deadline
    if capacity.max_cost is not None and money.per_hour > 0:
        left = (capacity.max_cost - money.spent) / money.per_hour * HOUR
        yield now + left - policy.ends_within + 0.001
