"""Models the local cloud's spot market: capacity and prices by instance type and zone."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from spotelastic.aws.compute.prices import shipped_table

SPOT_SHARE = 0.3
"""Spot price as a share of the on-demand price."""

_PER_VCPU, _PER_GPU_GIB = 0.048, 0.07
"""US dollars an hour per vCPU and per GiB of GPU memory, for types without a shipped price."""


@dataclass
class SpotMarket:
    """Capacity by (instance type, zone), and prices. Without a limit capacity is unlimited."""

    limits: dict[tuple[str, str], int] = field(default_factory=dict)

    _shipped: Mapping[str, float] = field(default_factory=lambda: shipped_table().usd_per_hour)

    def free(self, type: str, zone: str, used: int) -> float:
        """Return how many more can be launched; infinity if no limit was set."""
        limit = self.limits.get((type, zone))
        return float("inf") if limit is None else max(limit - used, 0)

    def on_demand(self, type: str) -> float:
        """Return the on-demand price of a type: shipped or guessed."""
        return self._shipped.get(type) or _guessed(type)

    def spot(self, type: str, zone: str) -> float:
        """Return the spot price of a type in a zone."""
        return round(self.on_demand(type) * SPOT_SHARE, 4)


def _guessed(type: str) -> float:
    from moto.ec2.models.instance_types import INSTANCE_TYPES

    known = INSTANCE_TYPES.get(type) or {}
    vcpus = known.get("VCpuInfo", {}).get("DefaultVCpus", 2)
    gpu_gib = known.get("GpuInfo", {}).get("TotalGpuMemoryInMiB", 0) / 1024
    return float(_PER_VCPU * vcpus + _PER_GPU_GIB * gpu_gib)
