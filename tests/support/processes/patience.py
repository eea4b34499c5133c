"""Time limits for tests that wait for other processes: generous, because speed is not what they
test."""

import os
import time
from collections.abc import Callable

PATIENT = 180.0
"""Seconds. A machine may have other things to do, too. And an account that loses events is looked
at once a minute, so that two of them cost two minutes.
"""

CASES_WITHIN = 800.0 if os.environ.get("SPOTELASTIC_TEST_DEVICE") else 220.0
"""Seconds for all cases of in-place recovery in a module. On a GPU each process makes a context."""
DRAWN_WITHIN = 600.0
"""Seconds for a case in which much is drawn that happens to workers, beside other tests."""


def eventually(check: Callable[[], object], what: str = "it") -> None:
    """Waits for what announces itself to nobody."""
    deadline = time.monotonic() + PATIENT
    while not check():
        assert time.monotonic() < deadline, f"{what} never happened"
        time.sleep(0.02)
