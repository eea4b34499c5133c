"""Refuses calls to the local cloud because there are too many of them, as each service of AWS does.

The answer has the status, code and format of the service that the call is signed for.
"""

import re
from collections.abc import Callable
from threading import Lock
from typing import Any

from support.unkind.conditions import ConditionsInForce

from spotelastic.local.refusals import CallRefusal

_SIGNED_FOR = re.compile(r"Credential=[^/]+/[^/]+/[^/]+/([^/]+)/")


OTHERS = CallRefusal("400 Bad Request", "ThrottlingException", "json")
REFUSALS = {
    "ec2": CallRefusal("503 Service Unavailable", "RequestLimitExceeded", "ec2"),
    "s3": CallRefusal("503 Slow Down", "SlowDown", "s3"),
    "sqs": CallRefusal("403 Forbidden", "RequestThrottled", "json"),
    "servicequotas": CallRefusal("429 Too Many Requests", "TooManyRequestsException", "json"),
} | {
    service: CallRefusal("400 Bad Request", "Throttling", "query")
    for service in ("autoscaling", "cloudformation", "iam", "sts")
}
"""By the name with which a call is signed."""


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
        return REFUSALS.get(signed[1], OTHERS).answer(environ, start_response, "Rate exceeded")

    return handle
