"""Serializes moto's calls that change shared state: moto is not thread-safe."""

from collections.abc import Callable
from threading import Lock, RLock
from typing import Any

from moto.autoscaling.responses import AutoScalingResponse
from moto.cloudformation.responses import CloudFormationResponse
from moto.ec2.responses._base_response import EC2BaseResponse
from moto.events.responses import EventsHandler
from moto.s3.responses import S3Response

from spotelastic.local.moto_patches.patch import Patches

SERIALIZED = (EC2BaseResponse, AutoScalingResponse, CloudFormationResponse, EventsHandler)
"""Services whose calls are served one at a time."""


def install(patches: Patches, lock: RLock) -> None:
    """Apply the patches; `lock` is the cloud's."""
    for service in SERIALIZED:
        _hold(patches, service, "call_action", lock, "2 of 480 concurrent terminations failed")
    writes = Lock()
    for name in ("put_object", "delete_object"):
        reason = "If-Match and If-None-Match must be atomic"
        _hold(patches, S3Response, name, writes, reason)


def _hold(patches: Patches, owner: type, name: str, lock: Any, reason: str) -> None:
    def held(original: Callable[..., Any], response: Any, *args: Any, **kwargs: Any) -> Any:
        with lock:
            return original(response, *args, **kwargs)

    patches.method(owner, name, reason)(held)
