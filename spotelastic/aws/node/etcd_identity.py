"""Attaches an etcd member's network interface and disk to the instance that takes over the member.

Both belong to the cluster, not to an instance, and are found by their tags. While they are attached
to the previous instance, the new one waits until EC2 reports that one as terminated: nothing else
proves that the old etcd process is gone. An attachment that still lingers then is detached. A disk
that no longer exists is replaced by a blank one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from spotelastic.aws.base.clients import DENIED, Aws, calling, listed, passing
from spotelastic.aws.base.demands import pairs_of
from spotelastic.aws.base.identity import CLUSTER, MEMBER, Identity
from spotelastic.aws.base.waiting import until
from spotelastic.aws.node import hardware
from spotelastic.errors import EnvironmentFailure
from spotelastic.model.job import NO_DEMANDS, AccountDemands

ATTACH_TIMEOUT = 900.0
"""Seconds."""
DEVICE = "/dev/sdf"
DISK_GIB = 8
IN_USE = frozenset(
    {
        "IncorrectState",
        "InvalidAttachment.NotFound",
        "InvalidAttachmentID.NotFound",
        "InvalidInstanceID.NotFound",  # EC2 does not know a new instance everywhere yet
        "InvalidNetworkInterface.InUse",
        "InvalidParameterValue",
        "VolumeInUse",
    }
)
"""Error codes of an attempt that came too early, twice, or upon an old answer."""
_LOST = frozenset({"deleting", "deleted", "error"})
_ENDED = "terminated"
_OF_A_STACK = "aws:cloudformation:"
"""Prefix of the tags that CloudFormation puts on what it creates, and deletes itself."""

Step = Literal["done", "attach", "detach", "wait"]


@dataclass(frozen=True, slots=True)
class VolumeHolder:
    """The instance that holds an interface or volume, with EC2's states of both.

    `attachment` is the id of an interface's attachment; a volume has none.
    """

    instance: str
    attached: str
    state: str
    attachment: str = ""


def step(holder: VolumeHolder | None, me: str) -> Step:
    """Return what to do next to get hold of it (pure)."""
    if holder is None:
        return "attach"
    if holder.instance == me:
        return "done" if holder.attached == "attached" else "wait"
    if holder.state == _ENDED and holder.attached != "detaching":
        return "detach"
    return "wait"


def take(
    aws: Aws,
    cluster: str,
    member: str,
    me: Identity,
    say: Callable[[str], None],
    demands: AccountDemands = NO_DEMANDS,
) -> Path:
    """Attach the interface and the disk of `member` to this instance; return the disk's folder.

    Idempotent.

    `demands` are those of a disk that has to be made anew.

    Raises `Unavailable` if the previous instance does not end.
    """
    interface = _interface(aws, cluster, member)
    name = interface["NetworkInterfaceId"]
    _attach(
        f"network interface {name}",
        me,
        say,
        lambda: _holder_of_interface(aws, name),
        lambda: aws.ec2.attach_network_interface(
            NetworkInterfaceId=name, InstanceId=me.instance, DeviceIndex=1
        ),
        lambda holder: aws.ec2.detach_network_interface(AttachmentId=holder.attachment, Force=True),
    )
    hardware.of_this_instance().configure(interface["MacAddress"], interface["PrivateIpAddress"])
    volume = _volume(aws, cluster, member, me, say, demands)
    _attach(
        f"volume {volume}",
        me,
        say,
        lambda: _holder_of_volume(aws, volume),
        lambda: aws.ec2.attach_volume(VolumeId=volume, InstanceId=me.instance, Device=DEVICE),
        lambda holder: aws.ec2.detach_volume(
            VolumeId=volume, InstanceId=holder.instance, Force=True
        ),
    )
    return hardware.of_this_instance().mounted(volume)


def disks(aws: Aws, cluster: str) -> tuple[str, ...]:
    """Return all volumes of the cluster."""
    return tuple(str(each["VolumeId"]) for each in _volumes(aws, cluster))


def delete_disks(aws: Aws, cluster: str) -> None:
    """Delete the volumes that are not part of a stack, because they replaced a lost one."""
    for volume in _volumes(aws, cluster):
        _delete(aws, volume)


def give_up_disks(aws: Aws, cluster: str) -> None:
    """Have such volumes deleted together with the instances that hold them.

    For a control node that takes its own cluster down.
    """
    for volume in _volumes(aws, cluster):
        tags = {tag["Key"] for tag in volume.get("Tags", ())}
        if MEMBER not in tags or any(key.startswith(_OF_A_STACK) for key in tags):
            continue
        name, held = volume["VolumeId"], volume.get("Attachments") or ()
        if not held:
            _delete(aws, volume)
        for each in held:
            with calling(f"let the volume {name} go with {each['InstanceId']}"):
                aws.ec2.modify_instance_attribute(
                    InstanceId=each["InstanceId"],
                    BlockDeviceMappings=[
                        {"DeviceName": each["Device"], "Ebs": {"DeleteOnTermination": True}}
                    ],
                )


def _delete(aws: Aws, volume: Mapping[str, Any]) -> None:
    """Delete a volume, unless it is already going."""
    if volume["State"] in ("deleting", "deleted"):
        return
    with passing("InvalidVolume.NotFound"), calling(f"delete the volume {volume['VolumeId']}"):
        aws.ec2.delete_volume(VolumeId=volume["VolumeId"])


# -- attach --------------------------------------------------------------------------------------


def _attach(
    what: str,
    me: Identity,
    say: Callable[[str], None],
    look: Callable[[], VolumeHolder | None],
    attach: Callable[[], object],
    detach: Callable[[VolumeHolder], object],
) -> None:
    told = ""

    def attached() -> bool | None:
        nonlocal told
        holder = look()
        todo = step(holder, me.instance)
        if todo == "done":
            return True
        if holder is not None and holder.instance not in (me.instance, told):
            say(f"{what} is still attached to {holder.instance}, which is {holder.state}")
            told = holder.instance
        # EC2's answer may be old. Of an attachment that has ended meanwhile it knows no tags
        # either, and then denies what it permits of one that is there.
        with (
            passing(*IN_USE, *(DENIED if todo == "detach" else ())),
            calling(f"{todo} {what}"),
        ):
            if todo == "attach":
                attach()
            elif todo == "detach":
                assert holder is not None
                detach(holder)
        return None

    until(attached, f"{what} could not be attached to {me.instance}", ATTACH_TIMEOUT, longest=1.0)


def _holder_of_interface(aws: Aws, interface: str) -> VolumeHolder | None:
    with calling(f"describe the network interface {interface}"):
        answer = aws.ec2.describe_network_interfaces(NetworkInterfaceIds=[interface])
        held: Mapping[str, Any] = answer["NetworkInterfaces"][0].get("Attachment") or {}
    return _holder(aws, held, str(held.get("Status", "")), str(held.get("AttachmentId", "")))


def _holder_of_volume(aws: Aws, volume: str) -> VolumeHolder | None:
    with calling(f"describe the volume {volume}"):
        answer = aws.ec2.describe_volumes(VolumeIds=[volume])
        held: Mapping[str, Any] = next(iter(answer["Volumes"][0].get("Attachments") or ()), {})
    return _holder(aws, held, str(held.get("State", "")))


def _holder(
    aws: Aws, held: Mapping[str, Any], how: str, attachment: str = ""
) -> VolumeHolder | None:
    if not (instance := str(held.get("InstanceId", ""))) or how == "detached":
        return None
    return VolumeHolder(instance, how, _state(aws, instance), attachment)


def _state(aws: Aws, instance: str) -> str:
    """Return an instance's state; one that EC2 has forgotten was terminated long ago."""
    with passing("InvalidInstanceID.NotFound"), calling(f"describe the instance {instance}"):
        answer = aws.ec2.describe_instances(InstanceIds=[instance])
        found = [item for each in answer["Reservations"] for item in each["Instances"]]
        return str(found[0]["State"]["Name"]) if found else _ENDED
    return _ENDED


# -- find ----------------------------------------------------------------------------------------


def _interface(aws: Aws, cluster: str, member: str) -> Mapping[str, Any]:
    with calling(f"find the network interface of etcd member {member}"):
        answer = aws.ec2.describe_network_interfaces(Filters=_tagged(cluster, member))
        for found in answer["NetworkInterfaces"]:
            return dict(found)
    raise EnvironmentFailure(f"there is no network interface for etcd member {member} of {cluster}")


def _volume(
    aws: Aws,
    cluster: str,
    member: str,
    me: Identity,
    say: Callable[[str], None],
    demands: AccountDemands,
) -> str:
    """Return the member's newest volume, or create one: older ones were replaced by it."""
    found = [each for each in _volumes(aws, cluster, member) if each["State"] not in _LOST]
    if found:
        return str(max(found, key=lambda each: each["CreateTime"])["VolumeId"])
    say(f"the disk of etcd member {member} is gone: creating a new one")
    tags = {**demands.tags, CLUSTER: cluster, MEMBER: member}
    with calling(f"create a disk for etcd member {member}"):
        made = aws.ec2.create_volume(
            AvailabilityZone=me.zone,
            Size=DISK_GIB,
            VolumeType="gp3",
            Encrypted=True,
            **({"KmsKeyId": demands.key} if demands.key else {}),
            ClientToken=f"{me.instance}-{member}",  # a repeated request creates no second disk
            TagSpecifications=[{"ResourceType": "volume", "Tags": pairs_of(tags)}],
        )
        return str(made["VolumeId"])


def _volumes(aws: Aws, cluster: str, member: str = "") -> list[dict[str, Any]]:
    with calling(f"find the disks of {cluster}"):
        tagged = _tagged(cluster, member)
        return list(listed(aws.ec2, "describe_volumes", "Volumes", Filters=tagged))


def _tagged(cluster: str, member: str) -> list[dict[str, Any]]:
    filters = [{"Name": f"tag:{CLUSTER}", "Values": [cluster]}]
    if member:
        filters.append({"Name": f"tag:{MEMBER}", "Values": [member]})
    return filters
