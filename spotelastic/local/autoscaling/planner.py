"""What an Auto Scaling group launches and terminates next. Pure: `groups.py` does it.

Follows the user guide's pages on allocation strategies, Availability Zone distribution and
termination policies, as far as a group of one launch template and unweighted types goes.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol


@dataclass(frozen=True, slots=True)
class GroupInstance:
    """A member that counts towards the group's size."""

    id: str
    zone: str
    spot: bool
    launched_at: float
    protected: bool = False


@dataclass(frozen=True, slots=True)
class LaunchPool:
    """Where a launch can be tried."""

    subnet: str
    zone: str
    type: str


@dataclass(frozen=True, slots=True)
class CapacityOffer:
    """What a (type, zone) has to offer now."""

    price: float
    free: float


class Offering(Protocol):
    def __call__(self, type: str, zone: str) -> CapacityOffer: ...


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """What the group wants."""

    desired: int
    subnets: tuple[tuple[str, str], ...]
    """(subnet, zone)."""
    types: tuple[str, ...]
    """In the order of the overrides."""
    on_demand_base: int = 0
    on_demand_percentage: int = 100
    """Of what is above the base."""
    on_demand_strategy: str = "prioritized"
    spot_strategy: str = "lowest-price"

    @property
    def on_demand(self) -> int:
        """How many of the desired instances are on-demand; fractions count for on-demand."""
        above = max(self.desired - self.on_demand_base, 0)
        share = math.ceil(above * self.on_demand_percentage / 100)
        return min(self.on_demand_base + share, self.desired)


def purchases(policy: GroupRequest, members: Sequence[GroupInstance]) -> list[bool]:
    """For each launch that is missing: whether it is a spot instance. On-demand comes first."""
    missing = policy.desired - len(members)
    if missing <= 0:
        return []
    on_demand = policy.on_demand - sum(not member.spot for member in members)
    return [index >= on_demand for index in range(missing)]


def places(
    policy: GroupRequest, members: Sequence[GroupInstance], spot: bool, offer: Offering
) -> list[LaunchPool]:
    """Where to try one launch, in order: the emptiest zones first, in each the best type first."""
    population = Counter(member.zone for member in members)
    subnets = sorted(policy.subnets, key=lambda subnet: population[subnet[1]])
    return [
        LaunchPool(subnet, zone, type)
        for subnet, zone in subnets
        for type in _by_preference(policy, spot, partial(offer, zone=zone))
    ]


def surplus(policy: GroupRequest, members: Sequence[GroupInstance]) -> list[str]:
    """Whom to terminate to get down to size: in the fullest zone, of the purchase option that is
    over its share, the oldest; never one that is protected from scale-in.
    """
    left = list(members)
    chosen = []
    while len(left) > policy.desired:
        candidates = [member for member in left if not member.protected]
        if not candidates:
            break
        population = Counter(member.zone for member in left)
        over = sum(not member.spot for member in left) > policy.on_demand
        victim = min(
            candidates,
            key=lambda member: (
                -population[member.zone],
                member.spot if over else not member.spot,
                member.launched_at,
                member.id,
            ),
        )
        left.remove(victim)
        chosen.append(victim.id)
    return chosen


def _by_preference(
    policy: GroupRequest, spot: bool, offer: Callable[[str], CapacityOffer]
) -> list[str]:
    strategy = policy.spot_strategy if spot else policy.on_demand_strategy
    if strategy in ("prioritized", "capacity-optimized-prioritized"):
        return list(policy.types)
    if strategy == "capacity-optimized":
        return sorted(policy.types, key=lambda type: -offer(type).free)
    return sorted(policy.types, key=lambda type: offer(type).price)
