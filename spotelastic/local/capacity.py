"""How many instances of a type a zone has left, and what they cost."""

from dataclasses import dataclass, field

SPOT_SHARE = 0.3
"""Spot prices are this share of on-demand until somebody sets one."""

_PER_VCPU = 0.048  # USD an hour, for types that are not listed
ON_DEMAND = {
    "t3.micro": 0.0104,
    "t3.small": 0.0208,
    "t3.medium": 0.0416,
    "m5.large": 0.096,
    "m5.xlarge": 0.192,
    "c5.large": 0.085,
    "c5.xlarge": 0.17,
    "g4dn.xlarge": 0.526,
    "g4dn.12xlarge": 3.912,
    "g5.xlarge": 1.006,
    "g5.2xlarge": 1.212,
    "g5.12xlarge": 5.672,
    "g5.48xlarge": 16.288,
    "g6.xlarge": 0.8048,
    "g6.12xlarge": 4.6016,
    "g6e.xlarge": 1.861,
    "p3.2xlarge": 3.06,
    "p4d.24xlarge": 21.957,
    "p4de.24xlarge": 27.447,
    "p5.48xlarge": 55.04,
}
"""USD an hour, Linux, us-east-1."""


@dataclass
class Market:
    """Capacity and prices by (instance type, zone). Without a limit there is no end of capacity."""

    limits: dict[tuple[str, str], int] = field(default_factory=dict)
    prices: dict[tuple[str, str], float] = field(default_factory=dict)

    def free(self, type: str, zone: str, used: int) -> float:
        """How many more can be launched; infinity where no limit was set."""
        limit = self.limits.get((type, zone))
        return float("inf") if limit is None else max(limit - used, 0)

    def on_demand(self, type: str) -> float:
        return ON_DEMAND.get(type) or _PER_VCPU * _vcpus(type)

    def spot(self, type: str, zone: str) -> float:
        return self.prices.get((type, zone), round(self.on_demand(type) * SPOT_SHARE, 4))


def _vcpus(type: str) -> int:
    from moto.ec2.models.instance_types import INSTANCE_TYPES

    information = INSTANCE_TYPES.get(type) or {}
    return int(information.get("VCpuInfo", {}).get("DefaultVCpus", 2))
