"""Looks at the preferences of Session Manager in an account and region.

They make the agent on each node use a key, a bucket or a log group.
"""

import json
from collections.abc import Mapping

from spotelastic.aws.base.clients import DENIED, Aws, Rejected, calling
from spotelastic.aws.planning.encryption_key import find_key
from spotelastic.errors import UsageError

PARAMETERS = ("SessionBucket", "SessionKey", "SessionLogs")
"""What a cluster's stack is told of the preferences."""
PREFERENCES = "SSM-SessionManagerRunShell"
"""The document that holds the preferences of an account and region."""


def parameters(aws: Aws, before: Mapping[str, str]) -> dict[str, str]:
    """Return the preferences of Session Manager as parameters of a cluster's stack.

    They make each node's agent use a key, a bucket and a log group; a parameter is empty where
    there is none. The values of `before` stay where these credentials may not look.
    """
    try:
        with calling("look at the preferences of Session Manager"):
            found = aws.ssm.get_document(Name=PREFERENCES)["Content"]
        inputs = json.loads(found).get("inputs", {})
    except Rejected as error:
        if error.code in DENIED:
            return {name: before.get(name, "") for name in PARAMETERS}
        inputs = {}  # there are none
    its = (
        str(inputs.get("s3BucketName") or ""),
        _key(aws, str(inputs.get("kmsKeyId") or "")),
        str(inputs.get("cloudWatchLogGroupName") or ""),
    )
    return dict(zip(PARAMETERS, its, strict=True))


def _key(aws: Aws, name: str) -> str:
    """Return the ARN of a key, which these credentials may not be permitted to look at."""
    try:
        return find_key(aws, name, PREFERENCES) if name else ""
    except UsageError:
        return name if name.startswith("arn:") else ""
