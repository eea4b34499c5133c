"""Checks that a request to the local cloud is signed with the secret of the access key it names.

As on AWS (Signature Version 4), in the `Authorization` header or in the query of a presigned URL.
The body of an S3 request is not compared with its signed checksum: nobody stands between processes
of one machine. As on AWS, a signature that is old proves nothing any more.
"""

import hmac
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from spotelastic.clock import wall

_HEADER = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/,\s]+)/(\d{8})/([^/,\s]+)/([^/,\s]+)/aws4_request,\s*"
    r"SignedHeaders=([a-z0-9;-]+),\s*Signature=([0-9a-f]{64})"
)
_VALUE = re.compile("[0-9a-f]{64}")
_NUMBER = re.compile("[0-9]{1,15}")
_SCOPE = re.compile(r"([^/]+)/(\d{8})/([^/]+)/([^/]+)/aws4_request")
MOST_BYTES = 64 * 2**20
"""Length of the longest body that is read to check its signature: AWS takes no longer one."""
SKEW = 900.0
"""Seconds by which a signature may be old, or ahead, unless a presigned URL says for how long."""
MOST_EXPIRES = 604_800
"""Seconds for which a presigned URL may be valid."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What a request says of who sent it."""

    key: str
    region: str
    service: str
    timestamp: str
    headers: tuple[str, ...]
    """Names of the headers that are signed, in lower case."""
    value: str
    token: str
    """The session token; "" if there is none."""
    valid_for: float = SKEW
    in_query: bool = False


def read(environ: Mapping[str, Any]) -> Signature | None:
    """Return the signature of a WSGI request; None if it has none."""
    if found := _HEADER.fullmatch(environ.get("HTTP_AUTHORIZATION", "").strip()):
        key, _, region, service, headers, value = found.groups()
        timestamp = environ.get("HTTP_X_AMZ_DATE", "")
        token = environ.get("HTTP_X_AMZ_SECURITY_TOKEN", "")
        return Signature(key, region, service, timestamp, tuple(headers.split(";")), value, token)
    query = dict(parse_qsl(environ.get("QUERY_STRING", "")))
    scope = _SCOPE.fullmatch(query.get("X-Amz-Credential", ""))
    if scope is None or query.get("X-Amz-Algorithm") != "AWS4-HMAC-SHA256":
        return None
    value, expires = query.get("X-Amz-Signature", ""), query.get("X-Amz-Expires", "")
    if not _VALUE.fullmatch(value) or not _NUMBER.fullmatch(expires):
        return None
    return Signature(
        key=scope[1],
        region=scope[3],
        service=scope[4],
        timestamp=query.get("X-Amz-Date", ""),
        headers=tuple(query.get("X-Amz-SignedHeaders", "").split(";")),
        value=value,
        token=query.get("X-Amz-Security-Token", ""),
        valid_for=min(int(expires), MOST_EXPIRES),
        in_query=True,
    )


def sign(key: str, secret: str, method: str, url: str, body: str) -> dict[str, str]:
    """Return the headers that sign a request to the cloud itself."""
    request = AWSRequest(method, url, {}, body.encode())
    SigV4Auth(Credentials(key, secret), "spotelastic", "local").add_auth(request)
    return dict(request.headers.items())


def is_right(signature: Signature, secret: str, environ: dict[str, Any]) -> bool:
    """Whether a request was signed with that secret. Its body can still be read afterwards."""
    if "host" not in signature.headers or not _is_of_now(signature):
        return False
    kind = S3SigV4Auth if signature.service == "s3" else SigV4Auth
    kind = S3SigV4QueryAuth if signature.in_query else kind
    auth = kind(Credentials(signature.key, secret), signature.service, signature.region)
    request = _signed_part(signature, environ)
    text = auth.string_to_sign(request, auth.canonical_request(request))
    return hmac.compare_digest(auth.signature(text, request), signature.value)


def _is_of_now(signature: Signature) -> bool:
    try:
        signed = datetime.strptime(signature.timestamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return False
    return -SKEW <= wall() - signed.timestamp() <= signature.valid_for


def _signed_part(signature: Signature, environ: dict[str, Any]) -> AWSRequest:
    """Return the parts of a request that its signature is for."""
    headers = {name: _header(environ, name) for name in signature.headers}
    whole = signature.in_query or "x-amz-content-sha256" in headers
    body = b"" if whole else _body(environ)
    pairs = parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True)
    query = "&".join(
        f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}"
        for name, value in pairs
        if name != "X-Amz-Signature"
    )
    path = quote(unquote(environ.get("RAW_URI", "/").partition("?")[0]), safe="/-_.~")
    url = f"http://{environ.get('HTTP_HOST', '')}{path}?{query}"
    request = AWSRequest(environ["REQUEST_METHOD"], url, headers, body)
    request.context["timestamp"] = signature.timestamp
    return request


def _header(environ: Mapping[str, Any], name: str) -> str:
    key = name.upper().replace("-", "_")
    plain = key in ("CONTENT_TYPE", "CONTENT_LENGTH")
    return str(environ.get(key if plain else f"HTTP_{key}", ""))


def _body(environ: dict[str, Any]) -> bytes:
    body: bytes = environ["wsgi.input"].read(min(length_of(environ), MOST_BYTES))
    environ["wsgi.input"] = io.BytesIO(body)
    return body


def length_of(environ: Mapping[str, Any]) -> int:
    """Return how long a request's body is; 0 for what is no number."""
    told = str(environ.get("CONTENT_LENGTH", ""))
    return int(told) if _NUMBER.fullmatch(told) else 0
