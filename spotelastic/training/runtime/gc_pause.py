"""Python's search for cycles among objects, put off.

It goes through every object of the process: a tenth of a second where torch and a large model are,
time and again while thousands of small values are read that have no cycles.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def not_searched_for() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
