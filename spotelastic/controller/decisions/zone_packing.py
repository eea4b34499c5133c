"""Decides in which zone the nodes of a packed job should be (pure).

Capacity within a zone is close to all or nothing, and traffic between zones costs more than most
nodes do. So a zone without capacity for the missing nodes is left as a whole. The missing nodes are
launched in another zone at once. Nodes that still train follow after commits, each time no more
than have arrived, so that a zone that promised too much costs little. In the same way a zone is
left in which nodes are taken soon after their launch (`short_lives.py`).

Must never happen:

- a job trains across two zones although that costs more than its nodes, while it could train in
  one: no zone is left then for which traffic was measured to cost that (`_dear_across`);
- a job stays below min for that: then it trains nowhere, and another zone is chosen;
- one zone is asked for ever: what nobody understands counts as the zone's own after a few more
  failures, for the cloud's words change.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from spotelastic_checkpoints.backoff import Backoff

from spotelastic.cloud.model import TRAFFIC_GB, TRAFFIC_USD, ZoneOffer, ranked
from spotelastic.controller.decisions import short_lives
from spotelastic.controller.decisions.capacity import held, refused_until, too_dear, wanting
from spotelastic.controller.model.observation import (
    Action,
    ControllerPolicy,
    LaunchFailures,
    Observation,
    Replace,
    SetSubnets,
    Tell,
)
from spotelastic.model.counting import dollars
from spotelastic.model.progress import Event

OF_A_ZONE = frozenset({"capacity", "zone"})
"""Causes of failed launches that may not be there in another zone."""
UNKNOWN_AFTER = 2
"""How many times as many launches must fail for what nobody understands."""
TRAFFIC = "traffic"
"""Kind of the event that tells that a zone is not left for what traffic would cost."""


def undecided(seen: Observation, now: float, policy: ControllerPolicy) -> bool:
    """Whether a zone is to be chosen, for which prices and scores have to be asked for."""
    if seen.ended or seen.ending is not None or len(seen.zones) < 2 or not seen.groups:
        return False
    home = seen.home
    if home is None:
        return True
    return not _dear_across(seen, home) and _is_to_be_left(seen, home, now, policy)


def _is_to_be_left(
    seen: Observation, home: ZoneOffer, now: float, policy: ControllerPolicy
) -> bool:
    if _less_bad(seen, home, now, policy):
        return True  # even if nothing is missing: those that are there are taken soon
    return _cannot_launch(seen, home, now, policy)


def _dear_across(seen: Observation, home: ZoneOffer) -> bool:
    """Whether the job trains in this zone, and spreading it over two would not pay.

    Across two zones it would cost more in traffic than in nodes.
    """
    there = sum(_zone(seen, node) == home.name for node in seen.nodes if node not in seen.drains)
    return there >= seen.least and _across(seen) > seen.money.workers > 0


def _across(seen: Observation) -> float:
    """Return the US dollars an hour of traffic in a round over two zones.

    They follow from what is measured: a ring of nodes leads into the other zone, and back.
    """
    return 2 * seen.exchanged * TRAFFIC_USD


def is_dry(seen: Observation, zone: str, now: float, policy: ControllerPolicy) -> bool:
    """Whether launches failed for a cause in this zone alone, and are not yet to be retried.

    A cause in the account would make launches fail in another zone as well.
    """
    return any(
        _is_of_a_zone(each, policy) and now < refused_until(each, policy)
        for each in _failures(seen, zone)
    )


def _failures(seen: Observation, zone: str) -> list[LaunchFailures]:
    found = (seen.failed.get((group.name, zone)) for group in seen.groups)
    return [each for each in found if each is not None]


def _is_of_a_zone(failed: LaunchFailures, policy: ControllerPolicy) -> bool:
    if failed.cause in ("", "other"):
        return failed.count >= UNKNOWN_AFTER * policy.refused_after
    return failed.cause in OF_A_ZONE


def _less_bad(
    seen: Observation, home: ZoneOffer, now: float, policy: ControllerPolicy
) -> list[ZoneOffer]:
    """Return the zones for which one is left in which nodes are taken soon; none: it is not left.

    Not those in which launches have failed lately: a zone that has nodes for a few minutes is
    better than one that has none. These are tried again ever more rarely, each time by one launch.
    """
    if not short_lives.is_avoided(seen, home.name, now, policy):
        return []
    return [
        zone
        for zone in seen.zones
        if zone.name != home.name
        and short_lives.are_longer(seen, zone.name, home.name, now, policy)
        and not _failed_lately(seen, zone.name, now, policy)
    ]


def _failed_lately(seen: Observation, zone: str, now: float, policy: ControllerPolicy) -> bool:
    def tried_after(tries: int) -> float:
        further = max(0, tries - policy.refused_after)
        return Backoff(policy.avoided_for, policy.return_after, failures=1 + further).bound

    return any(
        each.count >= policy.refused_after and now < each.at + tried_after(each.tries)
        for each in _failures(seen, zone)
    )


def change(
    seen: Observation, now: float, policy: ControllerPolicy, removed: Collection[str]
) -> Iterator[Action]:
    """Move the nodes towards one zone. `removed` are nodes that go in any case."""
    if undecided(seen, now, policy):
        yield from _choose(seen, now, policy)
    elif seen.home is not None and not seen.ended and seen.ending is None:
        yield from _tell_of_traffic(seen, now, seen.home, policy)
        yield from _follow(seen, now, seen.home, policy, removed)


def _tell_of_traffic(
    seen: Observation, now: float, home: ZoneOffer, policy: ControllerPolicy
) -> Iterator[Tell]:
    """Record that a zone is not left for what traffic would cost: once in the job's life."""
    others = len(seen.zones) > 1 and _dear_across(seen, home)
    if not others or not _is_to_be_left(seen, home, now, policy):
        return
    text = (
        f"the job stays in {home.name} although {_why(seen, home, now, policy)}: across two zones "
        f"traffic would cost {dollars(_across(seen))} an hour, its nodes cost "
        f"{dollars(seen.money.workers)} (--zones spread uses all zones)"
    )
    data = {"kind": TRAFFIC, "incarnation": f"{seen.life}-{home.name}"}
    event = Event(now, "limit", text, data=data)
    yield from seen.tell_once(event)


def _choose(seen: Observation, now: float, policy: ControllerPolicy) -> Iterator[Action]:
    """Chooses another zone; none if all are dry or too expensive.

    Zones that were left within the day are tried after all others, so that two zones with too
    little capacity do not keep out a third. Zones in which nodes are taken soon come last.
    """
    home = seen.home
    there = [zone for member in seen.staying if (zone := _zone(seen, member))]
    zones = [
        replace(
            zone,
            elsewhere=sum(each != zone.name for each in there) / max(1, len(there)),
            exchanged=seen.exchanged or TRAFFIC_GB,
        )
        for zone in _others(seen, home, now, policy)
    ]
    zones = _payable(seen, zones, now, policy)
    if not zones:
        return
    since = now - policy.remembers_for
    best = min(
        ranked(zones),
        key=lambda zone: (
            short_lives.order(seen, zone.name, now, policy),
            max(since, seen.zones_left.get(zone.name, since)),
        ),
    )
    why = _why(seen, home, now, policy)
    moves = tuple(SetSubnets(group.name, best.subnets, why) for group in seen.groups)
    yield from moves
    price = f" at ${best.usd:.4g} an hour" if best.usd else ""
    score = f", placement score {best.score}" if best.score else ""
    left = home.name if home is not None else ""
    data: dict[str, object] = {"zone": best.name, "left": left, "committed": seen.committed}
    if short_lives.is_avoided(seen, left, now, policy):
        data |= seen.short_lives[left].data()
    text = f"new nodes go to {best.name}{price}{score}: {why}"
    yield Tell(Event(now, "zone", text, data=data), after=moves)


def _others(
    seen: Observation, home: ZoneOffer | None, now: float, policy: ControllerPolicy
) -> list[ZoneOffer]:
    """Return the zones that the nodes may go to."""
    others = [
        zone for zone in seen.zones if zone != home and not is_dry(seen, zone.name, now, policy)
    ]
    if home is None or _cannot_launch(seen, home, now, policy):
        return others
    less_bad = {zone.name for zone in _less_bad(seen, home, now, policy)}
    return [zone for zone in others if zone.name in less_bad]


def _cannot_launch(
    seen: Observation, home: ZoneOffer, now: float, policy: ControllerPolicy
) -> bool:
    missing = wanting(seen, policy) > 0
    return missing and (is_dry(seen, home.name, now, policy) or bool(too_dear(seen, policy)))


def _payable(
    seen: Observation, zones: Sequence[ZoneOffer], now: float, policy: ControllerPolicy
) -> list[ZoneOffer]:
    """Return the zones whose price is within the limit.

    Without a zone so far, any that fits will do. A zone is not left for its price alone if the
    other's price is not known, or if that was left just now: prices of two sources are not of one
    moment.
    """
    home, limit = seen.home, policy.capacity.max_price
    if limit is None:
        return list(zones)
    found = [zone for zone in zones if zone.usd <= limit]
    if home is None:
        return found or list(zones)
    dry = is_dry(seen, home.name, now, policy)
    if dry or short_lives.is_avoided(seen, home.name, now, policy):
        return found
    long_ago = now - policy.return_after
    return [zone for zone in found if zone.usd and seen.zones_left.get(zone.name, 0.0) <= long_ago]


def _why(seen: Observation, home: ZoneOffer | None, now: float, policy: ControllerPolicy) -> str:
    if home is None:
        return "all nodes should be in one zone"
    if is_dry(seen, home.name, now, policy):
        told = [each for each in _failures(seen, home.name) if each.cause != "capacity"]
        return told[0].why if told else f"{home.name} has no capacity"
    if why := too_dear(seen, policy):
        return f"in {home.name} {why}"
    return f"in {home.name} {seen.short_lives[home.name].line}"


def _follow(
    seen: Observation,
    now: float,
    home: ZoneOffer,
    policy: ControllerPolicy,
    removed: Collection[str],
) -> Iterator[Action]:
    """Move nodes that still train elsewhere to the chosen zone.

    Only once nothing is missing, which shows that there is capacity, and after a commit. Never to a
    zone that was left just now, so that nodes do not wander between two that have too little each.
    """
    if short_lives.is_avoided(seen, home.name, now, policy):
        return
    if seen.hopeless or any(held(seen, group, now, policy) for group in seen.groups):
        return
    stays = [
        member for member in seen.staying if member in seen.nodes and member not in seen.drains
    ]
    behind = [name for name in stays if _zone(seen, name) not in ("", home.name)]
    missing = wanting(seen, policy) or len(stays) < len(seen.staying)
    if not behind or missing or removed or not seen.newly_committed(seen.moved_at):
        return
    if now - seen.zones_left.get(home.name, float("-inf")) < policy.return_after:
        return
    count = max(1, min(len(stays) - len(behind), len(stays) - seen.least))
    behind.sort(key=lambda name: (-seen.machines[name].launched_at, name))
    goes = behind[:count]
    replaced = tuple(Replace(name, f"the job is in {home.name} now") for name in goes)
    yield from replaced
    text = (
        f"after the commit of step {seen.committed}, {', '.join(goes)} make way for nodes in "
        f"{home.name}"
    )
    data = {"zone": home.name, "committed": seen.committed}
    yield Tell(Event(now, "zone", text, data=data), after=replaced)


def _zone(seen: Observation, instance: str) -> str:
    machine = seen.machines.get(instance)
    return machine.zone if machine is not None else ""
