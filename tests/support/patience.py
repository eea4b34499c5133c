"""Time limits for tests that wait for other processes: generous, because speed is not what they
test."""

import time
from collections.abc import Callable

PATIENT = 90.0
"""Seconds. A machine may have other things to do, too."""


def eventually(check: Callable[[], object], what: str = "it") -> None:
    """Waits for what announces itself to nobody."""
    deadline = time.monotonic() + PATIENT
    while not check():
        assert time.monotonic() < deadline, f"{what} never happened"
        time.sleep(0.02)
