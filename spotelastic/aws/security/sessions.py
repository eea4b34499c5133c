"""Opens shells and port forwardings to nodes through AWS Session Manager.

No SSH key, open port or network access is needed.
"""

import json
import shutil
from collections.abc import Mapping

from spotelastic.aws.base.clients import Aws, calling, explained
from spotelastic.errors import EnvironmentFailure

PLUGIN = "session-manager-plugin"
FORWARD = "AWS-StartPortForwardingSession"
INSTALL = (
    "https://docs.aws.amazon.com/systems-manager/latest/userguide/"
    "session-manager-working-with-install-plugin.html"
)


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
    away = EnvironmentFailure(f"{node} is not connected to Session Manager: it is booting, or gone")
    with explained(away, "TargetNotConnected"), calling(f"open a session with {node}"):
        answer = aws.ssm.start_session(**request)
        told = {key: answer[key] for key in ("SessionId", "TokenValue", "StreamUrl")}
    where = aws.ssm.meta.endpoint_url
    return [
        program, json.dumps(told), aws.region, "StartSession", "", json.dumps(request), where,
    ]  # fmt: skip
