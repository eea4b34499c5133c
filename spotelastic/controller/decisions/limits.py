"""Decides whether a limit ends the job: deadline, cost, or too slow a last save (pure)."""

import math
from collections.abc import Iterator

from spotelastic.cloud.model import ALIVE
from spotelastic.controller.model.observation import ControllerPolicy, Money, Observation
from spotelastic.model.counting import HOUR, dollars
from spotelastic.model.job import Ending, Job


def verdict(seen: Observation, now: float, policy: ControllerPolicy) -> Ending | None:
    """Return how the job ends now for a limit, with the figures; None: it goes on."""
    capacity, money = policy.capacity, seen.money
    if seen.ended or seen.ending is not None:
        return None
    if capacity.deadline is not None and now >= capacity.deadline:
        late = now - capacity.deadline
        return Ending("timed out", now, f"its deadline passed {late:.0f} s ago")
    limit = capacity.max_cost
    if limit is None:
        return None
    cost = f"it has cost {dollars(money.spent)} at {dollars(money.per_hour)} an hour"
    if is_spent(money, limit, policy):
        return Ending("stopped", now, f"{cost} (--max-cost {limit:g})")
    if lacks := _lacks(seen, limit, policy):
        nodes = "node that is" if lacks == 1 else f"{lacks} nodes that are"
        why = f"--max-cost {limit:g} does not pay for the {nodes} missing"
        return Ending("stopped", now, f"{cost}, and {why}")
    return None


def _lacks(seen: Observation, limit: float, policy: ControllerPolicy) -> int:
    """Return how many nodes are missing to min if the money does not pay for them, else 0.

    Without them, control nodes alone would use up the rest. 0 as well while a price is not known. A
    node under notice trains on until then.
    """
    there = sum(not each.leaving or each.instance in seen.nodes for each in seen.members)
    missing = seen.least - there
    groups = ((seen.group, seen.money.spot), (seen.on_demand, seen.money.on_demand))
    usd = min((price for group, price in groups if group is not None), default=0.0)
    asked = sum(group.asked for group in seen.groups)
    if missing <= 0 or not usd or missing <= payable(seen.money, limit, usd, asked, policy):
        return 0
    return missing


def is_spent(money: Money, limit: float, policy: ControllerPolicy) -> bool:
    """Whether a job ends now for its cost.

    The cost of ending counts: the last save does not exceed the limit.
    """
    return money.spent + money.per_hour * policy.ends_within / HOUR >= limit


def payable(
    money: Money, limit: float, an_hour: float, asked: int, policy: ControllerPolicy
) -> int:
    """Return how many more nodes can be paid for until they have trained.

    Each costs `an_hour` US dollars an hour.

    The first `asked` of them are asked for already. They are not called off while they launch,
    because the cloud would then choose which instance goes.
    """
    ends, boots = policy.ends_within / HOUR, policy.boots_in / HOUR

    def within(hours: float) -> int:
        left = limit - money.spent - money.per_hour * hours
        return math.floor(max(0.0, left) / (an_hour * hours))

    return max(within(boots + ends), min(asked, within(ends)))


def needed(per_hour: float, policy: ControllerPolicy) -> float:
    """Return the US dollars that something at this hourly price costs to boot and to be ended."""
    return per_hour * (policy.boots_in + policy.ends_within) / HOUR


def overdue(seen: Observation, now: float, policy: ControllerPolicy) -> Job | None:
    """Return how a job that was asked to end ends now.

    It ends now if no node saves it, or if a node saves it too slowly.
    """
    ending = seen.ending
    if ending is None or seen.ended:
        return None
    known = seen.nodes.keys() | seen.left.keys()
    somebody = any(m.state in ALIVE and m.id in known for m in seen.machines.values())
    if somebody and now < ending.at + policy.ends_within:
        return None
    saved = f"the newest commit is of step {seen.committed}" if seen.committed else "no commit"
    return Job(ending.state, now, f"{ending.reason}; {saved}", final_step=seen.committed)


def wakes(seen: Observation, now: float, policy: ControllerPolicy) -> Iterator[float]:
    """Yield the times at which a limit is reached if nothing changes."""
    capacity, money = policy.capacity, seen.money
    if seen.ending is not None:
        yield seen.ending.at + policy.ends_within
        return
    if capacity.deadline is not None:
        yield capacity.deadline
    if capacity.max_cost is not None and money.per_hour > 0:
        left = (capacity.max_cost - money.spent) / money.per_hour * HOUR
        yield now + left - policy.ends_within + 0.001
