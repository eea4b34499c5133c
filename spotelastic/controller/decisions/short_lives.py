"""Decides which zones are avoided because the cloud takes nodes there too soon (pure).

A node has paid for itself once it has trained for as long as its boot took, and the pauses that
its coming and going cause to all nodes. One that is taken before has had a *short life*. Launches
succeed in such a zone, so nothing else leaves it. After several short lives in a row it is avoided
for a while that doubles with each further one. A node that is launched there later and lives long
makes all that forgotten.

Interruptions that people cause count as well: AWS does not tell them apart.

Must never happen:

- a job is starved: no launch is held back for short lives. They only say which zone comes first
  where several have nodes (`zone_packing.py`), and of bad ones that is the one where nodes live
  longest;
- the only zone with nodes is left, or jobs go to and fro: it is left only for a zone in which
  launches have not failed lately, and each further try there is made more rarely.
"""

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from spotelastic_checkpoints.backoff import Backoff

from spotelastic.cloud.model import ALIVE, GONE, Instance
from spotelastic.controller.model.observation import (
    ControllerPolicy,
    Observation,
    Tell,
)
from spotelastic.controller.model.short_lives import (
    SHORT_LIFE,
    SHORT_LIFE_OVER,
    ShortLives,
    lifetime,
)
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.progress import Event

TAKEN = frozenset({"Server.SpotInstanceTermination", "Server.SpotInstanceShutdown"})
"""EC2's reasons for the end of a spot instance that it has taken back."""
LONG = 3.0
"""How many times as long a node must live as what pays, to show that nodes live long there."""
CLEARLY_LONGER = 2.0
"""How many times as long nodes must have lived in another bad zone for which one is left."""


def tell(seen: Observation, now: float, policy: ControllerPolicy) -> Iterator[Tell]:
    """Record short lives, and that nodes live long again in a zone. Each node counts once.

    Only where there is a choice: in other jobs nothing would follow from it.
    """
    if seen.ended or len(seen.zones) < 2:
        return
    pays = pays_after(seen, policy)
    for machine in _spot_workers(seen):
        taken_at = _taken_at(seen, machine, now)
        if taken_at is None or not 0 <= taken_at - machine.launched_at < pays:
            continue
        lived = taken_at - machine.launched_at
        data = {"zone": machine.zone, "type": machine.type, "lived": lived, "at": taken_at}
        text = f"{machine.id} was taken {lifetime(lived)} after its launch in {machine.zone}"
        event = Event(now, SHORT_LIFE, text, machine.id, data)
        yield from seen.tell_once(event)
    for zone, lives in seen.short_lives.items():
        for machine in _spot_workers(seen):
            if machine.zone == zone and now >= _proves_at(seen, machine, lives, policy):
                age = lifetime(now - machine.launched_at)
                text = f"nodes in {zone} last again: {machine.id} has lived for {age}"
                data = {"zone": zone, "incarnation": f"{zone}-{lives.at}"}
                event = Event(now, SHORT_LIFE_OVER, text, "", data)
                yield from seen.tell_once(event)
                break


def pays_after(seen: Observation, policy: ControllerPolicy) -> float:
    """Return the seconds from its launch after which a node has paid for itself."""
    return 2 * policy.boots_in + len(seen.nodes) * policy.pauses_for


def avoided_until(lives: ShortLives, policy: ControllerPolicy) -> float:
    """Return until when a zone is avoided; 0: it is not."""
    tries = 1 + lives.times - policy.short_lives
    if tries < 1:
        return 0.0
    return lives.at + Backoff(policy.avoided_for, policy.avoided_at_most, failures=tries).bound


def is_avoided(seen: Observation, zone: str, now: float, policy: ControllerPolicy) -> bool:
    lives = seen.short_lives.get(zone)
    return lives is not None and now < avoided_until(lives, policy)


def lines(zones: Mapping[str, ShortLives], now: float, policy: ControllerPolicy) -> Iterator[str]:
    """Yield a line about each zone that is avoided now, for people."""
    for zone, lives in sorted(zones.items()):
        until = avoided_until(lives, policy)
        if now < until:
            at = datetime.fromtimestamp(until, UTC)
            yield f"in {zone} {lives.line}: other zones come first until {at:%H:%M} UTC"


def are_longer(
    seen: Observation, zone: str, home: str, now: float, policy: ControllerPolicy
) -> bool:
    """Whether nodes are expected to live longer in a zone than in the other one, by far."""
    if not is_avoided(seen, zone, now, policy):
        return True
    return seen.short_lives[zone].lived >= CLEARLY_LONGER * seen.short_lives[home].lived


def order(seen: Observation, zone: str, now: float, policy: ControllerPolicy) -> float:
    """Return what zones are sorted by before all else: the least bad ones come first."""
    if not is_avoided(seen, zone, now, policy):
        return -math.inf
    return -seen.short_lives[zone].lived


def wakes(seen: Observation, policy: ControllerPolicy) -> Iterator[float]:
    """Yield the times at which something changes here without any event."""
    for zone, lives in seen.short_lives.items():
        yield avoided_until(lives, policy)
        for machine in _spot_workers(seen):
            if machine.zone == zone:
                yield _proves_at(seen, machine, lives, policy)


def _spot_workers(seen: Observation) -> Iterator[Instance]:
    for machine in seen.machines.values():
        if machine.role == "worker" and machine.spot and machine.zone:
            yield machine


def _taken_at(seen: Observation, machine: Instance, now: float) -> float | None:
    """Return when the cloud has taken an instance, or has said that it will; None: it has not."""
    drain = seen.drains.get(machine.id)
    if drain is not None:
        notice = drain.notice
        return notice.at if notice.kind is InterruptionKind.SPOT_INTERRUPTION else None
    if machine.state not in GONE or machine.reason not in TAKEN:
        return None
    left = seen.left.get(machine.id)
    return left.at if left is not None else now


def _proves_at(
    seen: Observation, machine: Instance, lives: ShortLives, policy: ControllerPolicy
) -> float:
    """Return when a node shows that nodes live long there; infinity: it does not.

    A node that was there before the first short life says nothing about those that come.
    """
    comes = machine.state in ALIVE and machine.id not in seen.drains
    if not comes or machine.launched_at < lives.since:
        return math.inf
    return machine.launched_at + LONG * pays_after(seen, policy)
