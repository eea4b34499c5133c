"""Finds the machine images of nodes, and sizes the root disk of workers for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spotelastic.aws.base.clients import Aws, calling, explained, passing
from spotelastic.aws.compute.estimate import WORKER_DISK_GIB
from spotelastic.errors import UsageError

AMAZON_LINUX = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
DEEP_LEARNING = tuple(
    f"/aws/service/deeplearning/ami/x86_64/{flavour}-amazon-linux-2023/latest/ami-id"
    for flavour in (
        "oss-nvidia-driver-gpu-pytorch-2.13",
        "oss-nvidia-driver-gpu-pytorch-2.10",
        "base-oss-nvidia-driver-gpu",
    )
)
"""Images for GPU workers; the first that the region has is used.

The last one has drivers only: nodes then install torch when they boot.
"""
ROOM_GIB = 50
"""Room on a root disk beside its image: for packages, a container, the script's own files."""


@dataclass(frozen=True, slots=True)
class RootDisk:
    """The disk that a worker boots from."""

    device: str = "/dev/xvda"
    """Name of the device, as the image has it."""
    gib: int = WORKER_DISK_GIB


def first_image(aws: Aws, parameter: str, *others: str) -> str:
    """Return the first of these images that exists."""
    with (
        passing(*(["ParameterNotFound"] if others else ())),
        calling(f"find the machine image {parameter}"),
    ):
        return str(aws.ssm.get_parameter(Name=parameter)["Parameter"]["Value"])
    return first_image(aws, *others)


def given_image(aws: Aws, flag: str, given: str) -> tuple[str, str]:
    """Return an image of the user's own, and its root device.

    The image is named by its id, or by the parameter that holds the id. Raises `UsageError` for one
    that nodes could not boot.
    """
    none = UsageError(
        f"--{flag} {given}: {aws.region} has no such image, or this account may not use it"
    )
    with explained(none, "InvalidAMI", "ParameterNotFound"):
        image = first_image(aws, given) if given.startswith("/") else given
        with calling(f"look at the machine image {image}"):
            found = aws.ec2.describe_images(ImageIds=[image])["Images"]
    if not found:
        raise none
    if wrong := _unfit(found[0]):
        raise UsageError(f"--{flag} {given}: {wrong}")
    return image, str(found[0].get("RootDeviceName") or RootDisk().device)


def _unfit(image: Mapping[str, Any]) -> str:
    """Return why nodes could not boot an image, as EC2 describes it; "" if they can (pure)."""
    if image.get("State", "available") != "available":
        return f"it is {image['State']}: wait for it, or name another one"
    if image.get("Architecture") != "x86_64":
        return f"it is for {image.get('Architecture')}, and nodes are x86_64"
    if image.get("Platform", "").lower() == "windows":
        return "it is one of Windows, and nodes run Linux"
    return ""


def find_workers_image(aws: Aws, gpus: int, given: str = "") -> str:
    """Return the image for workers with so many GPUs: the `given` one, else AWS's.

    Raises `UsageError` where the region has none.
    """
    if given:
        return given_image(aws, "worker-image", given)[0]
    if not gpus:
        return first_image(aws, AMAZON_LINUX)
    none = UsageError(
        f"{aws.region} has none of AWS's Deep Learning images, which nodes with GPUs boot: choose "
        "another region, or --instance-types without GPUs"
    )
    with explained(none, "ParameterNotFound"):
        return first_image(aws, *DEEP_LEARNING)


def find_root_disk(aws: Aws, image: str, wanted: int | None) -> RootDisk:
    """Return the root disk of workers that boot the image, of the `wanted` size in GiB if any.

    Raises `UsageError` where the image does not fit.
    """
    found: list[dict[str, Any]] = []
    # A cluster keeps its image, which may have been withdrawn. The first launch will tell.
    withdrawn = passing("InvalidAMIID.NotFound", "InvalidAMIID.Unavailable")
    with withdrawn, calling(f"look at the machine image {image}"):
        found = aws.ec2.describe_images(ImageIds=[image])["Images"]
    return choose_root_disk(found[0] if found else {}, wanted)


def choose_root_disk(image: Mapping[str, Any], wanted: int | None) -> RootDisk:
    """Return the root disk for an image as EC2 describes it (pure)."""
    device = str(image.get("RootDeviceName") or RootDisk().device)
    needed = max(
        (
            mapping["Ebs"].get("VolumeSize", 0)
            for mapping in image.get("BlockDeviceMappings", ())
            if mapping.get("DeviceName") == device and "Ebs" in mapping
        ),
        default=0,
    )
    if wanted is None:
        return RootDisk(device, max(WORKER_DISK_GIB, needed + ROOM_GIB))
    if wanted < needed:
        raise UsageError(
            f"--disk {wanted}: the workers' machine image fills {needed} GiB: give at least "
            f"{needed + ROOM_GIB}, or leave it out"
        )
    return RootDisk(device, wanted)
