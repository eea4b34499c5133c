"""Adds Amazon's images, and the public parameters that name Deep Learning images, which moto lacks.

Images have the size that those of Amazon Linux have.
"""

from typing import Any

from moto.core.parse import default_timestamp_parser
from moto.core.utils import utcnow
from moto.ec2.models import ec2_backends
from moto.ec2.models.amis import Ami
from moto.ssm.models import Parameter, ssm_backends
from moto.utilities.utils import load_resource

from spotelastic.local.cloud import ACCOUNT, REGIONS
from spotelastic.local.moto_patches.patch import Patches

GIB = 8
"""Size of an image's root disk."""
_LINUX = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
_DEEP_LEARNING = "/aws/service/deeplearning/ami/x86_64/{}/latest/ami-id"
_FLAVOURS = (
    "oss-nvidia-driver-gpu-pytorch-2.10-amazon-linux-2023",
    "base-oss-nvidia-driver-gpu-amazon-linux-2023",
)


def install(patches: Patches) -> None:
    """Apply the patch, and add the images of Amazon Linux.

    Also add the parameters of Deep Learning images, which name one of these images as well.
    """
    described = Ami.block_device_mappings.fget  # type: ignore[attr-defined]

    def mappings(image: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = described(image)
        return [{**each, "Ebs": {**each["Ebs"], "VolumeSize": GIB}} for each in found]

    patches.addition(Ami, "block_device_mappings", "moto's images have 15 GiB, Amazon Linux's 8")(
        property(mappings)
    )
    for region in REGIONS:
        _add_images(region)
        _add_parameters(region)


def _add_images(region: str) -> None:
    backend: Any = ec2_backends[ACCOUNT][region]
    for image in load_resource(f"ec2/resources/latest_amis/{region}.json"):
        created = image.get("creation_date")
        more = {"creation_date": default_timestamp_parser(created)} if created else {}
        backend.amis[image["ami_id"]] = Ami(backend, **image | more, owner_alias="amazon")


def _add_parameters(region: str) -> None:
    parameters = ssm_backends[ACCOUNT][region]._parameters
    make: Any = Parameter  # its abstract methods are for CloudFormation only
    image = parameters[_LINUX][-1].value
    for flavour in _FLAVOURS:
        name = _DEEP_LEARNING.format(flavour)
        parameters[name].append(
            make(
                account_id=ACCOUNT,
                name=name,
                value=image,
                parameter_type="String",
                description=None,
                allowed_pattern=None,
                keyid=None,
                last_modified_date=utcnow(),
                version=1,
                data_type="text",
            )
        )
