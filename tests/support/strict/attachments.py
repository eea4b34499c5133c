"""Patches moto to attach as EC2 does: not across zones, and not where something is already."""

from collections.abc import Callable
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.elastic_block_store import EBSBackend
from moto.ec2.models.elastic_network_interfaces import NetworkInterfaceBackend

from spotelastic.local.moto_patches.patch import Patches


def install(patches: Patches) -> None:
    """Apply the patches."""
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
