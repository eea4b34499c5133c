"""Patches moto to have AWS's quotas, and the limits of its calls."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from moto.autoscaling.exceptions import AutoscalingClientError
from moto.autoscaling.exceptions import ValidationError as GroupError
from moto.autoscaling.models import AutoScalingBackend
from moto.autoscaling.responses import AutoScalingResponse
from moto.cloudformation.exceptions import ValidationError
from moto.cloudformation.responses import CloudFormationResponse
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.elastic_ip_addresses import ElasticAddressBackend
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.models.instances import InstanceBackend
from moto.ec2.models.vpcs import VPCBackend
from moto.servicequotas.models import ServiceQuotasBackend
from moto.ssm.exceptions import ValidationException
from moto.ssm.models import SimpleSystemManagerBackend
from support.unkind.slow_parts import SlowInstances

from spotelastic.aws.compute import quotas
from spotelastic.local.instances.machines import PENDING, RUNNING
from spotelastic.local.moto_patches import ec2
from spotelastic.local.moto_patches.accounts import QUOTA
from spotelastic.local.moto_patches.patch import Patches

VPCS, ADDRESSES = "L-F678F1CE", "L-0263D0A3"
"""Codes of the quotas of networks and of elastic addresses in a region."""
LONGEST_PARAMETER = 4096
"""Bytes of a parameter of the standard tier."""
LONGEST_BODY = 51_200
"""Bytes of a template in a call."""


def install(patches: Patches, given: Mapping[str, int], machines: SlowInstances) -> None:
    """Apply the patches. `given` are quotas by code."""

    def quota(code: str) -> int:
        return given.get(code, QUOTA)

    _install_counts(patches, quota)
    _install_vcpus(patches, quota, machines)
    _install_lengths(patches)


def _install_counts(patches: Patches, quota: Callable[[str], int]) -> None:
    @patches.method(ServiceQuotasBackend, "get_service_quota", "quotas that were set")
    def get_service_quota(
        original: Callable[..., Any], backend: Any, service_code: str, quota_code: str
    ) -> Any:
        found = original(backend, service_code, quota_code)
        return {**found, "Value": float(quota(quota_code))} if service_code in COUNTED else found

    @patches.method(VPCBackend, "create_vpc", "moto has no quota of networks")
    def create_vpc(original: Callable[..., Any], backend: Any, *args: Any, **kwargs: Any) -> Any:
        if len(backend.vpcs) >= quota(VPCS):
            raise EC2ClientError("VpcLimitExceeded", "The maximum number of VPCs has been reached.")
        return original(backend, *args, **kwargs)

    @patches.method(
        AutoScalingBackend, "set_desired_capacity", "moto accepts numbers outside the limits"
    )
    def set_desired(original: Callable[..., Any], backend: Any, name: str, capacity: int) -> None:
        group = backend.autoscaling_groups.get(name)
        if group is not None and not group.min_size <= capacity <= group.max_size:
            side, limit = ("above", "max") if capacity > group.max_size else ("below", "min")
            value = group.max_size if limit == "max" else group.min_size
            raise GroupError(
                f"New SetDesiredCapacity value {capacity} is {side} {limit} value {value} for the "
                "AutoScalingGroup."
            )
        original(backend, name, capacity)

    @patches.method(AutoScalingResponse, "create_auto_scaling_group", "moto accepts a name twice")
    def create_group(original: Callable[..., Any], response: Any) -> Any:
        name = response._get_param("AutoScalingGroupName")
        if name in response.autoscaling_backend.autoscaling_groups:
            raise AutoscalingClientError(
                "AlreadyExists", f"AutoScalingGroup by this name already exists - {name}"
            )
        return original(response)

    @patches.method(AutoScalingResponse, "delete_auto_scaling_group", "moto needs no force")
    def delete_group(original: Callable[..., Any], response: Any) -> Any:
        name = response._get_param("AutoScalingGroupName")
        group = response.autoscaling_backend.autoscaling_groups.get(name)
        forced = response._get_bool_param("ForceDelete", False)
        if group is not None and group.instance_states and not forced:
            raise AutoscalingClientError(
                "ResourceInUse",
                "You cannot delete an AutoScalingGroup while there are instances or pending Spot "
                "instance request(s) still in the group.",
            )
        return original(response)

    @patches.method(ElasticAddressBackend, "allocate_address", "moto has no quota of addresses")
    def allocate(original: Callable[..., Any], backend: Any, *args: Any, **kwargs: Any) -> Any:
        if len(backend.addresses) >= quota(ADDRESSES):
            raise EC2ClientError(
                "AddressLimitExceeded", "The maximum number of addresses has been reached."
            )
        return original(backend, *args, **kwargs)


COUNTED = ("ec2", "events", "vpc")
"""Services of which the local cloud has quotas."""


def _install_vcpus(patches: Patches, quota: Callable[[str], int], machines: SlowInstances) -> None:
    @patches.method(InstanceBackend, "run_instances", "moto has no quota of vCPUs")
    def run_instances(original: Callable[..., Any], backend: Any, *args: Any, **kwargs: Any) -> Any:
        wanted = dict(kwargs)
        template = ec2.template_data(backend, wanted.get("launch_template"))
        spot = ec2.apply_template(wanted, template)
        if not _fits(wanted["instance_type"], spot, machines.bought(PENDING, RUNNING), quota):
            raise _over_quota(spot)
        return original(backend, *args, **kwargs)


def _fits(
    type: str, spot: bool, running: Iterable[tuple[str, bool]], quota: Callable[[str], int]
) -> bool:
    """Whether one more instance fits beside the running ones, given as (type, whether spot)."""
    its = quotas.family(type)
    if its is None:
        return True
    alike = [each for each, bought in running if bought == spot and quotas.family(each) == its]
    return sum(map(_vcpus, (*alike, type))) <= quota(its.spot if spot else its.on_demand)


def _vcpus(type: str) -> int:
    information = INSTANCE_TYPES.get(type) or {}
    return int(information.get("VCpuInfo", {}).get("DefaultVCpus", 2))


def _over_quota(spot: bool) -> EC2ClientError:
    if spot:
        return EC2ClientError("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
    return EC2ClientError(
        "VcpuLimitExceeded",
        "You have requested more vCPU capacity than your current vCPU limit allows for the "
        "instance bucket that the specified instance type belongs to.",
    )


def _install_lengths(patches: Patches) -> None:
    @patches.method(
        SimpleSystemManagerBackend, "put_parameter", "moto takes parameters of any size"
    )
    def put_parameter(
        original: Callable[..., Any],
        backend: Any,
        name: str,
        description: str,
        value: str,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if len(value.encode()) > LONGEST_PARAMETER and kwargs.get("tier") in (None, "Standard"):
            raise ValidationException(
                "Standard tier parameters support a maximum parameter value of "
                f"{LONGEST_PARAMETER} characters. To create a larger parameter value, upgrade the "
                "parameter to use the advanced-parameter tier."
            )
        return original(backend, name, description, value, *args, **kwargs)

    def limited(original: Callable[..., Any], response: Any) -> Any:
        body = response.querystring.get("TemplateBody", [""])[0]
        if len(body.encode()) > LONGEST_BODY:
            raise ValidationError(
                "1 validation error detected: Value at 'templateBody' failed to satisfy "
                f"constraint: Member must have length less than or equal to {LONGEST_BODY}"
            )
        return original(response)

    for call in ("create_stack", "update_stack"):
        patches.method(CloudFormationResponse, call, "moto takes templates of any length")(limited)
