"""Launches that EC2 refuses, and those that it accepts and cannot start."""

import re
from typing import Any

import pytest
from support.aws.instance_types import DESCRIBED, SERVED, template
from support.strict.launch_checks import (
    DiskKey,
    ImageFacts,
    LaunchRequest,
    is_startable,
    refusal,
)

IMAGE = ImageFacts("x86_64", "/dev/xvda", "snap-1", 45)


def interface(card: int, device: int, kind: str = "interface", **more: Any) -> dict[str, Any]:
    return {"NetworkCardIndex": card, "DeviceIndex": device, "InterfaceType": kind, **more}


def root(gib: int, **ebs: Any) -> dict[str, Any]:
    return {"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": gib, **ebs}}


def answer(type: str, *interfaces: dict[str, Any], disk: int = 100, image: Any = IMAGE) -> str:
    found = refusal(LaunchRequest(type, DESCRIBED[type], interfaces, (root(disk),), image))
    return "" if found is None else f"{found.code}: {found.message}"


def test_the_template_of_every_type_that_is_served_is_accepted() -> None:
    refused = {}
    for name in SERVED:
        data = template(name)
        wanted = LaunchRequest(
            name,
            DESCRIBED[name],
            data.get("NetworkInterfaces", ()),
            data["BlockDeviceMappings"],
            IMAGE,
        )
        if (found := refusal(wanted)) is not None:
            refused[name] = found
    assert refused == {}
    assert len(SERVED) > 900


@pytest.mark.parametrize(
    ("type", "interfaces", "why"),
    [
        ("p6-b300.48xlarge", [interface(0, 0, "efa")], "InvalidParameterCombination: .* efa is"),
        ("c5.large", [interface(0, 0, "efa")], "AttachmentLimitExceeded: EFA interface count 1"),
        ("c5.large", [interface(0, n) for n in range(4)], "AttachmentLimitExceeded: .* 4 .* of 3"),
        ("g5.12xlarge", [interface(0, 0), interface(1, 0)], "InvalidParameterValue: .* index 1"),
        ("p4d.24xlarge", [interface(1, 0)], "InvalidParameterValue: .* device index 0 is req"),
        ("p4d.24xlarge", [interface(0, 0, "efa-only")], "primary network interface cannot be"),
        ("p4d.24xlarge", [interface(0, 0), interface(0, 0)], "unique device index: 0 .* card 0"),
        (
            "p4d.24xlarge",
            [interface(0, n, "efa") for n in range(5)],
            "AttachmentLimitExceeded: EFA interface count 5 exceeds the limit of 4",
        ),
        (
            "p4d.24xlarge",
            [interface(0, 0, AssociatePublicIpAddress=True), interface(1, 0)],
            "InvalidParameterCombination: The associatePublicIPAddress",
        ),
    ],
)
def test_interfaces_beyond_what_the_type_has_are_refused(
    type: str, interfaces: list[dict[str, Any]], why: str
) -> None:
    told = answer(type, *interfaces)
    assert re.search(why, told), told


def test_a_root_disk_smaller_than_the_images_snapshot_is_refused() -> None:
    assert answer("c5.large", disk=44).startswith(
        "InvalidBlockDeviceMapping: Volume of size 44GB is smaller than snapshot 'snap-1', expect "
        "size >= 45GB"
    )
    assert answer("c5.large", disk=45) == ""
    assert answer("c5.large", disk=1, image=None) == "", "an image that nobody knows"


def test_an_image_of_another_architecture_is_refused() -> None:
    arm = ImageFacts("arm64", "/dev/xvda", "snap-1", 8)
    assert answer("c5.large", image=arm).startswith(
        "InvalidParameterValue: The architecture 'x86_64' of the specified instance type does not "
        "match the architecture 'arm64'"
    )
    assert answer("c7g.large", image=arm) == ""
    assert answer("c7g.large").startswith("InvalidParameterValue")


def test_a_key_that_auto_scaling_may_not_use_keeps_encrypted_disks_from_starting() -> None:
    own, aws = DiskKey("arn:aws:kms:key/1", granted=False), DiskKey()
    assert is_startable([root(8)], own), "not encrypted"
    assert not is_startable([root(8, Encrypted=True)], own)
    assert not is_startable([root(8, Encrypted="true")], own), "as CloudFormation writes it"
    assert is_startable([root(8, Encrypted=True, KmsKeyId="alias/aws/ebs")], own)
    assert is_startable([root(8, Encrypted=True)], aws)
    assert is_startable([root(8, Encrypted=True)], DiskKey(own.name, granted=True))
