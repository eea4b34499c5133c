"""Shifts the clock of a Python process: `time.time` is ahead by the seconds in the file
$CLOCK_AHEAD.

Python imports this at its start if this folder is on PYTHONPATH. gRPC passes deadlines by the clock
to C code, which goes on by the true clock.
"""

import os
import sys
import time
from pathlib import Path

_told = Path(os.environ["CLOCK_AHEAD"])
_true = time.time


def _set() -> float:
    if sys._getframe(1).f_globals.get("__name__", "").startswith("grpc"):
        return _true()
    try:
        return _true() + float(_told.read_text())
    except OSError:  # the test is over
        return _true()


time.time = _set
