"""Admits requests to the local cloud that are signed with a key it knows, and no others.

Without this, every user of the machine and every web page in its browser could read secrets,
replace the code that nodes run, and end clusters. The administrator's secret is drawn when the
cloud starts, and stands in a file that only its owner reads (`local.json`). Roles and IAM users
have their own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spotelastic.local import signatures
from spotelastic.local.cloud import ADMINISTRATOR
from spotelastic.local.refusals import CallRefusal
from spotelastic.local.signatures import Signature

OWN = ("/_spotelastic/", "/moto-api")
"""Paths that are the administrator's alone: faults, and moto's own API."""

Application = Callable[..., Any]

_WRONG = {
    "ec2": CallRefusal("401 Unauthorized", "AuthFailure", "ec2"),
    "s3": CallRefusal("403 Forbidden", "SignatureDoesNotMatch", "s3"),
} | {
    service: CallRefusal("403 Forbidden", "SignatureDoesNotMatch", "query")
    for service in ("autoscaling", "cloudformation", "iam", "sts")
}
_OTHERS_WRONG = CallRefusal("400 Bad Request", "InvalidSignatureException", "json")
_WHY = "not signed with a key of this local cloud: its administrator's are in local.json"


@dataclass(frozen=True, slots=True)
class AccessKey:
    """An access key that the cloud has given out."""

    secret: str
    token: str = ""
    """The session token that belongs to a role's temporary credentials; "" for a lasting key."""


def middleware(
    host: str, known: Callable[[str], AccessKey | None], application: Application
) -> Application:
    """Return a WSGI application that passes on what is admitted.

    `host` is the only value of the `Host` header; `known` returns what belongs to an access key.
    """

    def handle(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        signature = signatures.read(environ)
        if signature is not None and _is_admitted(signature, environ, host, known):
            return application(environ, start_response)
        service = signature.service if signature is not None else "s3"
        return _WRONG.get(service, _OTHERS_WRONG).answer(environ, start_response, _WHY)

    return handle


def _is_admitted(
    signature: Signature,
    environ: dict[str, Any],
    host: str,
    known: Callable[[str], AccessKey | None],
) -> bool:
    # Only browsers send an origin, and only under a foreign name is the host another.
    if "HTTP_ORIGIN" in environ or environ.get("HTTP_HOST") != host:
        return False
    if environ.get("PATH_INFO", "").startswith(OWN) and signature.key != ADMINISTRATOR:
        return False
    key = known(signature.key)
    if key is None or (key.token and signature.token != key.token):
        return False
    return signatures.is_right(signature, key.secret, environ)


def known_keys(account: str, administrator: AccessKey) -> Callable[[str], AccessKey | None]:
    """Return what finds the keys of the administrator, of roles' sessions, and of IAM users."""
    from moto.iam.models import iam_backends
    from moto.sts.models import sts_backends

    def find(key: str) -> AccessKey | None:
        if key == ADMINISTRATOR:
            return administrator
        session = sts_backends[account]["aws"].get_assumed_role_from_access_key(key)
        if session is not None:
            return AccessKey(session.secret_access_key, session.session_token)
        for user in list(iam_backends[account]["aws"].users.values()):
            for its in user.access_keys:
                if its.access_key_id == key:
                    return AccessKey(its.secret_access_key)
        return None

    return find
