"""Patches moto to check IAM permissions, with conditions, on every call.

moto's own check is off by default, and does not know conditions.
"""

import json
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from threading import RLock
from typing import Any
from xml.etree.ElementTree import fromstring

from moto.core.authorization import ActionAuthenticatorMixin
from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult, BaseResponse
from moto.iam.access_control import PermissionResult
from moto.iam.models import Role
from moto.s3.exceptions import BucketAccessDeniedError, S3AccessDeniedError
from moto.s3.models import FakeBucket, s3_backends
from support.strict import evaluation
from support.strict.authority import Authority, AwsRequest, accesses, principal_of, s3_access
from support.strict.judging import KEY

from spotelastic.local.moto_patches.locks import SERIALIZED
from spotelastic.local.moto_patches.patch import Patches

_CODES = {"ec2": "UnauthorizedOperation", "logs": "AccessDeniedException"}
_CODES |= {"ssm": "AccessDeniedException"}
_PARAMETERS = (
    "AWSServiceName",
    "AllocationId",
    "AttachmentId",
    "AutoScalingGroupName",
    "InstanceId",
    "InstanceIds",
    "InstanceProfileName",
    "LaunchTemplateId",
    "LaunchTemplateName",
    "Name",
    "Names",
    "NetworkInterfaceId",
    "Path",
    "PermissionsBoundary",
    "PolicyArn",
    "QueueName",
    "QueueUrl",
    "Resources",
    "RoleARN",
    "RoleName",
    "StackName",
    "SubnetId",
    "TagSpecifications",
    "UserName",
    "VolumeId",
    "VpcId",
    "logGroupName",
    "logStreamName",
)
"""Parameters that name what a call acts on, or the tags of what it creates."""


CONTEXT = {"aws:SecureTransport": "true"}
"""The context of all calls. Loopback traffic is not encrypted, but private to this machine: it
counts as TLS."""


class AccessDenied(ServiceException):
    """A denied call. It is defined here because moto takes an error's service from its module."""


def install(patches: Patches, authority: Authority, lock: RLock) -> None:
    """Apply the patches."""
    # moto's models of most services do not list this error, and it warns each time.
    warnings.filterwarnings("ignore", message=r"Exception\(AccessDenied\)")
    _install_calls(patches, authority, lock)
    _install_s3(patches, authority)
    _install_roles(patches)


def _install_calls(patches: Patches, authority: Authority, lock: RLock) -> None:
    @patches.method(BaseResponse, "get_access_key", "moto reads no key from a presigned URL")
    def get_access_key(original: Callable[..., Any], response: Any) -> str:
        return str(response.headers.get(KEY) or original(response))

    def refused(response: Any) -> Any:
        principal = principal_of(response.current_account, response.access_key)
        if not principal.name:
            return None
        request = AwsRequest(
            response.service_name,
            response._get_action(),
            response.current_account,
            response.region,
            _given(response),
        )
        refused = authority.judge(principal, accesses(request))
        if refused is None:
            return None
        code = _CODES.get(request.service, "AccessDenied")
        message = (
            f"{principal.name} is not authorized to perform: {refused.action} on "
            f"resource: {', '.join(each.arn for each in refused.resources)}"
        )
        error = AccessDenied(code, message)
        status, headers, body = response.serialized(ActionResult(error))
        return 403 if status == 400 else status, headers, body

    def judged(held: AbstractContextManager[object]) -> Callable[..., Any]:
        def call_action(original: Callable[..., Any], response: Any) -> Any:
            with held:
                answer = refused(response)
            return original(response) if answer is None else answer

        return call_action

    reason = "moto permits every call"
    patches.method(BaseResponse, "call_action", reason)(judged(nullcontext()))
    for service in SERIALIZED:  # their own method, which is moto's with the lock
        patches.method(service, "call_action", reason)(judged(lock))


def _install_s3(patches: Patches, authority: Authority) -> None:
    @patches.method(
        ActionAuthenticatorMixin,
        "_authenticate_and_authorize_s3_action",
        "S3's calls do not pass there, and moto ignores the expected owner of a bucket",
    )
    def authorize_s3(
        original: Callable[..., Any],
        response: Any,
        bucket_name: str | None = None,
        key_name: str | None = None,
    ) -> None:
        expected = response.headers.get("x-amz-expected-bucket-owner")
        whose = _owner(bucket_name)
        if expected and whose not in ("", expected):
            raise BucketAccessDeniedError(bucket=str(bucket_name))
        principal = principal_of(response.current_account, response.access_key)
        prefix = (response.querystring.get("prefix") or [""])[0]
        action = str(response.data.get("Action") or response._get_action())
        keys = [key_name or ""]
        if action == "DeleteObject" and not key_name:  # many objects, each to be permitted
            keys = _listed(response)
        write = _write_conditions(response)
        wanted = [s3_access(action, bucket_name or "*", key, prefix, whose, write) for key in keys]
        if (
            key_name
            and response.method in ("GET", "HEAD")
            and _missing(response, bucket_name, key_name)
        ):
            # Only a caller that may list is told that the object does not exist.
            wanted.append(s3_access("ListBucket", str(bucket_name), "", "", whose, {}))
        if authority.judge(principal, wanted) is not None:
            if bucket_name:
                raise BucketAccessDeniedError(bucket=bucket_name)
            raise S3AccessDeniedError

    @patches.method(FakeBucket, "get_permission", "the local cloud asks no bucket's policy")
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


def _owner(bucket: str | None) -> str:
    """Return the account that owns the bucket; "" if there is no such bucket."""
    _, account = s3_backends.bucket_accounts.get(str(bucket), ("", ""))
    return str(account)


def _install_roles(patches: Patches) -> None:
    @patches.method(
        Role,
        "create_from_cloudformation_json",
        "moto stores a stack's policies as Python objects, and keeps those that are no value",
    )
    def create_role(
        original: Callable[..., Any], name: str, resource: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        properties = resource["Properties"]
        properties["Policies"] = [each for each in properties.get("Policies", ()) if each]
        role = original(name, resource, *args, **kwargs)
        role.policies = {
            name: document if isinstance(document, str) else json.dumps(document)
            for name, document in role.policies.items()
        }
        return role


def _write_conditions(response: Any) -> dict[str, str]:
    """Return the condition keys by which policies demand conditional writes. The beginning and the
    parts of a large upload create no object.
    """
    part = not {"uploads", "partNumber"}.isdisjoint(response.querystring)
    asked = response.headers.get("If-None-Match")
    condition = {} if asked is None else {"s3:if-none-match": str(asked)}
    return {"s3:ObjectCreationOperation": str(not part).lower(), **condition}


def _listed(response: Any) -> list[str]:
    """Return the keys in the body of a DeleteObjects."""
    nodes = fromstring(response.body).iter()
    return [node.text or "" for node in nodes if node.tag.rpartition("}")[2] == "Key"]


def _missing(response: Any, name: str | None, key: str) -> bool:
    bucket = response.backend.buckets.get(name)
    return bucket is not None and key not in bucket.keys


def _given(response: Any) -> Mapping[str, Any]:
    values = {name: response._get_param(name) for name in _PARAMETERS}
    return {name: value for name, value in values.items() if value}
