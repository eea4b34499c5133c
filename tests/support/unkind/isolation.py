"""Cuts regions of the local cloud off from instances in other regions, as a broken network would.

An instance's credentials tell where it is, and each call's signature the region that it is for.
"""

import re
from collections.abc import Callable
from typing import Any

from spotelastic.local.refusals import CallRefusal

_SIGNED = re.compile(r"Credential=([^/]+)/[^/]+/([^/]+)/([^/]+)/")
GLOBAL = frozenset({"iam", "sts", "pricing"})
"""Services that are not of the region that a call of them is signed for."""
AWAY = {
    "ec2": CallRefusal("503 Service Unavailable", "Unavailable", "ec2"),
    "s3": CallRefusal("503 Service Unavailable", "ServiceUnavailable", "s3"),
} | {
    service: CallRefusal("503 Service Unavailable", "ServiceUnavailable", "query")
    for service in ("autoscaling", "cloudformation")
}
"""Answers in place of none, by the name with which a call is signed."""
JSON = CallRefusal("503 Service Unavailable", "ServiceUnavailable", "json")


class Isolation:
    """The regions that are cut off now."""

    def __init__(self, region_of: Callable[[str], str | None]) -> None:
        """`region_of` returns the region of the instance that has an access key; None: of none."""
        self.regions: frozenset[str] = frozenset()
        self.unanswered = 0
        """Calls that did not reach their region so far."""
        self._region_of = region_of

    def separates(self, key: str, region: str) -> bool:
        """Whether a call with that access key does not reach the region."""
        if not self.regions:
            return False
        own = self._region_of(key)
        return own is not None and own != region and bool(self.regions & {own, region})


def middleware(isolation: Isolation, application: Callable[..., Any]) -> Callable[..., Any]:
    """Return a WSGI application that answers no calls between regions that are separated."""

    def handle(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        signed = _SIGNED.search(environ.get("HTTP_AUTHORIZATION", ""))
        if signed is None or signed[3] in GLOBAL or not isolation.separates(signed[1], signed[2]):
            return application(environ, start_response)
        isolation.unanswered += 1
        answer = AWAY.get(signed[3], JSON)
        return answer.answer(environ, start_response, "the region cannot be reached")

    return handle
