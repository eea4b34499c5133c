"""Each call of AWS's that stands in the code is an action that some policy gives."""

import ast
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from botocore import xform_name
from support.aws.foreign_things import actions_of, operations
from support.aws.policies import additions, shipped
from support.aws.template import policies, resources
from support.strict.authority import OPEN

import spotelastic

CLIENTS = {
    **{name: name for name in ("autoscaling", "cloudformation", "ec2", "events", "fis", "iam")},
    "kms": "kms",
    **{name: name for name in ("logs", "pricing", "s3", "sns", "sqs", "ssm", "sts")},
    "quotas": "service-quotas",
}
"""What `Aws` calls its clients: services of boto3."""
PREFIXES = {"service-quotas": "servicequotas"}
HELPERS = {"get_paginator", "get_waiter"}
OF_S3 = {
    "AbortMultipartUpload": "AbortMultipartUpload",
    "CompleteMultipartUpload": "PutObject",
    "CreateMultipartUpload": "PutObject",
    "DeleteObjects": "DeleteObject",
    "DownloadFile": "GetObject",
    "GetBucketEncryption": "GetEncryptionConfiguration",
    "HeadBucket": "ListBucket",
    "HeadObject": "GetObject",
    "ListMultipartUploads": "ListBucketMultipartUploads",
    "ListObjectsV2": "ListBucket",
    "ListParts": "ListMultipartUploadParts",
    "PutBucketEncryption": "PutEncryptionConfiguration",
    "PutBucketLifecycleConfiguration": "PutLifecycleConfiguration",
    "PutPublicAccessBlock": "PutBucketPublicAccessBlock",
    "UploadFile": "PutObject",
    "UploadPart": "PutObject",
}
"""What S3 calls its actions otherwise than its operations (and boto3's own)."""


def called() -> Iterator[tuple[str, str]]:
    """Actions in the code, with where they stand."""
    root = Path(spotelastic.__file__).parent
    known = {name: _operations(service) for name, service in CLIENTS.items()}
    for file in sorted(root.rglob("*.py")):
        if "local" in file.relative_to(root).parts:  # which is AWS there
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                client, method = node.func.value, node.func.attr
                name = getattr(client, "attr", getattr(client, "id", ""))
                if name not in known:
                    continue
                if method in HELPERS and isinstance(node.args[0], ast.Constant):
                    method = str(node.args[0].value)
                if operation := known[name].get(method):
                    service = PREFIXES.get(CLIENTS[name], CLIENTS[name])
                    action = OF_S3.get(operation, operation) if service == "s3" else operation
                    yield f"{service}:{action}", f"{file.relative_to(root)}:{node.lineno}"


def _operations(service: str) -> dict[str, str]:
    its = (*operations(service), *(("DownloadFile", "UploadFile") if service == "s3" else ()))
    return {xform_name(each): each for each in its}


@pytest.fixture(scope="module")
def given() -> list[str]:
    apart = [resources()[each]["Properties"] for each in ("MovingPolicy", "NotifyPolicy")]
    everybody = [shipped(), additions(), *policies("ControlRole"), *policies("WorkerRole")]
    everybody += [each["PolicyDocument"] for each in apart]
    return [each for policy in everybody for one in policy["Statement"] for each in actions_of(one)]


def test_each_call_in_the_code_is_given_to_somebody(given: list[str]) -> None:
    found = dict(called())
    assert len(found) > 85, sorted(found)
    missing = {
        action: where
        for action, where in found.items()
        if action not in OPEN and not any(fnmatchcase(action, each) for each in given)
    }
    assert missing == {}
