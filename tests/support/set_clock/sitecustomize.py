"""A machine whose clock somebody sets: `time.time` is ahead by what the file $CLOCK_AHEAD says.

Python imports this at its start where this folder is on PYTHONPATH. gRPC hands deadlines by the
clock to C code, which cannot be told; it goes on by the true one.
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
    except (OSError, ValueError):  # being written right now
        return _true()


time.time = _set
