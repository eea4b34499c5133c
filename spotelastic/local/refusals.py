"""Answers calls to the local cloud, and refuses them in the format of the service of each."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from spotelastic.local.signatures import length_of

JSON = "application/x-amz-json-1.1"


def replied(
    start_response: Callable[..., Any], payload: bytes, kind: str = JSON, status: str = "200 OK"
) -> list[bytes]:
    """Answer a WSGI request."""
    start_response(status, [("Content-Type", kind), ("Content-Length", str(len(payload)))])
    return [payload]


@dataclass(frozen=True, slots=True)
class CallRefusal:
    """A service's answer to a call that it refuses."""

    status: str
    code: str
    format: Literal["json", "ec2", "query", "s3"]

    def body(self, message: str) -> bytes:
        """Return the answer's body."""
        error = f"<Code>{self.code}</Code><Message>{message}</Message>"
        match self.format:
            case "json":
                text = json.dumps({"__type": self.code, "message": message})
            case "ec2":
                text = f"<Response><Errors><Error>{error}</Error></Errors></Response>"
            case "query":
                text = f"<ErrorResponse><Error><Type>Sender</Type>{error}</Error></ErrorResponse>"
            case "s3":
                text = f"<Error>{error}</Error>"
        return text.encode()

    def answer(
        self, environ: dict[str, Any], start_response: Callable[..., Any], message: str
    ) -> list[bytes]:
        """Refuse a WSGI request. What its sender sends is read, so that it can go on."""
        left = length_of(environ)
        while left > 0 and (data := environ["wsgi.input"].read(min(left, 1 << 20))):
            left -= len(data)
        payload = b"" if environ.get("REQUEST_METHOD") == "HEAD" else self.body(message)
        kind = JSON if self.format == "json" else "text/xml"
        return replied(start_response, payload, kind, self.status)
