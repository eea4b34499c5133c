"""What ends a job: its deadline, its cost, a save for its end that takes too long (pure)."""

from collections.abc import Iterator

from spotelastic.aws.autoscaling import ALIVE
from spotelastic.controller.seen import Money, Policy, Seen
from spotelastic.model.job import Ending, Job

HOUR = 3600.0


def verdict(seen: Seen, now: float, policy: Policy) -> Ending | None:
    """How the job ends now, with the figures that it ends for; None: it goes on."""
    capacity, money = policy.capacity, seen.money
    if seen.ended or seen.ending is not None:
        return None
    if capacity.deadline is not None and now >= capacity.deadline:
        late = now - capacity.deadline
        return Ending("timed out", now, f"its deadline passed {late:.0f} s ago")
    if capacity.max_cost is not None and is_spent(money, capacity.max_cost, policy):
        return Ending(
            "stopped",
            now,
            f"it has cost ${money.spent:.2f} at ${money.per_hour:.2f} an hour "
            f"(--max-cost {capacity.max_cost:g})",
        )
    return None


def is_spent(money: Money, limit: float, policy: Policy) -> bool:
    """Whether a job ends now for its cost. What it takes to end counts: the limit is not passed by
    the last save."""
    return money.spent + money.per_hour * policy.ends_within / HOUR >= limit


def left_for_nodes(money: Money, limit: float, policy: Policy) -> float:
    """US dollars that nodes more than those that run may cost until they can have trained."""
    return limit - money.spent - needed(money.per_hour, policy)


def needed(per_hour: float, policy: Policy) -> float:
    """US dollars that what costs so much takes to boot and to be ended."""
    return per_hour * (policy.boots_in + policy.ends_within) / HOUR


def overdue(seen: Seen, now: float, policy: Policy) -> Job | None:
    """How a job that was asked to end does so now, with nobody there who saves, or too slowly."""
    ending = seen.ending
    if ending is None or seen.ended:
        return None
    known = seen.nodes.keys() | seen.left.keys()
    somebody = any(m.state in ALIVE and m.id in known for m in seen.machines.values())
    if somebody and now < ending.at + policy.ends_within:
        return None
    saved = f"the newest commit is of step {seen.committed}" if seen.committed else "no commit"
    return Job(ending.state, now, f"{ending.reason}; {saved}", final_step=seen.committed)


def wakes(seen: Seen, now: float, policy: Policy) -> Iterator[float]:
    """When a limit is reached if nothing changes."""
    capacity, money = policy.capacity, seen.money
    if seen.ending is not None:
        yield seen.ending.at + policy.ends_within
        return
    if capacity.deadline is not None:
        yield capacity.deadline
    if capacity.max_cost is not None and money.per_hour > 0:
        left = (capacity.max_cost - money.spent) / money.per_hour * HOUR
        yield now + left - policy.ends_within + 0.001
