"""Makes the local cloud's Auto Scaling groups act: moto only stores and shows them.

`pass_over` takes every group one step towards its desired state. It runs on the agenda whenever
something changed: a call, an instance's state, capacity, a deadline. So calls return at once, and
launches happen after them, as on AWS. `planner.py` decides what to launch and which instances to
terminate.

A member passes through Pending, InService, Terminating, Terminating:Wait (hooks) and
Terminating:Proceed. Terminating members no longer count, so their replacements launch at once. An
instance that EC2 has taken passes through the hooks as well: its group waits until the action is
completed or times out.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moto.autoscaling.exceptions import ValidationError
from moto.core.exceptions import ServiceException

from spotelastic.clock import wall
from spotelastic.local.autoscaling import planner
from spotelastic.local.autoscaling.activities import Activities, Activity
from spotelastic.local.autoscaling.members import (
    LocalGroupMember,
    counting,
    launch,
    policy_of,
    seen,
    suspended,
)
from spotelastic.local.base import eventbridge_messages
from spotelastic.local.base.agenda import Agenda
from spotelastic.local.instances import machines
from spotelastic.local.instances.machines import LocalInstance, LocalInstances
from spotelastic.local.instances.spot_market import SpotMarket

_log = logging.getLogger(__name__)

RETRY = 15.0
"""Seconds until a failed launch is tried again, unless capacity changes before."""


@dataclass(slots=True)
class _Ledger:
    """What moto does not store of a group."""

    retry_at: float = 0.0
    deleting: bool = False


class AutoScaling:
    """All Auto Scaling groups of the local cloud."""

    def __init__(
        self,
        *,
        backend: Any,
        machines: LocalInstances,
        market: SpotMarket,
        agenda: Agenda,
        emit: Callable[[eventbridge_messages.BusEvent], None],
    ) -> None:
        self._backend = backend
        self._machines = machines
        self._market = market
        self._agenda = agenda
        self._emit = emit
        self._ledgers: dict[str, _Ledger] = {}
        self.activities = Activities()
        self._planned = False

    # -- what calls ask for ------------------------------------------------------------------

    def wake(self) -> None:
        """Note a change: all groups are looked at soon."""
        if not self._planned:
            self._planned = True
            self._agenda.soon(self.pass_over)

    def machine_changed(self, machine: LocalInstance) -> None:
        """Note that an instance's state has changed."""
        if machine.state == machines.TERMINATED:
            self.capacity_changed()
        self.wake()

    def capacity_changed(self) -> None:
        """Let launches that failed be tried again at once."""
        for ledger in self._ledgers.values():
            ledger.retry_at = 0.0
        self.wake()

    def terminate_member(self, instance: str, decrement: bool) -> Activity:
        """Carry out TerminateInstanceInAutoScalingGroup."""
        group, member = self._find(instance)
        group.desired_capacity -= int(decrement)
        self.wake()
        return self._begin_terminating(group, member)

    def complete(self, group: str, hook: str, token: str, instance: str) -> None:
        """Carry out CompleteLifecycleAction."""
        del self._waiting(group, hook, token, instance).waits[hook]
        self.wake()

    def delete(self, group: str) -> None:
        """Carry out DeleteAutoScalingGroup, with all instances."""
        found = self._group(group)
        found.min_size = found.max_size = found.desired_capacity = 0
        found.status = "Delete in progress"
        self._ledger(group).deleting = True
        for member in found.instance_states:
            member.waits.clear()
            self._begin_terminating(found, member, hooks=False)
        self._drop_if_empty(found)

    def delete_now(self, group: str) -> None:
        """Delete a group and wait until its instances have ended.

        A stack deletes what they use right after it.
        """
        instances = [member.instance for member in self._group(group).instance_states]
        self.delete(group)
        self._machines.settle(instances)
        self.pass_over()

    # -- what groups do ----------------------------------------------------------------------

    def pass_over(self) -> None:
        """Take every group one step towards its desired state."""
        self._planned = False
        now = wall()
        for group in list(self._backend.autoscaling_groups.values()):
            try:
                self._look_after(group, now)
            except Exception:  # e.g. its launch template was deleted: the other groups go on
                _log.exception("cannot look after group %s", group.name)
                self._agenda.at(now + RETRY, self.wake)

    def _look_after(self, group: Any, now: float) -> None:
        for member in list(group.instance_states):
            self._advance(group, member, now)
        if self._ledger(group.name).deleting:
            self._drop_if_empty(group)
            return
        self._shrink(group)
        self._grow(group, now)

    def _advance(self, group: Any, member: LocalGroupMember, now: float) -> None:
        """Take one member one state further, if possible."""
        machine = self.machine(member)
        for name, wait in list(member.waits.items()):
            if now >= wait.deadline:
                del member.waits[name]
        state = member.lifecycle_state
        if machine is None or machine.state in machines.GONE:
            self._advance_gone(group, member, machine)
        elif state == "Pending" and machine.state == machines.RUNNING:
            self._put_in_service(group, member)
        elif state == "Terminating:Wait" and not member.waits:
            self._proceed_terminating(member)

    def _advance_gone(
        self, group: Any, member: LocalGroupMember, machine: LocalInstance | None
    ) -> None:
        if not member.lifecycle_state.startswith("Terminating"):
            if not self._is_found_out(member, machine):
                return
            self._begin_leaving(group, member)
        if member.lifecycle_state == "Terminating:Wait" and not member.waits:
            member.lifecycle_state = "Terminating:Proceed"
        ended = machine is None or machine.state == machines.TERMINATED
        if ended and member.lifecycle_state != "Terminating:Wait":
            self._leave(group, member)

    def _is_found_out(self, member: LocalGroupMember, machine: LocalInstance | None) -> bool:
        """Whether the group's health check has seen that the instance is gone: at once."""
        return True

    def _begin_leaving(self, group: Any, member: LocalGroupMember) -> None:
        """Let a member go whose instance EC2 has taken. One that never ran passes no hooks."""
        ran = member.lifecycle_state != "Pending"
        member.activity = self._begin(group, member)
        member.lifecycle_state = "Terminating"
        member.waits.clear()
        if ran:
            self._enter_hooks(group, member)

    def _leave(self, group: Any, member: LocalGroupMember) -> None:
        group.instance_states.remove(member)
        if member.activity is not None:
            member.activity.ended("Successful")
            self._emit(
                eventbridge_messages.activity_ended(group, member.activity, member.instance_id)
            )

    def _enter_hooks(self, group: Any, member: LocalGroupMember) -> None:
        """Let a member that ends wait at its hooks; without any it goes on in the same pass."""
        member.lifecycle_state = "Terminating:Wait"
        now = wall()
        for hook in self._backend.describe_lifecycle_hooks(group.name):
            wait = member.wait(hook, now)
            self._agenda.at(wait.deadline, self.wake)
            self._emit(
                eventbridge_messages.lifecycle_action(group, member.instance_id, hook, wait.token)
            )

    def _put_in_service(self, group: Any, member: LocalGroupMember) -> None:
        member.lifecycle_state = "InService"
        if member.activity is not None:
            member.activity.ended("Successful")
            self._emit(
                eventbridge_messages.activity_ended(group, member.activity, member.instance_id)
            )
            member.activity = None

    def _begin_terminating(
        self, group: Any, member: LocalGroupMember, *, hooks: bool = True
    ) -> Activity:
        if member.lifecycle_state.startswith("Terminating"):
            if not hooks:
                self._proceed_terminating(member)
            activity = member.activity
            assert isinstance(activity, Activity)
            return activity
        member.waits.clear()
        activity = member.activity = self._begin(group, member)
        if (machine := self.machine(member)) is not None:
            machine.target_state = "Terminated"
        if hooks:
            self._enter_hooks(group, member)
        if not member.waits:
            self._proceed_terminating(member)
        return activity

    def _proceed_terminating(self, member: LocalGroupMember) -> None:
        member.lifecycle_state = "Terminating:Proceed"
        self._machines.terminate(member.instance)

    def _shrink(self, group: Any) -> None:
        by_id = {member.instance_id: member for member in counting(group)}
        for victim in planner.surplus(policy_of(group), seen(by_id.values())):
            self._begin_terminating(group, by_id[victim])

    def _grow(self, group: Any, now: float) -> None:
        ledger = self._ledger(group.name)
        if suspended(group, "Launch") or now < ledger.retry_at:
            return
        policy = policy_of(group)
        failed: set[bool] = set()
        for spot in planner.purchases(policy, seen(counting(group))):
            if spot not in failed and not self._launch_one(group, policy, spot):
                failed.add(spot)
        if failed:
            self._launch_failed(ledger, now)

    def _launch_failed(self, ledger: _Ledger, now: float) -> None:
        """Leave the group's launches alone for a while."""
        ledger.retry_at = now + RETRY
        self._agenda.at(ledger.retry_at, self.wake)

    def _launch_one(self, group: Any, policy: planner.GroupRequest, spot: bool) -> bool:
        failure = "the group has no subnet"
        prices = self._market
        price = prices.spot if spot else lambda type, _: prices.on_demand(type)
        places = planner.places(policy, seen(counting(group)), spot, price)
        for place in places:
            try:
                instance = launch(group, place, spot)
            except ServiceException as error:
                failure = f"{error.code} - {error.message}"
            except OSError as error:
                failure = f"InternalError - {error}"
            else:
                self._join(group, instance, spot)
                return True
        zone = places[-1].zone if places else ""
        activity = self.activities.begin(group.name, zone, launching=True)
        option = "Spot" if spot else "On-Demand"
        activity.ended(
            "Failed",
            f"Could not launch {option} Instances. {failure} Launching EC2 instance failed.",
        )
        self._emit(eventbridge_messages.activity_ended(group, activity, ""))
        return False

    def _join(self, group: Any, instance: Any, spot: bool) -> None:
        member = LocalGroupMember(
            instance,
            lifecycle_state="Pending",
            autoscaling_group=group,
        )
        member.spot = spot
        group.instance_states.append(member)
        if (machine := self.machine(member)) is not None:
            machine.target_state = "InService"
        member.activity = self.activities.begin(group.name, member.zone, launching=True)

    # -- books -------------------------------------------------------------------------------

    def _begin(self, group: Any, member: LocalGroupMember) -> Activity:
        """Open a termination's activity; a launch still in progress is cancelled."""
        if member.activity is not None:
            member.activity.ended("Cancelled")
        return self.activities.begin(group.name, member.zone, launching=False)

    def _ledger(self, group: str) -> _Ledger:
        return self._ledgers.setdefault(group, _Ledger())

    def _drop_if_empty(self, group: Any) -> None:
        if not group.instance_states:
            self._backend.autoscaling_groups.pop(group.name, None)
            self._ledgers.pop(group.name, None)
            self.activities.forget(group.name)
            for key, hook in list(self._backend.lifecycle_hooks.items()):
                if hook.auto_scaling_group_name == group.name:
                    del self._backend.lifecycle_hooks[key]
            for key in list(self._backend.scheduled_actions):
                if key[0] == group.name:
                    del self._backend.scheduled_actions[key]

    def machine(self, member: LocalGroupMember) -> LocalInstance | None:
        """Return the instance of a member, or None."""
        return self._machines.get(member.instance_id)

    def _group(self, name: str) -> Any:
        try:
            return self._backend.autoscaling_groups[name]
        except KeyError:
            raise ValidationError(f"AutoScalingGroup name not found - {name}") from None

    def _find(self, instance: str) -> tuple[Any, LocalGroupMember]:
        for group in self._backend.autoscaling_groups.values():
            for member in group.instance_states:
                if member.instance_id == instance:
                    return group, member
        raise ValidationError(f"Instance Id not found - No managed instance found for {instance}")

    def _waiting(self, group: str, hook: str, token: str, instance: str) -> LocalGroupMember:
        member: LocalGroupMember
        for member in self._group(group).instance_states:
            wait = member.waits.get(hook)
            if wait and (wait.token == token if token else member.instance_id == instance):
                return member
        name = f"token {token}" if token else f"instance {instance}"
        raise ValidationError(f"No active Lifecycle Action found with {name}")
