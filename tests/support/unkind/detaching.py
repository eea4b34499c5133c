"""Patches moto so that disks and network interfaces detach as slowly as on AWS."""

from collections.abc import Callable
from functools import partial
from typing import Any

from moto.core.responses import ActionResult, EmptyResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.elastic_network_interfaces import Attachment
from moto.ec2.responses.elastic_block_store import ElasticBlockStore
from moto.ec2.responses.elastic_network_interfaces import ElasticNetworkInterfaces
from support.unkind.conditions import ConditionsInForce

from spotelastic.clock import wall
from spotelastic.local.base.agenda import Agenda, Task
from spotelastic.local.moto_patches.patch import Patches


def install(patches: Patches, agenda: Agenda, conditions: ConditionsInForce) -> None:
    reason = "moto detaches within the call, which takes EC2 a while"

    def begin(held: Any, detach: Task) -> None:
        """Let the attachment show that it ends, and end it later."""
        if getattr(held, "ends", False):
            raise EC2ClientError("IncorrectState", f"{held.id} is in the 'detaching' state.")
        held.ends = True

        def end() -> None:
            held.ends = False
            detach()

        agenda.at(wall() + conditions.detach(), end)

    @patches.method(ElasticBlockStore, "detach_volume", reason)
    def detach_volume(original: Callable[..., Any], response: Any) -> Any:
        backend, name = response.ec2_backend, response._get_param("VolumeId")
        volume = backend.get_volume(name)
        if not conditions.now.slow or (attachment := volume.attachment) is None:
            return original(response)
        instance, device = attachment.instance.id, attachment.device
        if response._get_param("InstanceId") not in (None, instance):
            return original(response)
        begin(volume, partial(_detach_still, backend, volume, instance, device))
        attachment.status = "detaching"
        return ActionResult(
            {"VolumeId": name, "InstanceId": instance, "Device": device, "State": "detaching"}
        )

    @patches.method(ElasticNetworkInterfaces, "detach_network_interface", reason)
    def detach_interface(original: Callable[..., Any], response: Any) -> Any:
        backend, name = response.ec2_backend, response._get_param("AttachmentId")
        held = next((each for each in backend.enis.values() if each.attachment_id == name), None)
        if not conditions.now.slow or held is None:
            return original(response)

        def detach() -> None:
            if held.attachment_id == name:  # its instance may have ended meanwhile
                backend.detach_network_interface(name)

        begin(held, detach)
        return EmptyResult()

    @patches.method(Attachment, "__init__", "moto's attachments never end")
    def attachment(original: Callable[..., Any], its: Any, interface: Any) -> None:
        original(its, interface)
        if getattr(interface, "ends", False):
            its.status = "detaching"


def _detach_still(backend: Any, volume: Any, instance: str, device: str) -> None:
    """Detach a volume, unless the end of its instance has done so meanwhile."""
    if volume.attachment is not None and volume.attachment.instance.id == instance:
        backend.detach_volume(volume.id, instance, device)
