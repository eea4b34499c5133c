"""Patches moto's addresses, network interfaces and volumes: unique, exclusive, and released."""

import ipaddress
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moto.ec2.exceptions import EC2ClientError, VolumeInUseError
from moto.ec2.models import nat_gateways
from moto.ec2.models.elastic_block_store import EBSBackend
from moto.ec2.models.elastic_network_interfaces import NetworkInterfaceBackend
from moto.ec2.models.subnets import Subnet

from spotelastic.local.instances.machines import PENDING, RUNNING
from spotelastic.local.instances.power import Power
from spotelastic.local.moto_patches.patch import Patches

_RESERVED = 4  # AWS reserves the first four addresses of a subnet, and the last one


def install(patches: Patches, power: Power, volumes: Path) -> None:
    """Apply the patches. `volumes` is the folder in which volumes' contents are stored."""
    _install_addresses(patches)
    _install_interfaces(patches)
    _install_volumes(patches, power, volumes)


def _install_addresses(patches: Patches) -> None:
    @patches.method(
        Subnet,
        "get_available_subnet_ip",
        "moto hands out addresses in use, and reuses released ones at once",
    )
    def get_available_subnet_ip(original: Callable[..., Any], subnet: Any, instance: Any) -> str:
        return _free_address(subnet)

    @patches.method(Subnet, "request_ip", "moto answers 500 to an address that is in use")
    def request_ip(original: Callable[..., Any], subnet: Any, ip: str, instance: Any) -> None:
        _check_address(subnet, ip)

    @patches.method(
        NetworkInterfaceBackend,
        "create_network_interface",
        "moto draws addresses at random, and gives a fixed one to several interfaces",
    )
    def create_network_interface(
        original: Callable[..., Any],
        backend: Any,
        subnet: Any,
        private_ip_address: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        subnet = backend.get_subnet(subnet) if isinstance(subnet, str) else subnet
        if isinstance(private_ip_address, list):
            private_ip_address = private_ip_address[0] if private_ip_address else None
        if private_ip_address:
            _check_address(subnet, private_ip_address)
        elif not (args or kwargs.get("private_ip_addresses")):
            private_ip_address = _free_address(subnet)
        return original(backend, subnet, private_ip_address, *args, **kwargs)

    patches.addition(nat_gateways, "random_private_ip", "moto uses another network's address")(
        lambda: None
    )


def _free_address(subnet: Any) -> str:
    """Return the next address after the last one given, so that none is reused soon."""
    taken = _taken(subnet.ec2_backend)
    first, size = int(subnet.cidr.network_address), subnet.cidr.num_addresses
    usable = size - _RESERVED - 1
    start = getattr(subnet, "_cursor", 0)
    for step in range(usable):
        index = (start + step) % usable
        address = str(ipaddress.ip_address(first + _RESERVED + index))
        if address not in taken:
            subnet._cursor = index + 1
            return address
    raise EC2ClientError(
        "InsufficientFreeAddressesInSubnet",
        f"There are not enough free addresses in subnet '{subnet.id}' to satisfy the request.",
    )


def _check_address(subnet: Any, address: str) -> None:
    if ipaddress.ip_address(address) not in subnet.cidr:
        raise EC2ClientError(
            "InvalidParameterValue", f"Address {address} does not fall within the subnet's range"
        )
    if address in _taken(subnet.ec2_backend):
        raise EC2ClientError("InvalidIPAddress.InUse", f"Address {address} is in use.")


def _taken(backend: Any) -> set[str]:
    """Return the used addresses of all VPCs, which share the loopback interface here."""
    return {
        item["PrivateIpAddress"]
        for interface in backend.enis.values()
        for item in interface.private_ip_addresses
    }


def _install_interfaces(patches: Patches) -> None:
    @patches.method(
        NetworkInterfaceBackend,
        "attach_network_interface",
        "moto attaches one interface to many instances, and to any",
    )
    def attach(
        original: Callable[..., Any], backend: Any, eni_id: str, instance_id: str, index: Any
    ) -> Any:
        interface, instance = (
            backend.get_network_interface(eni_id),
            backend.get_instance(instance_id),
        )
        if interface.attachment_id:
            raise EC2ClientError("InvalidNetworkInterface.InUse", f"Interface: [{eni_id}] in use.")
        _check_attachable(instance, instance_id)
        return original(backend, eni_id, instance_id, index)


def _install_volumes(patches: Patches, power: Power, volumes: Path) -> None:
    @patches.method(
        EBSBackend, "attach_volume", "moto attaches a volume to many instances, without contents"
    )
    def attach(
        original: Callable[..., Any],
        backend: Any,
        volume_id: str,
        instance_id: str,
        device_path: str,
        delete_on_termination: bool = False,
    ) -> Any:
        volume, instance = backend.get_volume(volume_id), backend.get_instance(instance_id)
        if volume.attachment:
            raise VolumeInUseError(volume_id, volume.attachment.instance.id)
        _check_attachable(instance, instance_id)
        attachment = original(backend, volume_id, instance_id, device_path, delete_on_termination)
        data = volumes / volume_id
        data.mkdir(parents=True, exist_ok=True)
        link = power.layout(instance_id).volumes / volume_id
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(data)
        return attachment

    @patches.method(EBSBackend, "detach_volume", "the folder in the instance has to go too")
    def detach(
        original: Callable[..., Any], backend: Any, volume_id: str, instance_id: Any, device: Any
    ) -> Any:
        if instance_id is None and (attachment := backend.get_volume(volume_id).attachment):
            instance_id = attachment.instance.id
        detached = original(backend, volume_id, instance_id, device)
        (power.layout(instance_id).volumes / volume_id).unlink(missing_ok=True)
        return detached

    @patches.method(EBSBackend, "delete_volume", "the contents have to go too")
    def delete(original: Callable[..., Any], backend: Any, volume_id: str) -> Any:
        deleted = original(backend, volume_id)
        shutil.rmtree(volumes / volume_id, ignore_errors=True)
        return deleted


def _check_attachable(instance: Any, name: str) -> None:
    if instance._state.name not in (PENDING, RUNNING):
        raise EC2ClientError(
            "IncorrectState", f"Instance '{name}' is {instance._state.name}, not 'running'."
        )
