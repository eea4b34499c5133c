"""Downloads published programs and checks them against a known SHA-256."""

import hashlib
from http.client import HTTPException

from spotelastic.errors import EnvironmentFailure, Unavailable

FETCH_TIMEOUT = 60.0
"""Seconds."""


def fetch(url: str) -> bytes:
    """Return the bytes at the URL. Raises `Unavailable`."""
    import urllib.request  # imported here: workers rarely need it, and it takes memory

    try:
        with urllib.request.urlopen(url, timeout=FETCH_TIMEOUT) as answer:
            data: bytes = answer.read()
    except (OSError, HTTPException) as error:
        raise Unavailable(f"cannot fetch {url}: {error}") from error
    return data


def checked(data: bytes, sha256: str, what: str, where: str) -> bytes:
    """Return `data` if its SHA-256 is as expected, else raise `EnvironmentFailure`."""
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise EnvironmentFailure(
            f"{where} is not {what} as it was released: its SHA-256 is {found[:12]}, "
            f"expected {sha256[:12]}"
        )
    return data
