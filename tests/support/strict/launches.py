"""Patches moto's EC2 to refuse the launches that EC2 refuses, and to accept those of which it finds
out later that it cannot start them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.models.instances import InstanceBackend
from moto.ec2.responses import instances as instance_responses
from moto.ec2.responses.elastic_block_store import ElasticBlockStore
from moto.ec2.utils import filter_iam_instance_profiles
from moto.iam.exceptions import NoSuchEntity, NotFoundException
from moto.iam.models import iam_backends
from support.strict import launch_checks
from support.strict.launch_checks import DiskKey
from support.unkind.slow_parts import SlowInstances

from spotelastic.local.moto_patches import ec2
from spotelastic.local.moto_patches.patch import Patches
from spotelastic.local.moto_patches.resources import PlacementGroup, placement_groups


def install(
    patches: Patches,
    disk_key: DiskKey,
    machines: SlowInstances,
    is_known: Callable[[Any], bool],
) -> None:
    """Apply the patches. `is_known` tells whether EC2 knows an instance profile by now."""
    placed: dict[str, list[Any]] = {}
    """Instances by the name of their placement group; "" for those in none."""

    @patches.method(InstanceBackend, "run_instances", "moto launches whatever it is asked for")
    def run_instances(
        original: Callable[..., Any], backend: Any, image_id: str, *args: Any, **kwargs: Any
    ) -> Any:
        wanted = dict(kwargs)
        template = ec2.template_data(backend, wanted.get("launch_template"))
        ec2.apply_template(wanted, template)
        _check(backend, wanted, template, image_id)
        _check_profile(backend, wanted, template, is_known)
        group = _placement(backend, template, wanted.get("subnet_id"), placed)
        disks = wanted.get("block_device_mappings") or ()
        with machines.starting(launch_checks.is_startable(disks, disk_key)):
            reservation = original(backend, image_id, *args, **kwargs)
        placed.setdefault(group, []).extend(reservation.instances)
        return reservation

    @patches.method(PlacementGroup, "delete", "the local cloud deletes groups that are in use")
    def delete(original: Callable[..., Any], group: Any, *args: Any, **kwargs: Any) -> None:
        if _zones(placed.get(group.name, ())):
            raise EC2ClientError(
                "InvalidPlacementGroup.InUse", f"The placement group '{group.name}' is in use."
            )
        original(group, *args, **kwargs)

    @patches.method(ElasticBlockStore, "get_ebs_default_kms_key_id", "the key that was set")
    def default_key(original: Callable[..., Any], response: Any) -> ActionResult:
        return ActionResult({"KmsKeyId": disk_key.name})

    def known(*args: Any, **kwargs: Any) -> Any:
        try:
            return filter_iam_instance_profiles(*args, **kwargs)
        except (NoSuchEntity, NotFoundException) as error:
            arn, name = kwargs["iam_instance_profile_arn"], kwargs["iam_instance_profile_name"]
            raise _unknown_profile(arn, name) from error

    patches.addition(
        instance_responses, "filter_iam_instance_profiles", "moto has IAM's error, not EC2's"
    )(known)


def _placement(
    backend: Any,
    template: Mapping[str, Any],
    subnet: str | None,
    placed: Mapping[str, Sequence[Any]],
) -> str:
    """Return the placement group that the template names; "" for none.

    Refuses an unknown group, and a second zone in a group.
    """
    name = str(template.get("Placement", {}).get("GroupName") or "")
    if name and name not in placement_groups(backend):
        raise EC2ClientError(
            "InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown."
        )
    zones = _zones(placed.get(name, ())) if name else set()
    if subnet and zones - {backend.get_subnet(subnet).availability_zone}:
        raise EC2ClientError(
            "InvalidParameterValue", f"Placement group {name} cannot span Availability Zones."
        )
    return name


def _zones(instances: Sequence[Any]) -> set[str]:
    """Return the zones of those instances that are not terminated."""
    return {each.placement.zone for each in instances if each._state.name != "terminated"}


def _check(
    backend: Any, wanted: Mapping[str, Any], template: Mapping[str, Any], image: Any
) -> None:
    """Refuse what EC2 refuses: interfaces, disks and an image that do not fit the type."""
    found = backend.amis.get(image or template.get("ImageId"))
    facts = None
    if found is not None:
        (root,) = found.block_device_mappings
        ebs, device = root["Ebs"], root["DeviceName"]
        facts = launch_checks.ImageFacts(
            str(found.architecture), device, ebs["SnapshotId"], int(ebs["VolumeSize"])
        )
    type = wanted["instance_type"]
    launch = launch_checks.LaunchRequest(
        type=type,
        described=INSTANCE_TYPES.get(type) or {},
        interfaces=template.get("NetworkInterfaces") or wanted.get("nics") or (),
        disks=wanted.get("block_device_mappings") or (),
        image=facts,
    )
    if (refusal := launch_checks.refusal(launch)) is not None:
        raise EC2ClientError(refusal.code, refusal.message)


def _check_profile(
    backend: Any,
    wanted: Mapping[str, Any],
    template: Mapping[str, Any],
    is_known: Callable[[Any], bool],
) -> None:
    """Refuse an instance profile that does not exist, or that EC2 does not know yet."""
    arn, name = ec2.profile_of(wanted, template)
    if not (arn or name):
        return
    for each in iam_backends[backend.account_id]["aws"].get_instance_profiles():
        if (each.arn == arn or each.name == name) and is_known(each):
            return
    raise _unknown_profile(arn, name)


def _unknown_profile(arn: str | None, name: str | None) -> EC2ClientError:
    """Return EC2's error for an instance profile that it does not know."""
    what, which = ("ARN", "arn") if arn else ("name", "name")
    return EC2ClientError(
        "InvalidParameterValue",
        f"Value ({arn or name}) for parameter iamInstanceProfile.{which} is invalid. Invalid IAM "
        f"Instance Profile {what}",
    )
