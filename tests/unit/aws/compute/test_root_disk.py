"""The size of a worker's root disk, and the device that it is on."""

from typing import Any

import pytest
from support.aws.fake_services import fake_aws, refusal

from spotelastic.aws.compute.estimate import estimate
from spotelastic.aws.compute.images import RootDisk, choose_root_disk, find_root_disk
from spotelastic.errors import UsageError


def image(gib: int, device: str = "/dev/xvda") -> dict[str, Any]:
    other = {"DeviceName": "/dev/sdb", "Ebs": {"VolumeSize": 900}}
    ephemeral = {"DeviceName": "/dev/sdc", "VirtualName": "ephemeral0"}
    root = {"DeviceName": device, "Ebs": {"VolumeSize": gib}}
    return {"RootDeviceName": device, "BlockDeviceMappings": [other, ephemeral, root]}


@pytest.mark.parametrize(("gib", "size"), [(8, 100), (50, 100), (51, 101), (140, 190)])
def test_a_disk_has_room_beside_its_image(gib: int, size: int) -> None:
    assert choose_root_disk(image(gib), None) == RootDisk("/dev/xvda", size)


def test_it_is_the_device_that_the_image_names() -> None:
    """A volume of another name would be a second, empty one, beside a root of the image's size."""
    assert choose_root_disk(image(60, "/dev/sda1"), None) == RootDisk("/dev/sda1", 110)


def test_a_size_that_is_asked_for_holds_at_least_the_image() -> None:
    assert choose_root_disk(image(60), 500).gib == 500
    assert choose_root_disk(image(60), 60).gib == 60
    with pytest.raises(UsageError, match="--disk 59: the workers' machine image fills 60 GiB"):
        choose_root_disk(image(60), 59)


@pytest.mark.parametrize("code", ["InvalidAMIID.NotFound", "InvalidAMIID.Unavailable"])
def test_an_image_that_was_withdrawn_is_left_to_the_first_launch(code: str) -> None:
    class Ec2:
        def describe_images(self, ImageIds: list[str]) -> dict[str, Any]:
            raise refusal(code, "DescribeImages")

    assert find_root_disk(fake_aws(ec2=Ec2()), "ami-1", None) == RootDisk()
    assert find_root_disk(fake_aws(ec2=Ec2()), "ami-1", 300).gib == 300


def test_the_disk_is_on_the_bill_with_its_throughput() -> None:
    def usd(gib: int) -> float:
        costs = estimate(
            nodes=(1, 1),
            worker="g5.xlarge",
            worker_usd=1.0,
            control="t3.small",
            control_usd=0.02,
            controls=3,
            nat_gateways=0,
            addresses=(4, 4),
            disk_gib=gib,
        )
        (line,) = [line for line in costs.lines if line.what == f"worker disk, {gib} GiB"]
        return line.usd

    assert usd(200) - usd(100) == pytest.approx(100 * 0.08 / 730)
    assert usd(100) == pytest.approx(100 * 0.08 / 730 + 125 * 0.04 / 730)
