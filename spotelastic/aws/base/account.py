"""Creates what an AWS account needs once for all clusters: the shared bucket and two service roles.

They are created on the first `up` and stay when clusters go. Checkpoints live in the bucket. A role
lets CloudFormation delete a cluster when no laptop is there to do so.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from spotelastic.aws.base import names
from spotelastic.aws.base.clients import (
    DENIED,
    Aws,
    Rejected,
    calling,
    explained,
    passing,
    patient,
    refusable,
)
from spotelastic.aws.base.demands import NO_TAGS, pairs_of
from spotelastic.aws.base.infra_files import infra
from spotelastic.errors import UsageError
from spotelastic.model.job import NO_DEMANDS, AccountDemands

PROTECTED = {"Key": "spotelastic:protected", "Value": "1"}
"""The bucket's tag that says that the protection below is complete; it is set last."""
BLOCKS = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
"""What S3 keeps from the public in all buckets that are made since 2023."""
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_OTHERS = ("--x-s3", "-s3alias", "--ol-s3", ".mrap")
"""Ends of names that S3 gives to something else."""
_MISSING = ("404", "NoSuchBucket")
_FORBIDDEN = ("403", "AccessDenied", "Forbidden")


def default_bucket(aws: Aws) -> str:
    """Return the bucket that all clusters of the account and region share by default."""
    return names.bucket(aws.account, aws.region)


def ensure_bucket(aws: Aws, bucket: str, own_tags: Mapping[str, str] = NO_TAGS) -> None:
    """Create and protect the shared bucket if needed; can be repeated at any point.

    `own_tags` are the user's, for a bucket that is made now. What these credentials may not do may
    have been done beforehand, by an administrator or by S3 itself.

    Raises `UsageError` if another account has a bucket of this name.
    """
    try:
        _make(aws, bucket)
        if PROTECTED not in _tags(aws, bucket):
            _protect(aws, bucket, own_tags)
    except Rejected as error:
        if error.code not in DENIED:
            raise
        raise Rejected(f"{error}: or name a bucket that is there, --bucket", error.code) from error


def _make(aws: Aws, bucket: str) -> None:
    where = {} if aws.region == "us-east-1" else {"LocationConstraint": aws.region}
    with (
        explained(UsageError(_taken(bucket)), "BucketAlreadyExists"),
        passing("BucketAlreadyOwnedByYou"),
        _unless(lambda: bool(_answer(aws.s3.head_bucket, bucket))),
        calling(f"create the bucket {bucket}"),
    ):
        aws.s3.create_bucket(
            Bucket=bucket, **({"CreateBucketConfiguration": where} if where else {})
        )


def check_bucket(aws: Aws, bucket: str) -> None:
    """Raise `UsageError` for a bucket that cannot be used.

    What has a name as buckets do may be an access point, or a directory bucket, to which rights are
    given otherwise.

    The user's own (`--bucket`) must exist; the shared one may not exist yet. A bucket of another
    account is refused even if it can be accessed: its owner could read the job and replace its
    code.
    """
    shared = bucket == default_bucket(aws)
    if not _NAME.fullmatch(bucket):
        raise UsageError(f"--bucket {bucket}: expected the name of a bucket, as in s3://NAME/")
    if bucket.endswith(_OTHERS):
        raise UsageError(
            f"--bucket {bucket}: it is an access point or a directory bucket: name a bucket of the "
            "general kind"
        )
    none = UsageError(f"--bucket {bucket}: there is no such bucket")
    foreign = UsageError(
        _taken(bucket)
        if shared
        else f"--bucket {bucket}: it does not belong to the account {aws.account}, or these "
        "credentials may not use it"
    )
    absent = passing(*(_MISSING if shared else ()))
    with explained(foreign, *_FORBIDDEN), explained(none, *_MISSING), absent:
        with calling(f"look at the bucket {bucket}"):
            found = aws.s3.head_bucket(Bucket=bucket)
        region = found.get("BucketRegion") or aws.region
        if region != aws.region:
            raise UsageError(f"--bucket {bucket}: it is in {region}, the cluster in {aws.region}")


def _taken(bucket: str) -> str:
    """Return the message for a shared bucket that another account has.

    The shared bucket's name is easy to guess.
    """
    return (
        f"the bucket {bucket}, which clusters share by default, belongs to another account, or "
        "these credentials may not use it: name your own with --bucket"
    )


def _answer(look: Callable[..., Any], bucket: str) -> Any:
    """Return what a look at a bucket answers; None where it is refused."""
    with refusable(), calling("look at the bucket"):
        return look(Bucket=bucket)
    return None


@contextmanager
def _unless(is_so: Callable[[], bool]) -> Iterator[None]:
    """Pass over a denial to do what is done already, by S3 itself or by an administrator."""
    try:
        yield
    except Rejected as error:
        if error.code not in DENIED or not is_so():
            raise


def _tags(aws: Aws, bucket: str) -> list[dict[str, str]]:
    with passing("NoSuchTagSet"), calling(f"read the tags of the bucket {bucket}"):
        tags: list[dict[str, str]] = aws.s3.get_bucket_tagging(Bucket=bucket)["TagSet"]
        return tags
    return []


# S3 applies changes to a bucket one by one, and refuses another one in the meantime.
@patient(lambda error: error.code == "OperationAborted")
def _protect(aws: Aws, bucket: str, own_tags: Mapping[str, str]) -> None:
    what, s3 = f"protect the bucket {bucket}", aws.s3
    key, blocked = "PublicAccessBlockConfiguration", dict.fromkeys(BLOCKS, True)
    with (
        _unless(lambda: (_answer(s3.get_public_access_block, bucket) or {}).get(key) == blocked),
        calling(what),
    ):
        s3.put_public_access_block(Bucket=bucket, **{key: blocked})
    rules = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]}
    with _unless(lambda: bool(_answer(s3.get_bucket_encryption, bucket))), calling(what):
        s3.put_bucket_encryption(Bucket=bucket, ServerSideEncryptionConfiguration=rules)
    with calling(what):
        aws.s3.put_bucket_policy(Bucket=bucket, Policy=json.dumps(_tls_only(aws.partition, bucket)))
        aws.s3.put_bucket_lifecycle_configuration(
            Bucket=bucket,
            LifecycleConfiguration={
                "Rules": [
                    {
                        "ID": "abandoned-uploads",
                        "Status": "Enabled",
                        "Filter": {"Prefix": ""},
                        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 2},
                    }
                ]
            },
        )
        its = [*pairs_of(own_tags), PROTECTED]
        aws.s3.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": its})


def _tls_only(partition: str, bucket: str) -> dict[str, Any]:
    arn = f"arn:{partition}:s3:::{bucket}"
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "TlsOnly",
                "Effect": "Deny",
                "Principal": "*",
                "Action": "s3:*",
                "Resource": [arn, f"{arn}/*"],
                "Condition": {"Bool": {"aws:SecureTransport": "false"}},
            }
        ],
    }


# -- roles ---------------------------------------------------------------------------------------


def boundary(aws: Aws, given: str) -> str:
    """Return the ARN of the permissions boundary of roles.

    It is the `given` one, or else the account's policy `names.BOUNDARY` (infra/boundary.json).
    Empty if the account has none.
    """
    if given:
        return given
    arn = f"arn:{aws.partition}:iam::{aws.account}:policy/{names.BOUNDARY}"
    with passing(*DENIED, "NoSuchEntity"), calling(f"look for the policy {names.BOUNDARY}"):
        aws.iam.get_policy(PolicyArn=arn)
        return arn
    return ""


def ensure_service_role(aws: Aws, demands: AccountDemands = NO_DEMANDS) -> str:
    """Return the ARN of the role by which CloudFormation deletes stacks.

    It is the given role, or that of all clusters, which is created if it is missing.
    """
    if demands.stack_role:
        return demands.stack_role
    arn, _ = _ensure_role(
        aws,
        "cloudformation",
        "Lets CloudFormation delete the stacks of spotelastic clusters",
        infra("deletion.json").read_text(),
        demands,
    )
    return arn


def ensure_fault_role(aws: Aws, demands: AccountDemands = NO_DEMANDS) -> tuple[str, bool]:
    """Return the ARN of the role by which the Fault Injection Service interrupts nodes.

    The role is created if it is missing.

    Also returns whether it was created just now: not all of AWS knows it yet.
    """
    policy = {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Action": "ec2:DescribeInstances", "Resource": "*"},
            {
                "Effect": "Allow",
                "Action": "ec2:SendSpotInstanceInterruptions",
                "Resource": f"arn:{aws.partition}:ec2:*:*:instance/*",
                "Condition": {"StringLike": {"aws:ResourceTag/spotelastic:cluster": "*"}},
            },
        ],
    }
    return _ensure_role(
        aws,
        "fis",
        "Interrupts nodes of spotelastic clusters on request",
        json.dumps(policy),
        demands,
    )


def _ensure_role(
    aws: Aws, service: str, description: str, policy: str, demands: AccountDemands
) -> tuple[str, bool]:
    """Return the ARN of a role for an AWS service, and whether it was created just now."""
    name = f"spotelastic-{service}-{aws.region}"
    trust = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": f"{service}.amazonaws.com"},
                "Action": "sts:AssumeRole",
            }
        ],
    }
    role = _role(aws, name)
    new = role is None
    if role is None and (role := _create_role(aws, name, description, trust, demands)) is None:
        arn = f"arn:{aws.partition}:iam::{aws.account}:role/{name}"
        return arn, False  # it is there, and these credentials may not look at it
    its = role.get("PermissionsBoundary", {}).get("PermissionsBoundaryArn", "")
    if not new and demands.boundary not in ("", its):
        with calling(f"set the permissions boundary of the role {name}"):
            aws.iam.put_role_permissions_boundary(
                RoleName=name, PermissionsBoundary=demands.boundary
            )
    # One that is there an administrator may have made, and keeps.
    with passing(*(() if new else DENIED)), calling(f"set the permissions of the role {name}"):
        aws.iam.put_role_policy(RoleName=name, PolicyName="spotelastic", PolicyDocument=policy)
    return str(role["Arn"]), new


def _role(aws: Aws, name: str) -> dict[str, Any] | None:
    """Return the role; None if there is none, or if these credentials may not look."""
    with passing(*DENIED, "NoSuchEntity"), calling(f"look at the role {name}"):
        found: dict[str, Any] = aws.iam.get_role(RoleName=name)["Role"]
        return found
    return None


def _create_role(
    aws: Aws, name: str, description: str, trust: Mapping[str, Any], demands: AccountDemands
) -> dict[str, Any] | None:
    """Return the role; None if it is there and these credentials may not look."""
    try:
        with calling(f"create the role {name}"):
            made: dict[str, Any] = aws.iam.create_role(
                RoleName=name,
                AssumeRolePolicyDocument=json.dumps(trust),
                Description=description,
                **({"Tags": pairs_of(demands.tags)} if demands.tags else {}),
                **({"PermissionsBoundary": demands.boundary} if demands.boundary else {}),
            )["Role"]
    except Rejected as error:
        if error.code in DENIED:
            raise Rejected(
                f"{error}: infra/laptop.json permits it with the policy {names.BOUNDARY} as "
                "boundary, which an administrator makes once "
                "(docs/how-to/prepare-an-account.md); or name a role that is there, --stack-role",
                error.code,
            ) from error
        if error.code != "EntityAlreadyExists":
            raise
        return _role(aws, name)  # another `up` has just made it
    return made
