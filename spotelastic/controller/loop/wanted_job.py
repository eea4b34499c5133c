"""What the user wants of a cluster's job, as the bucket describes it (pure)."""

import sys
from dataclasses import dataclass, replace

from spotelastic.controller.decisions.housekeeping import HousekeepingPolicy
from spotelastic.controller.model.config import ControllerConfig
from spotelastic.controller.model.observation import ControllerPolicy
from spotelastic.model.job import JobSpec, Settings


@dataclass(frozen=True, slots=True)
class WantedJob:
    """The job's description as it was read last, and the policies that follow from it."""

    settings: Settings
    types: tuple[str, ...]
    """Instance types of the workers."""
    created_at: float
    """When `up` wrote the description, by the clock of the computer that it ran on."""
    policy: ControllerPolicy
    upkeep: HousekeepingPolicy
    nat_gateways: int
    on_demand_group: str
    """Name of the group of on-demand workers."""
    asked_at: float = 0.0
    """When this leader saw that `up` had been run again; 0: it has not been."""
    stopping: bool = False
    """Whether the cluster is to be taken down."""
    spec: JobSpec | None = None
    """All of the description."""

    @classmethod
    def first(cls, config: ControllerConfig, on_demand_group: str) -> "WantedJob":
        """Return the description that the control node was started with."""
        spec = config.spec
        return cls(
            settings=spec.settings,
            types=spec.instance_types,
            created_at=spec.created_at,
            policy=_policy(config.policy, spec, on_demand_group),
            upkeep=HousekeepingPolicy(boot_within=config.policy.boot_within, linger=spec.linger),
            nat_gateways=spec.nat_gateways,
            on_demand_group=on_demand_group,
            spec=spec,
        )

    def read(self, stopping: bool, spec: JobSpec | None, now: float) -> "WantedJob":
        """Return the description after the bucket was read at `now`.

        `up` may have been run again; `spec` is None if the bucket holds no description.
        """
        if spec is None:
            return replace(self, stopping=stopping)
        again = spec.created_at != self.created_at
        return WantedJob(
            settings=spec.settings,
            types=spec.instance_types,
            created_at=spec.created_at,
            policy=_policy(self.policy, spec, self.on_demand_group),
            upkeep=replace(self.upkeep, linger=spec.linger),
            nat_gateways=spec.nat_gateways,
            on_demand_group=self.on_demand_group,
            asked_at=now if again else self.asked_at,
            stopping=stopping,
            spec=spec,
        )


def _policy(policy: ControllerPolicy, spec: JobSpec, on_demand_group: str) -> ControllerPolicy:
    """Return the policy for this job.

    A cluster of on-demand workers has all of its nodes as a base.
    """
    capacity = spec.capacity
    if spec.worker_group == on_demand_group:
        capacity = replace(capacity, base=sys.maxsize)
    return replace(policy, capacity=capacity)
