"""The Auto Scaling groups of all regions of the local cloud.

Groups of two regions may have the same name.
"""

from collections.abc import Mapping
from contextlib import suppress

from moto.autoscaling.exceptions import AutoscalingClientError

from spotelastic.local.autoscaling.activities import Activity
from spotelastic.local.autoscaling.groups import AutoScaling
from spotelastic.local.instances.machines import LocalInstance


class RegionalScaling:
    """The groups, by region."""

    def __init__(self, regions: Mapping[str, AutoScaling]) -> None:
        self._regions = regions

    def of(self, region: str) -> AutoScaling:
        """Return the groups of a region.

        One that this cloud does not run groups in has the first region's, which do not act on them.
        """
        return self._regions.get(region) or next(iter(self._regions.values()))

    def wake(self) -> None:
        """Note a change, wherever it was."""
        for each in self._regions.values():
            each.wake()

    def machine_changed(self, machine: LocalInstance) -> None:
        """Note that an instance's state has changed."""
        self.of(machine.it.region_name).machine_changed(machine)

    def capacity_changed(self) -> None:
        """Let launches that failed be tried again."""
        for each in self._regions.values():
            each.capacity_changed()

    def terminate_member(self, instance: str, decrement: bool) -> Activity:
        """Carry out TerminateInstanceInAutoScalingGroup, in whichever region the instance is."""
        first, *others = self._regions.values()
        for each in others:
            with suppress(AutoscalingClientError):
                return each.terminate_member(instance, decrement)
        return first.terminate_member(instance, decrement)
