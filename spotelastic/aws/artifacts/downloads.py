"""Programs as their makers publish them: fetched, and known by their SHA-256."""

import hashlib
from http.client import HTTPException

from spotelastic.errors import EnvironmentFailure, Unavailable

FETCH_TIMEOUT = 60.0


def fetch(url: str) -> bytes:
    """Raises `Unavailable`."""
    import urllib.request  # which a worker, that seldom has a use for it, need not hold

    try:
        with urllib.request.urlopen(url, timeout=FETCH_TIMEOUT) as answer:
            data: bytes = answer.read()
    except (OSError, HTTPException) as error:
        raise Unavailable(f"cannot fetch {url}: {error}") from error
    return data


def checked(data: bytes, sha256: str, what: str, where: str) -> bytes:
    """Raises `EnvironmentFailure` when it is another file."""
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise EnvironmentFailure(
            f"{where} is not {what} as it was released: its SHA-256 is {found[:12]}, "
            f"expected {sha256[:12]}"
        )
    return data
