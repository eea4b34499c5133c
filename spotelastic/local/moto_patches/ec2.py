"""Patches moto's EC2: launch templates, spot, capacity, and real processes behind instances."""

import base64
import copy
import ipaddress
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import (
    EC2ClientError,
    InvalidLaunchTemplateNameNotFoundWithNameError,
)
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.models.instances import Instance, InstanceBackend
from moto.ec2.models.launch_templates import LaunchTemplateBackend, LaunchTemplateVersion
from moto.ec2.responses.general import General
from moto.ec2.responses.instances import InstanceResponse
from moto.ec2.responses.spot_instances import SpotInstances
from moto.ec2.utils import parse_user_data

from spotelastic.local.instances.machines import TERMINATED, LocalInstances
from spotelastic.local.instances.power import Power
from spotelastic.local.instances.spot_market import SpotMarket
from spotelastic.local.moto_patches.images import GIB
from spotelastic.local.moto_patches.patch import Patches

CONSOLE_BYTES = 64 * 2**10
"""Bytes of a console that EC2 keeps."""
LEAST_SCORE, LOW_SCORE, MOST_SCORE = 1, 3, 9
"""The lowest and highest placement scores that EC2 gives, and the highest of few types."""
SCORED_TYPES = 3
"""With fewer types, EC2 gives low scores alone."""
LOOPBACK = ipaddress.ip_network("127.0.0.0/8")


def install(patches: Patches, machines: LocalInstances, market: SpotMarket, power: Power) -> None:
    """Apply the patches."""
    _install_launch(patches, machines)
    _install_templates(patches)
    _install_user_data(patches)
    _install_states(patches, machines)
    _install_console(patches, power)
    _install_market(patches, machines, market)
    _install_requirements(patches)


def _install_launch(patches: Patches, machines: LocalInstances) -> None:
    @patches.method(
        InstanceBackend,
        "run_instances",
        "moto ignores most of a launch template, knows no capacity, and starts nothing",
    )
    def run_instances(
        original: Callable[..., Any],
        backend: Any,
        image_id: str,
        count: int,
        user_data: Any,
        security_group_names: list[str],
        **kwargs: Any,
    ) -> Any:
        template = template_data(backend, kwargs.get("launch_template"))
        spot = apply_template(kwargs, template)
        subnet = _subnet(backend, kwargs)
        type, zone = kwargs["instance_type"], subnet.availability_zone
        if machines.free(type, zone) < count:
            raise _no_capacity(type, zone, spot)
        before = set(backend.enis)
        reservation = original(backend, image_id, count, user_data, security_group_names, **kwargs)
        for instance in reservation.instances:
            instance.lifecycle = "spot" if spot else None
            _associate_profile(backend, instance, kwargs, template)
            own = [nic.id for nic in instance.nics.values() if nic.id not in before]
            machines.add(instance, own)
        return reservation


def _install_templates(patches: Patches) -> None:
    @patches.method(
        LaunchTemplateBackend,
        "delete_launch_template",
        "moto takes a name that it does not know for one that is not given",
    )
    def delete(original: Callable[..., Any], backend: Any, name: str, tid: str | None) -> Any:
        if name and name not in backend.launch_template_name_to_ids:
            raise InvalidLaunchTemplateNameNotFoundWithNameError(name)
        return original(backend, name, tid)


def _install_user_data(patches: Patches) -> None:
    def user_data(version: Any) -> Any:
        data = version.data.get("UserData")
        return parse_user_data(data) if isinstance(data, str) else data

    patches.addition(
        LaunchTemplateVersion,
        "user_data",
        "versions made by CreateLaunchTemplateVersion hold plain strings, which moto refuses",
    )(property(user_data))


def template_data(backend: Any, template: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the data of the launch template version that a launch names; empty without one."""
    data = backend._get_template_from_args(template).data if template else {}
    return copy.deepcopy(dict(data))


def apply_template(kwargs: dict[str, Any], template: Mapping[str, Any]) -> bool:
    """Fill in what the request leaves to its template; return whether to launch a spot instance.

    The request wins over the template, as documented for RunInstances.
    """
    if kwargs.pop("is_instance_type_default", False) and template.get("InstanceType"):
        kwargs["instance_type"] = template["InstanceType"]
    kwargs["is_instance_type_default"] = False
    kwargs["metadata_options"] = {
        **template.get("MetadataOptions", {}),
        **(kwargs.get("metadata_options") or {}),
    }
    if not kwargs.get("nics") and template.get("NetworkInterfaces"):
        kwargs["nics"] = _interfaces(template["NetworkInterfaces"], kwargs.get("subnet_id"))
    if not kwargs.get("block_device_mappings") and template.get("BlockDeviceMappings"):
        # As the request's own: moto would add them to a root disk of its own.
        kwargs["block_device_mappings"] = [_sized(m) for m in template["BlockDeviceMappings"]]
    kwargs["tags"] = _tags(kwargs.get("tags") or {}, template)
    market = template.get("InstanceMarketOptions", {}).get("MarketType")
    asked = kwargs.pop("spot", None)
    return bool((kwargs.get("instance_market_options") or market) if asked is None else asked)


def _sized(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping with a size: a disk is as large as its image's where it names none."""
    if "Ebs" not in mapping:
        return dict(mapping)
    return {**mapping, "Ebs": {"VolumeSize": GIB, **mapping["Ebs"]}}


def _tags(tags: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    merged = {
        item["ResourceType"]: {tag["Key"]: tag["Value"] for tag in item.get("Tags", [])}
        for item in template.get("TagSpecifications", [])
        if item.get("ResourceType") in ("instance", "volume")
    }
    for kind, pairs in tags.items():
        merged[kind] = {**merged.get(kind, {}), **pairs}
    return merged


def _interfaces(specification: list[dict[str, Any]], subnet: str | None) -> list[dict[str, Any]]:
    interfaces = copy.deepcopy(specification)
    for number, interface in enumerate(interfaces):
        interface.setdefault("DeviceIndex", 0)
        if interface.get("NetworkCardIndex"):  # moto knows one card, and one interface per index
            interface["DeviceIndex"] = number
        public = interface.get("AssociatePublicIpAddress")
        if public is not None:
            interface["AssociatePublicIpAddress"] = str(public).lower() == "true"
        if subnet:
            interface["SubnetId"] = subnet
    return interfaces


def _subnet(backend: Any, kwargs: Mapping[str, Any]) -> Any:
    """Return the instance's subnet. Refuses subnets whose addresses this machine does not have."""
    interfaces = kwargs.get("nics") or []
    name = kwargs.get("subnet_id") or next(
        (item["SubnetId"] for item in interfaces if item.get("SubnetId")), None
    )
    if name is None and (given := [i for i in interfaces if i.get("NetworkInterfaceId")]):
        subnet = backend.get_network_interface(given[0]["NetworkInterfaceId"]).subnet
    elif name is not None:
        subnet = backend.get_subnet(name)
    else:
        raise EC2ClientError("MissingInput", "The local cloud launches into a named subnet only.")
    if not subnet.cidr.subnet_of(LOOPBACK):
        raise EC2ClientError(
            "InvalidParameterValue",
            f"Subnet {subnet.id} ({subnet.cidr}) is not on this machine: instances of the local "
            f"cloud need a VPC inside {LOOPBACK}.",
        )
    return subnet


def _associate_profile(
    backend: Any, instance: Any, kwargs: Mapping[str, Any], template: Mapping[str, Any]
) -> None:
    """Give an instance its template's profile; moto gives it the one that a request names."""
    arn, name = profile_of({}, template)
    if (arn or name) and not any(profile_of(kwargs, {})):
        backend.associate_iam_instance_profile(
            instance.id, iam_instance_profile_name=name, iam_instance_profile_arn=arn
        )


def profile_of(
    kwargs: Mapping[str, Any], template: Mapping[str, Any]
) -> tuple[str | None, str | None]:
    """Return ARN and name of the instance profile; one of them, or none, is given."""
    profile = template.get("IamInstanceProfile") or {}
    arn = kwargs.get("iam_instance_profile_arn") or profile.get("Arn")
    return arn, kwargs.get("iam_instance_profile_name") or profile.get("Name")


def _no_capacity(type: str, zone: str, spot: bool) -> EC2ClientError:
    if spot:
        message = "There is no Spot capacity available that matches your request."
    else:
        message = (
            f"We currently do not have sufficient {type} capacity in the Availability Zone you "
            f"requested ({zone}). Our system will be working on provisioning additional capacity."
        )
    return EC2ClientError("InsufficientInstanceCapacity", message)


def _install_states(patches: Patches, machines: LocalInstances) -> None:
    reason = "moto only changes a state; here processes start and end, which takes time"

    @patches.method(Instance, "terminate", reason)
    def terminate(original: Callable[..., Any], instance: Any) -> Any:
        previous = copy.copy(instance._state)
        machines.terminate(instance)
        return previous

    @patches.method(Instance, "delete", "a stack deletes what the instance uses right after it")
    def delete(original: Callable[..., Any], instance: Any, account: str, region: str) -> None:
        machines.terminate(instance)
        machines.settle([instance])

    for name in ("private_ip", "private_ip_address", "public_ip", "public_ip_address"):
        attribute = "public_ip" if name.startswith("public") else "private_ip_address"

        def address(instance: Any, attribute: str = attribute) -> Any:
            return getattr(instance.nics.get(0), attribute, None)

        patches.addition(Instance, name, "a terminated instance has no interface and no address")(
            property(address)
        )

    named = Instance.private_dns_name.fget  # type: ignore[attr-defined]
    patches.addition(Instance, "private_dns_name", "nor has it a name")(
        property(lambda instance: named(instance) if 0 in instance.nics else "")
    )


def _install_console(patches: Patches, power: Power) -> None:
    @patches.method(
        General, "get_console_output", "moto's console is one line, the same for all instances"
    )
    def get_console_output(original: Callable[..., Any], response: Any) -> Any:
        instance = response.ec2_backend.get_instance(response._get_param("InstanceId"))
        path = power.layout(instance.id).console
        # A terminated instance has no newest console, only the one recorded at its end.
        there = not (instance._state.name == TERMINATED and response._get_bool_param("Latest"))
        data = path.read_bytes()[-CONSOLE_BYTES:] if there and path.exists() else b""
        output = base64.b64encode(data).decode()
        return ActionResult(
            {"InstanceId": instance.id, "Timestamp": _now(), "Output": output or None}
        )


def _install_market(patches: Patches, machines: LocalInstances, market: SpotMarket) -> None:
    @patches.method(
        SpotInstances, "describe_spot_price_history", "moto's price is 0.00001 for everything"
    )
    def describe_spot_price_history(original: Callable[..., Any], response: Any) -> Any:
        result = original(response)
        zone = response._get_param("AvailabilityZone")
        result.result["SpotPriceHistory"] = [
            item
            for item in result.result["SpotPriceHistory"]
            if zone in (None, item["AvailabilityZone"])
        ]
        for item in result.result["SpotPriceHistory"]:
            price = market.spot(item["InstanceType"], item["AvailabilityZone"])
            item["SpotPrice"] = f"{price:.6f}"
            item["ProductDescription"] = "Linux/UNIX"
            item["Timestamp"] = _now()
        return result

    @patches.addition(SpotInstances, "get_spot_placement_scores", "moto has none")
    def get_spot_placement_scores(response: Any) -> Any:
        types = response._get_param("InstanceTypes", [])
        target = response._get_int_param("TargetCapacity", 1)
        most = MOST_SCORE if len(types) >= SCORED_TYPES else LOW_SCORE
        scores = [
            {
                "Region": response.region,
                "AvailabilityZoneId": zone.zone_id,
                "Score": min(most, _score(free, target)),
            }
            for zone in response.ec2_backend.describe_availability_zones()
            for free in [sum(machines.free(type, zone.name) for type in types)]
        ]
        return ActionResult({"SpotPlacementScores": scores})


def _install_requirements(patches: Patches) -> None:
    @patches.addition(
        InstanceResponse, "get_instance_types_from_instance_requirements", "moto has none"
    )
    def types_from_requirements(response: Any) -> Any:
        asked = response._get_param("InstanceRequirements", {})
        architectures = response._get_param("ArchitectureTypes", [])
        found = [
            {"InstanceType": name}
            for name, type in sorted(INSTANCE_TYPES.items())
            if set(architectures) & set(type["ProcessorInfo"]["SupportedArchitectures"])
            and _meets(type.get("GpuInfo", {}), asked)
        ]
        return ActionResult({"InstanceTypes": found})


def _meets(gpus: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
    """Whether a type meets the requirements on accelerators; others are not supported."""
    count = sum(gpu["Count"] for gpu in gpus.get("Gpus", ()))
    makers = {gpu["Manufacturer"].lower() for gpu in gpus.get("Gpus", ())}
    return (
        _within(count, asked.get("AcceleratorCount", {}))
        and _within(gpus.get("TotalGpuMemoryInMiB", 0), asked.get("AcceleratorTotalMemoryMiB", {}))
        and makers <= set(asked.get("AcceleratorManufacturers", makers))
    )


def _within(value: float, limits: Mapping[str, Any]) -> bool:
    low, high = limits.get("Min", 0), limits.get("Max", value)
    return bool(float(low) <= value <= float(high))


def _score(free: float, target: int) -> int:
    """Return how likely so many instances would be launched."""
    share = min(1.0, free / max(target, 1))
    return max(LEAST_SCORE, int(MOST_SCORE * share))


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
