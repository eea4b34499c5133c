"""Decides what a local Auto Scaling group launches and terminates next (pure).

Follows the Auto Scaling user guide on allocation strategies, Availability Zone distribution and
termination policies, for groups of one launch template and unweighted types. `groups.py` carries it
out.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupInstance:
    """A member that counts towards the group's size."""

    id: str
    zone: str
    spot: bool
    launched_at: float


@dataclass(frozen=True, slots=True)
class LaunchPool:
    """A subnet, zone and type in which a launch can be tried."""

    subnet: str
    zone: str
    type: str


Price = Callable[[str, str], float]
"""Returns the present price of a type in a zone."""


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """What the group asks for."""

    desired: int
    subnets: tuple[tuple[str, str], ...]
    """Pairs of (subnet, zone)."""
    types: tuple[str, ...]
    """Types in the order of the overrides."""
    on_demand_base: int = 0
    on_demand_percentage: int = 100
    """Share of on-demand instances above the base."""
    on_demand_strategy: str = "prioritized"
    spot_strategy: str = "lowest-price"

    @property
    def on_demand(self) -> int:
        """How many of the desired instances are on-demand; fractions count as on-demand."""
        above = max(self.desired - self.on_demand_base, 0)
        share = math.ceil(above * self.on_demand_percentage / 100)
        return min(self.on_demand_base + share, self.desired)


def purchases(policy: GroupRequest, members: Sequence[GroupInstance]) -> list[bool]:
    """Return, for each missing instance, whether it is spot. On-demand comes first."""
    missing = policy.desired - len(members)
    if missing <= 0:
        return []
    on_demand = policy.on_demand - sum(not member.spot for member in members)
    return [index >= on_demand for index in range(missing)]


def places(
    policy: GroupRequest, members: Sequence[GroupInstance], spot: bool, price: Price
) -> list[LaunchPool]:
    """Return where to try one launch: the emptiest zones first, and in each the best type first."""
    population = Counter(member.zone for member in members)
    subnets = sorted(policy.subnets, key=lambda subnet: population[subnet[1]])
    return [
        LaunchPool(subnet, zone, type)
        for subnet, zone in subnets
        for type in _by_preference(policy, spot, zone, price)
    ]


def surplus(policy: GroupRequest, members: Sequence[GroupInstance]) -> list[str]:
    """Return which instances to terminate to get down to the desired size.

    Of the fullest zone and the purchase option over its share, the oldest.
    """
    left = list(members)
    chosen = []
    while len(left) > policy.desired:
        population = Counter(member.zone for member in left)
        over = sum(not member.spot for member in left) > policy.on_demand
        victim = min(
            left,
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


def _by_preference(policy: GroupRequest, spot: bool, zone: str, price: Price) -> list[str]:
    strategy = policy.spot_strategy if spot else policy.on_demand_strategy
    if strategy.endswith("prioritized"):
        return list(policy.types)
    return sorted(policy.types, key=lambda type: price(type, zone))
