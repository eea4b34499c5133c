"""Refuses calls to the local cloud because there are too many of them, as each service of AWS does.

The answer has the status, code and format of the service that the call is signed for.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal

from spotelastic.local.base.conditions import ConditionsInForce

_SIGNED_FOR = re.compile(r"Credential=[^/]+/[^/]+/[^/]+/([^/]+)/")
_MESSAGE = "Rate exceeded"


@dataclass(frozen=True, slots=True)
class BusyAnswer:
    """A service's answer that there are too many calls."""

    status: str
    code: str
    format: Literal["json", "ec2", "query", "s3"]


OTHERS = BusyAnswer("400 Bad Request", "ThrottlingException", "json")
REFUSALS = {
    "ec2": BusyAnswer("503 Service Unavailable", "RequestLimitExceeded", "ec2"),
    "s3": BusyAnswer("503 Slow Down", "SlowDown", "s3"),
    "sqs": BusyAnswer("403 Forbidden", "RequestThrottled", "json"),
    "servicequotas": BusyAnswer("429 Too Many Requests", "TooManyRequestsException", "json"),
} | {
    service: BusyAnswer("400 Bad Request", "Throttling", "query")
    for service in ("autoscaling", "cloudformation", "iam", "sts")
}
"""By the name with which a call is signed."""


def body(refusal: BusyAnswer, message: str = _MESSAGE) -> bytes:
    """Return the answer's body."""
    error = f"<Code>{refusal.code}</Code><Message>{message}</Message>"
    match refusal.format:
        case "json":
            text = json.dumps({"__type": refusal.code, "message": message})
        case "ec2":
            text = f"<Response><Errors><Error>{error}</Error></Errors></Response>"
        case "query":
            text = f"<ErrorResponse><Error><Type>Sender</Type>{error}</Error></ErrorResponse>"
        case "s3":
            text = f"<Error>{error}</Error>"
    return text.encode()


def middleware(
    conditions: ConditionsInForce, application: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a WSGI application that refuses some of the signed calls and passes others on."""
    lock = Lock()

    def handle(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        signed = _SIGNED_FOR.search(environ.get("HTTP_AUTHORIZATION", ""))
        with lock:
            refused = signed is not None and conditions.refuses()
        if signed is None or not refused:
            return application(environ, start_response)
        read_all(environ)
        refusal = REFUSALS.get(signed[1], OTHERS)
        payload = b"" if environ.get("REQUEST_METHOD") == "HEAD" else body(refusal)
        kind = "application/x-amz-json-1.1" if refusal.format == "json" else "text/xml"
        start_response(
            refusal.status, [("Content-Type", kind), ("Content-Length", str(len(payload)))]
        )
        return [payload]

    return handle


def read_all(environ: dict[str, Any]) -> None:
    """Read what the caller sends, so that the connection can be used again."""
    left = int(environ.get("CONTENT_LENGTH") or 0)
    while left > 0 and (data := environ["wsgi.input"].read(min(left, 1 << 20))):
        left -= len(data)
