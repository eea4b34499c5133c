"""Looks at the KMS key of the user's own (`--kms-key`), before anything is made."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any

from spotelastic.aws.base.clients import (
    DENIED,
    ENCRYPTION,
    Aws,
    Rejected,
    calling,
    explained,
    optional,
)
from spotelastic.errors import UsageError
from spotelastic.model.job import JobSpec

PAGE = "docs/how-to/encrypt-with-your-own-key.md"
_KEY = re.compile(r"arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:key/[\w-]+", re.ASCII)
_ENCRYPTION = "s3:x-amz-server-side-encryption"
"""How the names of all conditions on a request's encryption begin."""
_UNKNOWN = ("NotFoundException", "InvalidArnException", "ValidationException")


def data_keys(arns: Sequence[str]) -> tuple[str, ...]:
    """Return the keys of `--data-key`, which may be another account's. Raises `UsageError`."""
    for arn in arns:
        if not _KEY.fullmatch(arn):
            raise UsageError(
                f"--data-key {arn}: expected the ARN of a key, arn:aws:kms:REGION:ACCOUNT:key/ID"
            )
    return tuple(arns)


def find_key(aws: Aws, name: str, where: str = "--kms-key") -> str:
    """Return the ARN of a key that is given by its id, ARN or alias; `where` says what gave it.

    Raises `UsageError` for a key that is not there, or that can encrypt no disk.
    """
    unknown = UsageError(
        f"{where} {name}: there is no such key in {aws.region}; give its id, its ARN, or alias/NAME"
    )
    try:
        with explained(unknown, *_UNKNOWN), calling(f"look at the key {name}"):
            found = aws.kms.describe_key(KeyId=name)["KeyMetadata"]
    except Rejected as error:
        if error.code not in DENIED:
            raise
        raise UsageError(f"{where} {name}: {error}; {PAGE} says who needs it") from error
    if wrong := unfit(found):
        raise UsageError(f"{where} {name}: {wrong}")
    return str(found["Arn"])


def bucket_obstacles(aws: Aws, bucket: str, cluster: str, given: str) -> Iterator[str]:
    """Yield why a cluster could not work with a bucket of the user's own.

    It may encrypt with a key that is not the `given` one, or its policy denies objects whose
    requests name no encryption. Nothing where AWS does not tell.
    """
    if key := _other_key(aws, bucket, [given] if given else []):
        yield (
            f"--bucket {bucket} encrypts with {key}, which nodes may use only as --kms-key: each "
            f"would end when it fetches its software ({PAGE} says what the key needs)"
        )
    if os.environ.get(ENCRYPTION["ServerSideEncryption"]):
        return
    policy: dict[str, Any] = {"Statement": []}
    with optional(), suppress(ValueError), calling(f"read the policy of {bucket}"):
        policy = json.loads(aws.s3.get_bucket_policy(Bucket=bucket)["Policy"])
    arn = f"arn:{aws.partition}:s3:::{bucket}/{cluster}/job.json"
    if any(denies_plain_object(each, arn) for each in several(policy["Statement"])):
        yield (
            f"--bucket {bucket}: its policy denies objects whose requests do not name their "
            f"encryption: set {ENCRYPTION['ServerSideEncryption']}=aws:kms (or AES256) for all "
            "commands, or have the bucket's default encryption do, without that policy"
        )


def denies_plain_object(statement: Mapping[str, Any], arn: str) -> bool:
    """Whether a statement denies everybody an object whose request names no encryption (pure).

    `arn` is the object's. One that also asks for a header that is there lets such requests pass.
    """
    conditions = json.dumps(statement.get("Condition", {})).lower()
    return (
        statement["Effect"] == "Deny"
        and statement.get("Principal") in ("*", {"AWS": "*"}, {"AWS": ["*"]})
        and any(fnmatchcase(arn, each) for each in several(statement.get("Resource", ())))
        and _ENCRYPTION in conditions
        and '"false"' not in conditions
    )


def several(value: Any) -> list[Any]:
    """Return what a policy names, of which it may name one or more."""
    return list(value) if isinstance(value, list | tuple) else [value]


def data_warnings(aws: Aws, job: JobSpec, key: str) -> Iterator[str]:
    """Yield which buckets encrypt with a key that workers may not use.

    The buckets are those of --read and --write; `key` is that of --kms-key.
    """
    given = [*filter(None, [key]), *job.demands.data_keys]
    for bucket in sorted({each.partition("/")[0] for each in (*job.read, *job.write)}):
        if other := _other_key(aws, bucket, given):
            yield (
                f"s3://{bucket} encrypts with {other}: workers may use it with --data-key ARN, and "
                f"where the key's policy lets them ({PAGE})"
            )


def _other_key(aws: Aws, bucket: str, given: Sequence[str]) -> str:
    """Return the customer's key by which a bucket encrypts by default.

    Empty if that is a `given` key, and also where AWS does not tell.
    """
    with optional(), suppress(UsageError), calling(f"look at the encryption of {bucket}"):
        answer = aws.s3.get_bucket_encryption(Bucket=bucket)
        rules = answer["ServerSideEncryptionConfiguration"]["Rules"]
        defaults = [each.get("ApplyServerSideEncryptionByDefault", {}) for each in rules]
        key = "".join(str(each.get("KMSMasterKeyID", "")) for each in defaults[:1])
        if not key or key.endswith("alias/aws/s3") or key in given:
            return ""
        its = find_key(aws, key) if given else ""
        return "" if its and its in [find_key(aws, each) for each in given] else key
    return ""


def unfit(key: Mapping[str, Any]) -> str:
    """Return why a key, as KMS describes it, cannot be used; "" if it can (pure)."""
    state = key.get("KeyState", "Enabled")
    if state == "PendingDeletion":
        return "it is about to be deleted: cancel that and enable it, or name another one"
    if state != "Enabled":
        return f"it is {state}: enable it, or name another one"
    if key.get("KeySpec", "SYMMETRIC_DEFAULT") != "SYMMETRIC_DEFAULT":
        return f"it is a key for {key['KeySpec']}, and disks need a symmetric one"
    if key.get("KeyManager") == "AWS":
        return "it is AWS's own, which is used without this flag: leave it out"
    return ""
