"""Opens shells and port forwardings to nodes through AWS Session Manager.

No SSH key, open port or network access is needed.
"""

import json
import shutil
from collections.abc import Mapping

from spotelastic.aws.base.clients import DENIED, Aws, Rejected, calling
from spotelastic.aws.planning.encryption_key import find_key
from spotelastic.errors import EnvironmentFailure

PLUGIN = "session-manager-plugin"
FORWARD = "AWS-StartPortForwardingSession"
INSTALL = (
    "https://docs.aws.amazon.com/systems-manager/latest/userguide/"
    "session-manager-working-with-install-plugin.html"
)


PARAMETERS = ("SessionBucket", "SessionKey", "SessionLogs")
"""What a cluster's stack is told of the preferences."""
PREFERENCES = "SSM-SessionManagerRunShell"
"""The document that holds the preferences of an account and region."""


def parameters(aws: Aws, before: Mapping[str, str]) -> dict[str, str]:
    """Return what the preferences of Session Manager make each node's agent use, as parameters of
    a cluster's stack: a key, a bucket and a log group; empty where there is none. Those of `before`
    stay where these credentials may not look.
    """
    try:
        with calling("look at the preferences of Session Manager"):
            found = aws.ssm.get_document(Name=PREFERENCES)
        inputs = json.loads(found["Content"]).get("inputs", {})
    except Rejected as error:
        if error.code in DENIED:
            return {name: before.get(name, "") for name in PARAMETERS}
        inputs = {}  # there are none
    key = str(inputs.get("kmsKeyId") or "")
    its = (
        str(inputs.get("s3BucketName") or ""),
        find_key(aws, key, PREFERENCES) if key else "",
        str(inputs.get("cloudWatchLogGroupName") or ""),
    )
    return dict(zip(PARAMETERS, its, strict=True))


def plugin() -> str:
    """Return the path of AWS's plugin that speaks the sessions' protocol."""
    found = shutil.which(PLUGIN)
    if found is None:
        raise EnvironmentFailure(f"{PLUGIN} is not installed on this machine: see {INSTALL}")
    return found


def shell(aws: Aws, node: str) -> list[str]:
    """Return the command that opens a shell on the node."""
    return _command(aws, {"Target": node})


def forward(aws: Aws, node: str, port: int, local: int) -> list[str]:
    """Return the command that forwards a local port to the node's port."""
    ports = {"portNumber": [str(port)], "localPortNumber": [str(local)]}
    return _command(aws, {"Target": node, "DocumentName": FORWARD, "Parameters": ports})


def _command(aws: Aws, request: Mapping[str, object]) -> list[str]:
    """Start the session; return the plugin's command line, with answer and request in it."""
    program = plugin()
    node = request["Target"]
    try:
        with calling(f"open a session with {node}"):
            answer = aws.ssm.start_session(**request)
    except Rejected as error:
        if error.code != "TargetNotConnected":
            raise
        raise EnvironmentFailure(
            f"{node} is not connected to Session Manager: it is booting, or gone"
        ) from error
    told = {key: answer[key] for key in ("SessionId", "TokenValue", "StreamUrl")}
    where = aws.ssm.meta.endpoint_url
    return [
        program, json.dumps(told), aws.region, "StartSession", "", json.dumps(request), where,
    ]  # fmt: skip
