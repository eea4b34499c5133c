"""An account whose launches EC2 refuses: it is new, blocked, or lacks a right to an image."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instances import InstanceBackend
from moto.ec2.responses.instances import InstanceResponse

from spotelastic.local.moto_patches.patch import Patches


@dataclass
class LaunchRefusal:
    """What EC2 answers to launches."""

    code: str = ""
    """Its error code; empty: none is refused."""
    message: str = ""
    types: tuple[str, ...] = ()
    """Types of which no instance is launched; none: of no type."""

    def check(self, type: str) -> None:
        if self.code and (not self.types or type in self.types):
            raise EC2ClientError(self.code, self.message)


def install(patches: Patches, refusal: LaunchRefusal) -> None:
    @patches.method(InstanceResponse, "run_instances", "an account of the tests")
    def answer(original: Callable[..., Any], response: Any) -> Any:
        refusal.check(response._get_param("InstanceType", ""))
        return original(response)

    @patches.method(InstanceBackend, "run_instances", "an account of the tests")
    def launch(original: Callable[..., Any], backend: Any, *args: Any, **kwargs: Any) -> Any:
        refusal.check(str(kwargs.get("instance_type", "")))
        return original(backend, *args, **kwargs)
