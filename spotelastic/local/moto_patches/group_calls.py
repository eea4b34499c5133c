"""Patches moto's Auto Scaling calls.

They change what a group wants, and `AutoScaling` makes it happen.
"""

from collections.abc import Callable, Mapping
from typing import Any

from moto.autoscaling import models
from moto.autoscaling.exceptions import ValidationError
from moto.autoscaling.models import AutoScalingBackend, FakeAutoScalingGroup
from moto.autoscaling.responses import AutoScalingResponse
from moto.core.responses import ActionResult, EmptyResult

from spotelastic.local.autoscaling.members import LocalGroupMember
from spotelastic.local.autoscaling.regional_groups import RegionalScaling
from spotelastic.local.moto_patches.patch import Patches

_MOST_ACTIVITIES = 100


def install(patches: Patches, scaling: RegionalScaling) -> None:
    """Apply the patches."""
    patches.addition(models, "InstanceState", "members need more attributes than moto's")(
        LocalGroupMember
    )
    _install_life(patches, scaling)
    _install_sizes(patches, scaling)
    _install_ends(patches, scaling)
    _install_members(patches, scaling)
    _install_hooks(patches, scaling)
    _install_activities(patches, scaling)


def _install_life(patches: Patches, scaling: RegionalScaling) -> None:
    @patches.method(
        AutoScalingResponse,
        "create_auto_scaling_group",
        "moto ignores a new group's hooks",
    )
    def create(original: Callable[..., Any], response: Any) -> Any:
        backend, name = response.autoscaling_backend, response._get_param("AutoScalingGroupName")
        result = original(response)
        for hook in response._get_param("LifecycleHookSpecificationList", []):
            put_hook(backend, name, hook)
        return result

    @patches.method(
        AutoScalingResponse,
        "delete_auto_scaling_group",
        "moto forgets a group at once, and its instances with it",
    )
    def delete(original: Callable[..., Any], response: Any) -> Any:
        scaling.of(response.region).delete(response._get_param("AutoScalingGroupName"))
        return EmptyResult()

    patches.addition(FakeAutoScalingGroup, "status", "shown while a group is being deleted")(None)


def _install_sizes(patches: Patches, scaling: RegionalScaling) -> None:
    @patches.method(
        FakeAutoScalingGroup,
        "set_desired_capacity",
        "moto launches and terminates within the call; truncates the on-demand and spot split",
    )
    def set_desired(original: Callable[..., Any], group: Any, capacity: int | None) -> None:
        group.desired_capacity = group.min_size if capacity is None else int(capacity)
        scaling.wake()

    @patches.method(
        FakeAutoScalingGroup,
        "update",
        "moto drops the mixed-instances policy that an update does not mention",
    )
    def update(original: Callable[..., Any], group: Any, **changes: Any) -> None:
        desired, size = changes.pop("desired_capacity"), group.desired_capacity
        policy = group.mixed_instances_policy
        original(group, desired_capacity=size, **changes)
        replaced = ("mixed_instances_policy", "launch_template", "launch_config_name")
        if not any(changes.get(name) for name in replaced):
            group.mixed_instances_policy = policy
        if group.min_size > group.max_size:
            raise ValidationError("Max bound, must be greater than or equal to min bound")
        group.desired_capacity = min(
            max(size if desired is None else desired, group.min_size), group.max_size
        )


def _install_ends(patches: Patches, scaling: RegionalScaling) -> None:
    @patches.method(
        AutoScalingResponse,
        "terminate_instance_in_auto_scaling_group",
        "moto replaces within the call and knows no hooks",
    )
    def terminate(original: Callable[..., Any], response: Any) -> Any:
        activity = scaling.terminate_member(
            response._get_param("InstanceId"),
            response._get_bool_param("ShouldDecrementDesiredCapacity", False),
        )
        return ActionResult({"Activity": activity})

    @patches.method(
        AutoScalingBackend,
        "notify_terminate_instances",
        "moto replaces within TerminateInstances; here groups notice by themselves",
    )
    def notify(original: Callable[..., Any], backend: Any, instance_ids: list[str]) -> None:
        scaling.wake()


def _install_members(patches: Patches, scaling: RegionalScaling) -> None:
    @patches.method(AutoScalingBackend, "resume_processes", "a resumed group has to act")
    def resume(original: Callable[..., Any], backend: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(backend, *args, **kwargs)
        scaling.wake()
        return result


def _install_hooks(patches: Patches, scaling: RegionalScaling) -> None:
    @patches.addition(AutoScalingResponse, "complete_lifecycle_action", "moto answers 500")
    def complete(response: Any) -> Any:
        scaling.of(response.region).complete(
            response._get_param("AutoScalingGroupName"),
            response._get_param("LifecycleHookName"),
            response._get_param("LifecycleActionToken") or "",
            response._get_param("InstanceId") or "",
        )
        return EmptyResult()


def put_hook(backend: Any, group: str, given: Mapping[str, Any]) -> None:
    """Create a life-cycle hook of a new group from its API properties."""
    transition = given["LifecycleTransition"]
    timeout = int(given.get("HeartbeatTimeout", 3600))
    default = given.get("DefaultResult", "ABANDON")
    backend.create_lifecycle_hook(given["LifecycleHookName"], group, transition, timeout, default)


def _install_activities(patches: Patches, scaling: RegionalScaling) -> None:
    @patches.method(
        AutoScalingResponse, "describe_scaling_activities", "moto's list is always empty"
    )
    def describe(original: Callable[..., Any], response: Any) -> Any:
        group = response._get_param("AutoScalingGroupName") or ""
        found = scaling.of(response.region).activities.of(group)
        most = response._get_int_param("MaxRecords") or _MOST_ACTIVITIES
        return ActionResult({"Activities": found[:most], "NextToken": None})
