"""S3: bucket policies with their conditions, and whose a bucket is."""

import json
from collections.abc import Callable
from typing import Any

from moto.iam.access_control import PermissionResult
from moto.s3.models import FakeBucket, s3_backends
from moto.s3.responses import S3Response

from spotelastic.local import iam
from spotelastic.local.completions.patch import Patches

CONTEXT = {"aws:SecureTransport": "true"}
"""Nothing on this machine's loopback is encrypted, and nobody else reads it: it counts as TLS."""


def install(patches: Patches) -> None:
    @patches.method(S3Response, "head_bucket", "moto asks nobody whose bucket it is expected to be")
    def head_bucket(original: Callable[..., Any], response: Any) -> Any:
        expected = response.headers.get("x-amz-expected-bucket-owner")
        accounts = s3_backends.bucket_accounts
        _, owner = accounts.get(response.bucket_name, ("", expected))
        return original(response) if expected in (None, owner) else (403, {}, "")

    @patches.method(
        FakeBucket, "get_permission", "moto takes a condition that does not hold for a denial"
    )
    def get_permission(
        original: Callable[..., Any], bucket: Any, action: str, resource: str
    ) -> PermissionResult:
        if bucket.policy is None:
            return PermissionResult.NEUTRAL
        policy = json.loads(bucket.policy)
        found = iam.verdict([policy], action, iam.Resource(resource), CONTEXT)
        return {
            True: PermissionResult.PERMITTED,
            False: PermissionResult.DENIED,
            None: PermissionResult.NEUTRAL,
        }[found]
