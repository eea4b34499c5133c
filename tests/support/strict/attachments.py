"""Patches moto to attach as EC2 does: not across zones, and not where something is already. What is
attached, or in use, is not deleted.
"""

from collections.abc import Callable
from typing import Any

from moto.ec2.exceptions import DependencyViolationError, EC2ClientError
from moto.ec2.models.elastic_block_store import EBSBackend
from moto.ec2.models.elastic_network_interfaces import NetworkInterfaceBackend
from moto.ec2.models.security_groups import SecurityGroupBackend
from moto.ec2.models.subnets import SubnetBackend

from spotelastic.local.moto_patches.patch import Patches


def install(patches: Patches) -> None:
    """Apply the patches."""
    _install_deletions(patches)
    reason = "moto attaches across zones, and where something is already"

    @patches.method(NetworkInterfaceBackend, "attach_network_interface", reason)
    def attach_interface(
        original: Callable[..., Any], backend: Any, eni_id: str, instance_id: str, index: Any
    ) -> Any:
        interface = backend.get_network_interface(eni_id)
        instance = backend.get_instance(instance_id)
        if interface.availability_zone != instance.availability_zone:
            raise EC2ClientError(
                "InvalidParameterCombination",
                f"You may not attach a network interface to an instance if they are not in the "
                f"same availability zone: {interface.availability_zone} and "
                f"{instance.availability_zone}.",
            )
        if int(index) in instance.nics:
            raise EC2ClientError(
                "InvalidParameterValue",
                f"Instance '{instance_id}' already has an interface attached at device index "
                f"'{index}'.",
            )
        return original(backend, eni_id, instance_id, index)

    @patches.method(EBSBackend, "attach_volume", reason)
    def attach_volume(
        original: Callable[..., Any],
        backend: Any,
        volume_id: str,
        instance_id: str,
        device_path: str,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        volume, instance = backend.get_volume(volume_id), backend.get_instance(instance_id)
        if volume.zone.name != instance.availability_zone:
            raise EC2ClientError(
                "InvalidVolume.ZoneMismatch",
                f"The volume '{volume_id}' is not in the same availability zone as instance "
                f"'{instance_id}'",
            )
        if device_path in instance.block_device_mapping:
            raise EC2ClientError(
                "InvalidParameterValue",
                f"Invalid value '{device_path}' for unixDevice. Attachment point {device_path} is "
                "already in use",
            )
        return original(backend, volume_id, instance_id, device_path, *args, **kwargs)


def _install_deletions(patches: Patches) -> None:
    @patches.method(SubnetBackend, "delete_subnet", "moto deletes subnets with interfaces in them")
    def delete_subnet(original: Callable[..., Any], backend: Any, subnet_id: str) -> Any:
        if any(interface.subnet.id == subnet_id for interface in backend.enis.values()):
            raise DependencyViolationError(
                f"The subnet '{subnet_id}' has dependencies and cannot be deleted."
            )
        return original(backend, subnet_id)

    @patches.method(
        SecurityGroupBackend, "_delete_security_group", "moto deletes groups that are in use"
    )
    def delete_group(original: Callable[..., Any], backend: Any, vpc: Any, group: str) -> None:
        for interface in backend.enis.values():
            if any(member.id == group for member in interface.group_set):
                raise DependencyViolationError(f"resource {group} has a dependent object")
        original(backend, vpc, group)

    @patches.method(
        NetworkInterfaceBackend, "delete_network_interface", "moto deletes attached interfaces"
    )
    def delete(original: Callable[..., Any], backend: Any, eni_id: str) -> None:
        if backend.get_network_interface(eni_id).attachment_id:
            raise EC2ClientError(
                "InvalidParameterValue", f"Network interface '{eni_id}' is currently in use."
            )
        original(backend, eni_id)
