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

    spec: JobSpec
    policy: ControllerPolicy
    upkeep: HousekeepingPolicy
    on_demand_group: str
    asked_at: float = 0.0
    """When this leader saw that `up` had been run again; 0: it has not been."""
    stopping: bool = False

    @property
    def settings(self) -> Settings:
        return self.spec.settings

    @classmethod
    def first(cls, config: ControllerConfig, on_demand_group: str) -> "WantedJob":
        """Return the description that the control node was started with."""
        upkeep = HousekeepingPolicy(boot_within=config.policy.boot_within)
        return cls(config.spec, config.policy, upkeep, on_demand_group)._of(config.spec)

    def read(self, stopping: bool, spec: JobSpec | None, now: float) -> "WantedJob":
        """Return the description after the bucket was read at `now`.

        `up` may have been run again; `spec` is None if the bucket holds no description.
        """
        if spec is None:
            return replace(self, stopping=stopping)
        again = spec.created_at != self.spec.created_at
        asked_at = now if again else self.asked_at
        return replace(self._of(spec), stopping=stopping, asked_at=asked_at)

    def _of(self, spec: JobSpec) -> "WantedJob":
        """Return it with another description.

        A cluster of on-demand workers has all of its nodes as a base.
        """
        capacity = spec.capacity
        if spec.worker_group == self.on_demand_group:
            capacity = replace(capacity, base=sys.maxsize)
        policy = replace(self.policy, capacity=capacity)
        return replace(
            self, spec=spec, policy=policy, upkeep=replace(self.upkeep, linger=spec.linger)
        )
