"""Reads metrics as Prometheus does."""

import urllib.request

from support.processes.patience import PATIENT


def scraped(address: str, port: int) -> str:
    """The page at this address. Raises `OSError` if nothing listens there."""
    with urllib.request.urlopen(f"http://{address}:{port}/metrics", timeout=PATIENT) as page:
        return str(page.read().decode())
