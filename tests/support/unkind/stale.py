"""Patches moto to answer questions about instances and groups as they were a moment ago.

AWS's control planes are eventually consistent: an answer may be older than the one before, and may
not show what the caller has just done. Here a question gets one of the answers that it would have
had within the last seconds, drawn for each call. Only questions that were asked before can be
answered so. An instance or a profile that is that new may be unknown.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from moto.autoscaling.responses import AutoScalingResponse
from moto.ec2.exceptions import InvalidInstanceIdError
from moto.ec2.responses._base_response import EC2BaseResponse
from moto.ec2.responses.instances import InstanceResponse
from moto.iam.models import InstanceProfile
from support.unkind.conditions import ConditionsInForce

from spotelastic.clock import wall
from spotelastic.local.moto_patches.patch import Patches

_CONSISTENT = frozenset({"DescribeInstanceTypes", "DescribeImages", "DescribeAvailabilityZones"})
"""Questions whose answers do not change."""


@dataclass(slots=True)
class Answers:
    """The answers of the last seconds to each question."""

    _kept: dict[object, list[tuple[float, Any]]] = field(default_factory=dict)

    def add(self, question: object, now: float, answer: Any, keep: float) -> None:
        """Keep an answer, and forget those from more than `keep` seconds ago."""
        kept = [each for each in self._kept.get(question, ()) if each[0] >= now - keep]
        self._kept[question] = [*kept, (now, answer)]

    def as_of(self, question: object, moment: float) -> Any:
        """Return the newest answer that was true at that moment; the oldest if none is so old."""
        kept = self._kept[question]
        before = [answer for at, answer in kept if at <= moment]
        return before[-1] if before else kept[0][1]


def install(patches: Patches, conditions: ConditionsInForce) -> None:
    """Apply the patches. They are the outermost of a call: a denied one is not kept."""
    answers = Answers()
    for service in (EC2BaseResponse, AutoScalingResponse):

        def call(original: Callable[..., Any], response: Any) -> Any:
            stale, action = conditions.now.stale, str(response._get_action())
            if not stale or not action.startswith("Describe") or action in _CONSISTENT:
                return original(response)
            status, headers, body = original(response)
            if status != 200:
                return status, headers, body
            question = (type(response), _asked(response))
            now, age = wall(), conditions.age()
            answers.add(question, now, (status, dict(headers), body), stale)
            return answers.as_of(question, now - age)

        patches.method(service, "call_action", "AWS's answers may be some seconds old")(call)

    @patches.method(
        InstanceProfile,
        "create_from_cloudformation_json",
        "CloudFormation waits until EC2 knows a new profile",
    )
    def create(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        profile = original(*args, **kwargs)
        profile.is_settled = True
        return profile

    @patches.method(InstanceResponse, "describe_instances", "EC2 may not know a new instance yet")
    def describe(original: Callable[..., Any], response: Any) -> Any:
        for name in response._get_param("InstanceIds", []):
            found = response.ec2_backend.get_instance_by_id(name)
            if found is not None and is_new(found.launch_time, conditions.age()):
                raise InvalidInstanceIdError([name])
        return original(response)


def is_known(conditions: ConditionsInForce, profile: Any) -> bool:
    """Whether EC2 knows an instance profile: it may not know a new one yet."""
    settled = getattr(profile, "is_settled", False)
    return settled or not is_new(profile.create_date, conditions.age())


def is_new(made: datetime, seconds: float) -> bool:
    """Whether moto made something within the last seconds."""
    return made.replace(tzinfo=UTC).timestamp() > wall() - seconds


def _asked(response: Any) -> tuple[Any, ...]:
    parameters = response.querystring.items()
    return tuple(sorted((name, tuple(map(str, values))) for name, values in parameters))
