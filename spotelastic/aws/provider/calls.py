"""Counts the calls that this process makes to AWS, by service and outcome."""

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

from spotelastic.aws.base.clients import BUSY, TOO_MANY, Aws

THROTTLED = ("Throttl", "RequestLimitExceeded", "SlowDown", "TooManyRequests", "BandwidthLimit")
"""Beginnings of the codes by which AWS says that there were too many calls."""
MISSING = 404


class CallCount:
    """Counts each attempt of the clients that are made after it."""

    def __init__(self, aws: Aws) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        aws.session.events.register("response-received", self._received)

    def so_far(self) -> Mapping[tuple[str, str], int]:
        """Return the number of attempts, by service and outcome."""
        with self._lock:
            return dict(self._counts)

    def _received(
        self, event_name: str, parsed_response: Any = None, exception: Any = None, **_: Any
    ) -> None:
        service = event_name.split(".")[1]
        with self._lock:
            self._counts[service, outcome(parsed_response, exception)] += 1


def outcome(answer: Mapping[str, Any] | None, error: object = None) -> str:
    """Return ok, missing, busy, refused or "no answer"."""
    if error is not None or answer is None:
        return "no answer"
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    code = str(answer.get("Error", {}).get("Code", ""))
    if status == TOO_MANY or status >= 500 or code in BUSY or code.startswith(THROTTLED):
        return "busy"
    if status == MISSING:
        return "missing"
    return "refused" if status >= 400 else "ok"
