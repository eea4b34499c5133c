"""Patches moto's S3 to evaluate bucket policies with conditions, and to check a bucket's owner."""

import json
from collections.abc import Callable
from typing import Any

from moto.core.authorization import ActionAuthenticatorMixin
from moto.iam.access_control import PermissionResult
from moto.s3.exceptions import BucketAccessDeniedError
from moto.s3.models import FakeBucket, s3_backends

from spotelastic.local.iam import evaluation
from spotelastic.local.moto_patches.patch import Patches

CONTEXT = {"aws:SecureTransport": "true"}
"""The context of all calls. Loopback traffic is not encrypted, but private to this machine: it
counts as TLS."""


def install(patches: Patches) -> None:
    """Apply the patches."""

    @patches.method(
        ActionAuthenticatorMixin,
        "_authenticate_and_authorize_s3_action",
        "moto ignores the expected owner of a bucket",
    )
    def authorize_s3(
        original: Callable[..., Any],
        response: Any,
        bucket_name: str | None = None,
        key_name: str | None = None,
    ) -> None:
        expected = response.headers.get("x-amz-expected-bucket-owner")
        if expected and owner(bucket_name) not in ("", expected):
            raise BucketAccessDeniedError(bucket=str(bucket_name))
        original(response, bucket_name=bucket_name, key_name=key_name)

    @patches.method(
        FakeBucket, "get_permission", "moto takes a condition that does not hold for a denial"
    )
    def get_permission(
        original: Callable[..., Any], bucket: Any, action: str, resource: str
    ) -> PermissionResult:
        if bucket.policy is None:
            return PermissionResult.NEUTRAL
        policy = json.loads(bucket.policy)
        found = evaluation.verdict([policy], action, evaluation.Resource(resource), CONTEXT)
        return {
            True: PermissionResult.PERMITTED,
            False: PermissionResult.DENIED,
            None: PermissionResult.NEUTRAL,
        }[found]


def owner(bucket: str | None) -> str:
    """Return the account that owns the bucket; "" if there is no such bucket."""
    _, account = s3_backends.bucket_accounts.get(str(bucket), ("", ""))
    return str(account)
