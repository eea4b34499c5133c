"""Values of the port "where nodes come from": worker groups, members, instances, zones (pure).

A worker group keeps a number of instances running: it launches what is missing, and replaces what
ends. The controller sets that number and chooses which instances go.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

InstanceState = Literal["pending", "running", "shutting-down", "terminated", "stopping", "stopped"]
ALIVE: frozenset[InstanceState] = frozenset({"pending", "running"})
"""States of instances that run or will run."""
GONE: frozenset[InstanceState] = frozenset({"shutting-down", "terminated", "stopping", "stopped"})
"""States of instances that end or have ended."""
Role = Literal["worker", "control", ""]
"""What an instance is for; "" if nothing says so."""
IN_SERVICE = "InService"
"""State of a group's member that runs."""
DRAINING = "Terminating:Wait"
"""State of a member that is to end, and for which the group waits until it has drained."""
UNATTENDED = 3600.0
"""Seconds that instances keep running after a controller last led the cluster."""
TRAFFIC_GB = 720.0
"""GB an hour that a node sends to others until that is measured: 1 GB of gradients all-reduced
every 10 s.
"""
TRAFFIC_USD = 0.02
"""US dollars for a GB between zones, both directions."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """An instance's membership in its worker group."""

    instance: str
    state: str
    """The lifecycle state: Pending, `IN_SERVICE`, Terminating, `DRAINING`, ..."""
    healthy: bool = True

    @property
    def leaving(self) -> bool:
        """Whether the instance is on its way out of the group."""
        return self.state.startswith(("Terminat", "Detach"))


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """A group that keeps `desired` instances running."""

    name: str
    desired: int
    members: tuple[GroupMember, ...]
    subnets: tuple[str, ...] = ()
    """Subnets in which it launches at present."""
    offered: tuple[str, ...] = ()
    """All subnets in which it may launch."""
    suspended: bool = False
    """Whether the cloud has stopped its launches, as AWS does after a day of failures."""
    launches_held: bool = False
    """Whether a person has suspended its launches."""
    held: tuple[str, ...] = ()
    """What a person has suspended that the cluster needs, and how to resume it, for people."""

    @property
    def staying(self) -> int:
        """Number of its instances that are not on their way out."""
        return sum(not member.leaving for member in self.members)

    @property
    def asked(self) -> int:
        """Number of instances that it still has to launch."""
        return max(0, self.desired - self.staying)

    def member(self, instance: str) -> GroupMember | None:
        """Return the membership of an instance, or None."""
        return next((member for member in self.members if member.instance == instance), None)


@dataclass(frozen=True, slots=True)
class GroupNames:
    """The names of a cluster's worker groups, and of the groups of its control nodes."""

    spot: str
    on_demand: str
    control: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LaunchQuotas:
    """The quotas that launches count against, each with where to ask for more, for people."""

    spot: str = ""
    """The quota of spot workers; "" if there is none. `on_demand` and `control` likewise."""
    on_demand: str = ""
    control: str = ""
    others: Mapping[str, str] = field(default_factory=dict)
    """Further limits that a launch may meet, by the cloud's word for each."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A machine, or what plays one, as its cloud describes it."""

    id: str
    role: Role
    state: InstanceState
    type: str
    zone: str
    address: str
    spot: bool
    launched_at: float
    member: str = ""
    """The etcd member that a control node runs."""
    reason: str = ""
    """Why it ended, in the cloud's words: Server.SpotInstanceTermination, ..."""
    public: bool = False
    """Whether it has a public address; a new instance gets it a moment later."""
    reservation: str = ""
    """The reservation of capacity that it runs in, if any."""


@dataclass(frozen=True, slots=True)
class ZoneOffer:
    """A zone that workers may be in, with what it offers."""

    name: str
    subnets: tuple[str, ...] = ()
    id: str = ""
    """The zone's id, which is the same for all accounts, unlike its name."""
    usd: float = 0.0
    """US dollars an hour for a node of the cheapest type there; 0 if not known."""
    score: int = 0
    """Placement score, 1 to 10: how likely all nodes are launched; 0 if not known."""
    elsewhere: float = 0.0
    """Share of the job's nodes that train in other zones."""
    exchanged: float = TRAFFIC_GB
    """GB an hour that a node sends to others."""
    useful_usd: float = 0.0
    """US dollars for as much as one of its types makes in an hour, the same one in all zones and
    regions; 0: types are alike, or it is not known.
    """

    @property
    def cost(self) -> float:
        """Expected US dollars an hour of a node there; of unlike ones, by what they compute.

        Half the likelihood must come at half the price. Without any score all zones are equally
        likely.
        """
        usd = self.useful_usd or self.usd
        return usd / (self.score or 10) * 10 + self.elsewhere * self.exchanged * TRAFFIC_USD


def ranked(zones: Iterable[ZoneOffer]) -> tuple[ZoneOffer, ...]:
    """Return the zones, best first (pure).

    If some have a score, one without counts as the worst. Zones without a price come last.
    """
    found = list(zones)
    if any(zone.score for zone in found):
        found = [replace(zone, score=zone.score or 1) for zone in found]
    return tuple(sorted(found, key=lambda zone: (not zone.usd, zone.cost, zone.name)))
