"""Downloads published programs and checks them against a known SHA-256."""

import hashlib
from http.client import HTTPException
from pathlib import Path

from spotelastic.errors import EnvironmentFailure, Unavailable

FETCH_TIMEOUT = 60.0
"""Seconds."""


def fetch(url: str, sha256: str, what: str) -> bytes:
    """Return `what` is at the URL. Raises `Unavailable`, and what `checked` raises."""
    import ssl  # imported here: workers rarely need these, and they take memory
    import urllib.request

    try:
        trusted = ssl.create_default_context(cafile=authorities())
        with urllib.request.urlopen(url, timeout=FETCH_TIMEOUT, context=trusted) as answer:
            data: bytes = answer.read()
    except (OSError, HTTPException) as error:
        raise Unavailable(f"cannot fetch {url}: {error}") from error
    return checked(data, sha256, what, url)


def authorities() -> str | None:
    """Return the file of certificate authorities to trust; None for those of the system.

    The Python of python.org finds none on macOS before somebody has run its `Install Certificates`.
    Those that come with boto3 are trusted then, by which the calls to AWS go already.
    """
    import ssl

    places = ssl.get_default_verify_paths()
    if places.cafile or (places.capath and any(Path(places.capath).iterdir())):
        return None
    from botocore.httpsession import get_cert_path

    return str(get_cert_path(True))


def checked(data: bytes, sha256: str, what: str, where: str) -> bytes:
    """Return `data` if its SHA-256 is as expected, else raise `EnvironmentFailure`."""
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise EnvironmentFailure(
            f"{where} is not {what} as it was released: its SHA-256 is {found[:12]}, "
            f"expected {sha256[:12]}"
        )
    return data
