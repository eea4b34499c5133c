"""An etcd member's identity: a network interface with a fixed address, and a disk.

Both belong to the cluster, not to an instance. The instance that takes a member's place attaches
them; while they are still attached to the one before, it waits until EC2 says that this one is
terminated, because nothing else proves that the old etcd process is gone.
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spotelastic.aws import stack
from spotelastic.aws.clients import Aws, Rejected, calling
from spotelastic.aws.identity import Identity
from spotelastic.aws.names import Names
from spotelastic.aws.waiting import until
from spotelastic.errors import EnvironmentFailure

ATTACH_TIMEOUT = 900.0
DEVICE = "/dev/sdf"
IN_USE = frozenset(
    {
        "IncorrectState",
        "InvalidNetworkInterface.InUse",
        "InvalidParameterValue",
        "VolumeInUse",
    }
)
"""Answers to an attempt that came too early, or twice."""


def attach(aws: Aws, names: Names, member: str, me: Identity, say: Callable[[str], None]) -> Path:
    """Attaches the interface and the disk of `member` to this instance; idempotent.

    Returns the folder that the disk is mounted on. Raises `Unavailable` when the instance before
    does not end.
    """
    interface = stack.resource(aws, names.stack, f"Address{member.upper()}")
    volume = stack.resource(aws, names.stack, f"Disk{member.upper()}")
    _attach(
        f"network interface {interface}",
        lambda: _holder_of_interface(aws, interface),
        lambda: aws.ec2.attach_network_interface(
            NetworkInterfaceId=interface, InstanceId=me.instance, DeviceIndex=1
        ),
        me,
        say,
    )
    _attach(
        f"volume {volume}",
        lambda: _holder_of_volume(aws, volume),
        lambda: aws.ec2.attach_volume(VolumeId=volume, InstanceId=me.instance, Device=DEVICE),
        me,
        say,
    )
    return _folder(volume)


def _attach(
    what: str,
    holder: Callable[[], str],
    attach: Callable[[], object],
    me: Identity,
    say: Callable[[str], None],
) -> None:
    told = ""

    def attached() -> bool | None:
        nonlocal told
        held_by = holder()
        if held_by == me.instance:
            return True
        if not held_by:
            try:
                with calling(f"attach {what}"):
                    attach()
            except Rejected as error:
                if error.code not in IN_USE:
                    raise
        elif held_by != told:
            say(f"waiting for {held_by} to end: it still has {what}")
            told = held_by
        return None

    until(attached, f"{what} could not be attached to {me.instance}", ATTACH_TIMEOUT, longest=1.0)


def _holder_of_interface(aws: Aws, interface: str) -> str:
    with calling(f"describe the network interface {interface}"):
        answer = aws.ec2.describe_network_interfaces(NetworkInterfaceIds=[interface])
    attachment: dict[str, Any] = answer["NetworkInterfaces"][0].get("Attachment") or {}
    return str(attachment.get("InstanceId", ""))


def _holder_of_volume(aws: Aws, volume: str) -> str:
    with calling(f"describe the volume {volume}"):
        answer = aws.ec2.describe_volumes(VolumeIds=[volume])
    attachments = answer["Volumes"][0].get("Attachments") or [{}]
    return str(attachments[0].get("InstanceId", ""))


def _folder(volume: str) -> Path:
    """Where the attached disk can be written to; the local cloud has a folder for each."""
    local = os.environ.get("SPOTELASTIC_VOLUMES")
    return Path(local, volume) if local else _mounted(volume)


def _mounted(volume: str) -> Path:
    """Mounts the disk, found by its serial number; formats it only if it is blank."""
    disk = Path(f"/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_{volume.replace('-', '')}")
    folder = Path("/var/lib/spotelastic", volume)
    until(lambda: disk.exists() or None, f"the disk {disk} does not appear", 60.0)
    if os.path.ismount(folder):
        return folder
    # blkid exits with 2 when it finds nothing that it knows on the disk.
    if subprocess.run(["blkid", "-p", str(disk)], check=False, timeout=60).returncode == 2:
        _command("mkfs.ext4", "-q", str(disk))
    folder.mkdir(parents=True, exist_ok=True)
    _command("mount", "-o", "noatime", str(disk), str(folder))
    return folder


def _command(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise EnvironmentFailure(f"{' '.join(words)}: {done.stderr.strip()}")
