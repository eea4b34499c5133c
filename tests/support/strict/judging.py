"""What the local cloud's server needs to judge calls: who makes each, and what the Pricing API may
be asked, which moto does not have.
"""

import json
from collections.abc import Callable
from typing import Any

from support.strict.authority import Authority, AwsRequest, accesses, principal_of

from spotelastic.local import signatures
from spotelastic.local.autoscaling.pricing import TARGET
from spotelastic.local.cloud import ACCOUNT

KEY = "X-Spotelastic-Key"
"""Header with the access key that a call is signed with, whatever its sender wrote there."""


def middleware(
    authority: Authority, region: str, application: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a WSGI application that judges calls of the Pricing API, and passes calls on with the
    key of who makes them. Only calls that were admitted get here.
    """

    def handle(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        signature = signatures.read(environ)
        assert signature is not None
        environ["HTTP_" + KEY.upper().replace("-", "_")] = signature.key
        if environ.get("HTTP_X_AMZ_TARGET") == TARGET:
            request = AwsRequest("pricing", "GetProducts", ACCOUNT, region, {})
            principal = principal_of(ACCOUNT, signature.key)
            refused = authority.judge(principal, accesses(request))
            if refused is not None:
                answer = {"__type": "AccessDeniedException", "Message": refused.action}
                start_response("400 Bad Request", [("Content-Type", "application/x-amz-json-1.1")])
                return [json.dumps(answer).encode()]
        return application(environ, start_response)

    return handle
