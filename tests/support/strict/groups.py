"""Groups of the local cloud that keep to their minimum, and tell of instances that EC2 accepted and
could not start.
"""

from typing import Any

from moto.autoscaling.exceptions import ValidationError
from support.strict.instances import BROKEN

from spotelastic.clock import wall
from spotelastic.local.autoscaling.activities import Activity
from spotelastic.local.autoscaling.groups import AutoScaling
from spotelastic.local.autoscaling.members import LocalGroupMember
from spotelastic.local.base import eventbridge_messages
from spotelastic.local.instances.machines import TERMINATED, LocalInstance


class StrictGroups(AutoScaling):
    """Groups that refuse to shrink below their minimum, say why an instance did not start, and wait
    before they launch another.
    """

    def machine_changed(self, machine: LocalInstance) -> None:
        if machine.state == TERMINATED and machine.it.state_reason.code == BROKEN:
            self.wake()
        else:
            super().machine_changed(machine)

    def terminate_member(self, instance: str, decrement: bool) -> Activity:
        group, _ = self._find(instance)
        if decrement and group.desired_capacity <= group.min_size:
            raise ValidationError(
                f"Currently, desiredSize equals minSize ({group.min_size}). Terminating "
                "instance without replacement will violate group's min size constraint. "
                "Either set shouldDecrementDesiredCapacity flag to false or lower group's "
                "min size."
            )
        return super().terminate_member(instance, decrement)

    def _begin_leaving(self, group: Any, member: LocalGroupMember) -> None:
        machine = self.machine(member)
        if machine is not None and machine.it.state_reason.code == BROKEN:
            self._launch_broke(group, member, str(machine.it.state_reason.message))
        super()._begin_leaving(group, member)

    def _launch_broke(self, group: Any, member: LocalGroupMember, why: str) -> None:
        if member.activity is None:
            return
        member.activity.ended(
            "Cancelled",
            "Instance became unhealthy while waiting for instance to be in InService state. "
            f"Termination Reason: {why}",
        )
        ended = eventbridge_messages.activity_ended(group, member.activity, member.instance_id)
        self._emit(ended)
        self._launch_failed(self._ledger(group.name), wall())
        member.activity = None
