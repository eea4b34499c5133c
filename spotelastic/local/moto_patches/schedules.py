"""Patches moto to carry out scheduled actions of Auto Scaling groups when they are due."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from moto.autoscaling.exceptions import ValidationError
from moto.autoscaling.models import AutoScalingBackend

from spotelastic.local.autoscaling.regional_groups import RegionalScaling
from spotelastic.local.base.agenda import Agenda
from spotelastic.local.moto_patches.patch import Patches


def install(patches: Patches, agenda: Agenda, scaling: RegionalScaling) -> None:
    """Apply the patches."""

    @patches.method(
        AutoScalingBackend,
        "put_scheduled_update_group_action",
        "moto keeps one action per name for all groups, and carries none out",
    )
    def put(original: Callable[..., Any], backend: Any, **given: Any) -> Any:
        group, name, start = given["name"], given["scheduled_action_name"], given["start_time"]
        if group not in backend.autoscaling_groups:
            raise ValidationError(f"AutoScalingGroup name not found - {group}")
        action = original(backend, **given)
        del backend.scheduled_actions[name]
        backend.scheduled_actions[group, name] = action
        agenda.at(_moment(start), partial(_carry_out, backend, scaling, action))
        return action


def _carry_out(backend: Any, scaling: RegionalScaling, action: Any) -> None:
    """Carry out an action, unless it was replaced or deleted since."""
    key = (action.auto_scaling_group_name, action.scheduled_action_name)
    if backend.scheduled_actions.get(key) is not action:
        return
    del backend.scheduled_actions[key]
    group = backend.autoscaling_groups[action.auto_scaling_group_name]
    for size in ("min_size", "max_size", "desired_capacity"):
        if (value := getattr(action, size)) is not None:
            setattr(group, size, value)
    group.desired_capacity = min(max(group.desired_capacity, group.min_size), group.max_size)
    scaling.wake()


def _moment(start: Any) -> float:
    moment = datetime.fromisoformat(str(start))
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
