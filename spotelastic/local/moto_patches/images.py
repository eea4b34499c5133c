"""Public parameters that name machine images: moto has those of Amazon Linux only."""

from typing import Any

from moto.core.utils import utcnow
from moto.ssm.models import Parameter, ssm_backends

_LINUX = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
_DEEP_LEARNING = "/aws/service/deeplearning/ami/x86_64/{}/latest/ami-id"
_FLAVOURS = (
    "oss-nvidia-driver-gpu-pytorch-2.10-amazon-linux-2023",
    "base-oss-nvidia-driver-gpu-amazon-linux-2023",
    "base-oss-nvidia-driver-gpu-ubuntu-22.04",
)


def install(account: str, region: str) -> None:
    """Deep Learning AMIs: on this machine they are the same as any other image."""
    parameters = ssm_backends[account][region]._parameters
    make: Any = Parameter  # its abstract methods are CloudFormation's
    image = parameters[_LINUX][-1].value
    for flavour in _FLAVOURS:
        name = _DEEP_LEARNING.format(flavour)
        parameters[name].append(
            make(
                account_id=account,
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
