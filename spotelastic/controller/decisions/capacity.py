"""Decides how many nodes of each kind the job should have now, and which of them go (pure).

Spot comes first: the spot group is asked for everything that the on-demand group does not have. The
on-demand group has its base or what is reserved, and what is missing to min once spot has been
short for longer than the job's patience. When spot is back, on-demand nodes are given back one by
one, each after a commit. A job whose min is its max has one spot node too many for that while,
unless boots fail.

A group whose launches fail again and again is asked for no more than it has, for a time that grows.
No node is launched that would hardly train before --max-cost ends the job.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from types import MappingProxyType

from spotelastic_checkpoints.backoff import Backoff

from spotelastic.cloud.model import WorkerGroup
from spotelastic.controller.decisions import limits
from spotelastic.controller.model.observation import (
    Action,
    ControllerPolicy,
    LaunchFailures,
    Observation,
    Remove,
    Replace,
    ResumeLaunches,
    SetDesired,
    Tell,
)
from spotelastic.model.counting import dollars
from spotelastic.model.in_place import FIRST
from spotelastic.model.job import Settings
from spotelastic.model.progress import Event

TOO_DEAR, CHEAP_AGAIN = "max-price", "max-price-over"
"""Kinds of the events that tell when --max-price begins to hold spot nodes back, and ends."""
SUSPENDED, RESUMED = "suspended", "suspended-over"
"""Kinds of those that tell when somebody has suspended what a group does, and resumed it."""
TOO_COSTLY = "max-cost"
"""Kind of the event that tells that --max-cost holds nodes back."""


@dataclass(frozen=True, slots=True)
class Size:
    group: WorkerGroup
    wanted: int
    reason: str


def held_back(settings: Settings, *, begun: bool) -> bool:
    """Return whether one node is enough for now: it rehearses the script for the others.

    `begun`: a node has joined, so that it has rehearsed.
    """
    return settings.rehearse == FIRST and not begun


def sizes(seen: Observation, now: float, policy: ControllerPolicy) -> tuple[Size, ...]:
    """Return the size that each group should have.

    On-demand nodes are paid for first, as the job needs them; spot is asked for what they cannot
    provide.
    """
    if seen.ended:
        stays = kept(seen, policy)
        return tuple(
            Size(group, len(stays & _names(group)), _standing(seen)) for group in seen.groups
        )
    found, others = list[Size](), 0
    if seen.on_demand is not None:
        wanted = _on_demand(seen, now, policy)
        found = [_reached(seen, seen.on_demand, wanted, 0.0, now, policy)]
        others = max(found[0].wanted, min(policy.capacity.base, seen.desired))
    if seen.group is not None:
        wanted = max(0, seen.desired - others, _in_place(seen, policy)) + _spare(seen, policy)
        before = _promised(seen, found)
        found.insert(0, _reached(seen, seen.group, wanted, before, now, policy))
    return tuple(found)


def _in_place(seen: Observation, policy: ControllerPolicy) -> int:
    """Return how many spot nodes stay while reserved ones are not there yet.

    Others may have taken those, and each try would cost nodes that train.
    """
    if seen.group is None or seen.on_demand is None or not policy.capacity.reserved:
        return 0
    there = sum(seen.is_there(member) for member in seen.on_demand.members)
    return min(seen.group.staying, seen.desired - max(there, policy.capacity.base))


def _standing(seen: Observation) -> str:
    return f"the job is {seen.job.state if seen.job else 'starting'}"


def wanting(seen: Observation, policy: ControllerPolicy) -> int:
    """Return how many nodes are missing, including the spare one."""
    there = sum(group.staying for group in seen.groups)
    return max(0, seen.desired + _spare(seen, policy) - there)


def _spare(seen: Observation, policy: ControllerPolicy) -> int:
    """Return the number of spare nodes.

    A job of fixed size needs one before an on-demand node is given back.
    """
    fixed = seen.desired == seen.least and not seen.hopeless
    return int(fixed and _held_for_spot(seen, policy))


def kept(seen: Observation, policy: ControllerPolicy) -> frozenset[str]:
    """Return the instances that outlive the job, so that its failure can be examined."""
    job = seen.job
    if not policy.capacity.keep_failed or job is None or job.failure is None:
        return frozenset()
    return frozenset({job.failure.node})


def _names(group: WorkerGroup) -> set[str]:
    """Return the names of the members that stay."""
    return {member.instance for member in group.members if not member.leaving}


def _on_demand(seen: Observation, now: float, policy: ControllerPolicy) -> int:
    capacity = policy.capacity
    base = min(capacity.steady, seen.desired)
    if capacity.on_demand != "fallback" or seen.on_demand is None:
        return base
    spot = 0 if seen.group is None else sum(seen.is_there(member) for member in seen.group.members)
    held = seen.on_demand.staying
    short = seen.short_since is not None and now >= seen.short_since + capacity.spot_patience
    missing = seen.least - spot if short or held > base else 0
    return min(seen.desired, max(base, missing, held))


def _held_for_spot(seen: Observation, policy: ControllerPolicy) -> bool:
    """Whether there are on-demand nodes that go once spot is back."""
    capacity, group = policy.capacity, seen.on_demand
    if capacity.on_demand != "fallback" or group is None:
        return False
    return group.staying > min(capacity.steady, seen.desired)


def _reached(
    seen: Observation,
    group: WorkerGroup,
    wanted: int,
    promised: float,
    now: float,
    policy: ControllerPolicy,
) -> Size:
    """Limits a group to the nodes that it can get and that can be paid for.

    While it can get no more, these are its present members. They have to be paid beside what is
    `promised`, in US dollars an hour.
    """
    there = group.staying
    if wanted <= there:
        return Size(group, wanted, _standing(seen))
    if seen.ending is not None:
        return Size(group, there, "the job is being ended")
    if why := _refused(seen, group, now, policy):
        return Size(group, there, why)
    paid = there + _payable(seen, group, group.asked, promised, policy)
    if paid < wanted:
        return Size(group, paid, _too_costly(policy))
    return Size(group, wanted, _standing(seen))


def _payable(
    seen: Observation, group: WorkerGroup, asked: int, promised: float, policy: ControllerPolicy
) -> int:
    """Return how many more nodes the money pays for; without a known price, as many as wanted."""
    limit, usd = policy.capacity.max_cost, _an_hour(seen, group)
    if limit is None or not usd:
        return sys.maxsize
    money = replace(seen.money, per_hour=seen.money.per_hour + promised)
    return limits.payable(money, limit, usd, asked, policy)


def _an_hour(seen: Observation, group: WorkerGroup) -> float:
    """Return the US dollars an hour of one more node; 0: its price is not known."""
    return seen.money.spot if group is seen.group else seen.money.on_demand


def _promised(seen: Observation, found: Iterable[Size]) -> float:
    """Return the US dollars an hour of nodes that are asked for but not there yet."""
    return sum(
        max(0, size.wanted - size.group.staying) * _an_hour(seen, size.group) for size in found
    )


def _too_costly(policy: ControllerPolicy) -> str:
    return f"another node would hardly train before --max-cost {policy.capacity.max_cost:g}"


def held(
    seen: Observation,
    group: WorkerGroup,
    now: float,
    policy: ControllerPolicy,
    promised: float = 0.0,
) -> str:
    """Return why the group asks for no more than it has for now; empty if it may ask."""
    if why := _refused(seen, group, now, policy):
        return why
    return "" if _payable(seen, group, 0, promised, policy) else _too_costly(policy)


def _refused(seen: Observation, group: WorkerGroup, now: float, policy: ControllerPolicy) -> str:
    """Return why the group can get no more nodes, whatever money is left; empty if it can."""
    if group.launches_held:
        return "somebody has suspended its launches"
    if group is seen.group and (why := too_dear(seen, policy)):
        return why
    failed = seen.failed.get(seen.pool(group))
    if failed is not None and now < refused_until(failed, policy):
        return f"{failed.count} launches have failed: {failed.why}"
    return ""


def too_dear(seen: Observation, policy: ControllerPolicy) -> str:
    """Return why no spot node may be launched now; empty if it may."""
    limit, price = policy.capacity.max_price, seen.money.spot
    if limit is None or price <= limit:
        return ""
    return f"a spot node costs ${price:.4g} an hour (--max-price {limit:g})"


def within_reach(
    seen: Observation, actions: Iterable[Action], now: float, policy: ControllerPolicy
) -> Iterator[Action]:
    """Decides which departing nodes are replaced.

    While a group is refused further capacity, it is shrunk by the departing instance instead, and
    its size is raised again later. Otherwise the group would launch and shrink at once, and Auto
    Scaling would pick the victim. Replacements are paid for one after the other.
    """
    promised = _promised(seen, sizes(seen, now, policy))
    for action in actions:
        group = seen.group_of(action.instance) if isinstance(action, Replace) else None
        if group is None or seen.ended or not isinstance(action, Replace):
            yield action
        elif why := held(seen, group, now, policy, promised):
            yield Remove(action.instance, f"{action.reason}, and {why}", cause=action.cause)
        else:
            promised += _an_hour(seen, group)
            yield action


def _tell_of_price(
    seen: Observation, found: tuple[Size, ...], now: float, policy: ControllerPolicy
) -> Iterator[Tell]:
    """Record that the price holds spot nodes back, and that it no longer does."""
    if seen.ended or seen.ending is not None:
        return
    price, limit, why = seen.money.spot, policy.capacity.max_price, too_dear(seen, policy)
    data: dict[str, object] = {"price": price, "limit": limit}
    if why and any(size.reason == why for size in found):
        text = f"no spot node is launched: {_dear(seen, price, limit)}"
        yield from _changed(seen, now, (TOO_DEAR, CHEAP_AGAIN), text, is_over=False, data=data)
    elif not why and (price or limit is None):
        text = f"spot nodes may be launched again: {_dear(seen, price, limit)}"
        yield from _changed(seen, now, (TOO_DEAR, CHEAP_AGAIN), text, is_over=True, data=data)


def _tell_of_suspensions(seen: Observation, now: float) -> Iterator[Tell]:
    """Record that somebody has suspended a group's work, and that it no longer is.

    The cluster does not undo what a person has done, who may have a reason. It says what it waits
    for: else a job that gets no nodes looks as if there were none.
    """
    for group in seen.groups if not seen.ended else ():
        over = f"nothing of the group {group.name} is suspended any more"
        text = "; ".join(group.held) or over
        kinds, of = (SUSPENDED, RESUMED), f"{group.name}-"
        yield from _changed(seen, now, kinds, text, of, is_over=not group.held)


def _changed(
    seen: Observation,
    now: float,
    kinds: tuple[str, str],
    text: str,
    of: str = "",
    *,
    is_over: bool,
    data: Mapping[str, object] = MappingProxyType({}),
) -> Iterator[Tell]:
    """Record once that something begins, and once that it is over; `kinds` are those of the events.

    Which of the two comes next, and how often each was recorded, follows from the record: what
    identifies an event is the same while the job's life and the number of earlier ones are.
    """

    def event(kind: str, times: int) -> Event:
        its = {"kind": kind, "incarnation": f"{seen.life}-{of}{times}"}
        return Event(now, "limit", text, data={**its, **data})

    begins, ends = kinds
    times = next(n for n in count() if seen.tell_once(event(ends, n)))
    if is_over == (not seen.tell_once(event(begins, times))):
        yield Tell(event(ends if is_over else begins, times))


def _tell_of_cost(
    seen: Observation, found: tuple[Size, ...], now: float, policy: ControllerPolicy
) -> Iterator[Tell]:
    """Record that the cost holds nodes back: once in a life of the job and of its limit."""
    money, limit = seen.money, policy.capacity.max_cost
    if limit is None or all(size.reason != _too_costly(policy) for size in found):
        return
    text = (
        f"no further node is launched: the job has cost {dollars(money.spent)} at "
        f"{dollars(money.per_hour)} an hour, and {_too_costly(policy)}"
    )
    data = {"kind": TOO_COSTLY, "incarnation": f"{seen.life}-{limit}"}
    yield from seen.tell_once(Event(now, "limit", text, data=data))


def _dear(seen: Observation, price: float, limit: float | None) -> str:
    """Return what a spot node costs, what it may cost, and of which price that is."""
    if limit is None:
        return "there is no --max-price any more"
    zones = {seen.home.name} if seen.home is not None else {m.zone for m in seen.machines.values()}
    where = " or ".join(sorted(filter(None, zones))) or "any zone"
    types = " or ".join(seen.types) or "node"
    cheapest = f"the cheapest {types}" if len(zones) > 1 or len(seen.types) > 1 else types
    return f"{cheapest} in {where} costs ${price:.4g} an hour (--max-price {limit:g})"


def refused_until(failed: LaunchFailures, policy: ControllerPolicy) -> float:
    """Return until when a group does not ask that pool for more; 0: it may ask."""
    if failed.count < policy.refused_after:
        return 0.0
    tries = 1 + max(0, failed.tries - policy.refused_after)
    return failed.at + Backoff(policy.refused_for, policy.refused_at_most, failures=tries).bound


def change_sizes(seen: Observation, now: float, policy: ControllerPolicy) -> Iterator[Action]:
    """Brings the groups to their sizes.

    Departing instances are named, because a group that only shrinks ends whichever instance it
    chooses. At the end of the job, when all go, that makes no difference.
    """
    surplus: list[Remove] = []
    found = sizes(seen, now, policy)
    yield from _tell_of_price(seen, found, now, policy)
    yield from _tell_of_cost(seen, found, now, policy)
    yield from _tell_of_suspensions(seen, now)
    for size in found:
        group, there = size.group, size.group.staying
        by_name = not seen.ended or size.wanted > 0
        asked = max(size.wanted, min(there, group.desired)) if by_name else 0
        if group.desired != asked:
            yield SetDesired(group.name, asked, size.reason)
        if group.suspended and size.wanted > there:
            yield from _resume(group, now)
        if by_name:
            surplus += _surplus(seen, group, there - size.wanted, kept(seen, policy))
    yield from surplus
    if not seen.ended and not surplus:
        yield from _give_back(seen, now, policy)


def _resume(group: WorkerGroup, now: float) -> Iterator[Action]:
    """Resumes a group whose launches the cloud has suspended.

    The cloud suspends a group whose launches have all failed for a day, without a message.
    """
    resumes = ResumeLaunches(group.name)
    yield resumes
    yield Tell(
        Event(now, "resume", f"the suspended launches of {group.name} are resumed"), (resumes,)
    )


def _surplus(
    seen: Observation, group: WorkerGroup, count: int, stays: frozenset[str]
) -> Iterator[Remove]:
    """Chooses the nodes that train least.

    First come those outside the round, then those that a smaller round would leave out, so that the
    round need not change once more.
    """
    if count <= 0:
        return
    goes = [
        member for member in group.members if not member.leaving and member.instance not in stays
    ]
    goes.sort(
        key=lambda member: (
            member.instance not in seen.drains,
            member.instance in seen.nodes,
            -seen.slots.get(member.instance, sys.maxsize),
            -_launched_at(seen, member.instance),
        )
    )
    for member in goes[:count]:
        instance = member.instance
        yield Remove(instance, "the job should have fewer nodes", cause=seen.warning(instance))


def _give_back(seen: Observation, now: float, policy: ControllerPolicy) -> Iterator[Action]:
    """Give back one on-demand node after each commit, while min nodes remain without it."""
    group = seen.on_demand
    if group is None or not seen.newly_committed(seen.given_back_at):
        return
    if not _held_for_spot(seen, policy):
        return
    there = [member.instance for member in seen.members if seen.is_there(member)]
    goes = [member.instance for member in group.members if not member.leaving]
    node = max(goes, key=lambda name: (name not in seen.nodes, _launched_at(seen, name)))
    if len(there) - (node in there) < seen.least:
        return
    gives = Remove(node, "spot is back", cause=seen.warning(node))
    yield gives
    data = {"committed": seen.committed}
    text = f"on-demand node {node} is given back after the commit of step {seen.committed}"
    yield Tell(Event(now, "give-back", text, node, data), after=(gives,))


def wakes(seen: Observation, policy: ControllerPolicy) -> Iterator[float]:
    """Yield the times at which sizes may change without any event."""
    if seen.short_since is not None and policy.capacity.on_demand == "fallback":
        yield seen.short_since + policy.capacity.spot_patience
    for failed in seen.failed.values():
        yield refused_until(failed, policy)


def _launched_at(seen: Observation, instance: str) -> float:
    machine = seen.machines.get(instance)
    return machine.launched_at if machine is not None else 0.0
