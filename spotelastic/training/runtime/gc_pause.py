"""Switches Python's cyclic garbage collector off for a time.

A collection visits every object of the process. With torch and a large model that takes a tenth of
a second, again and again while thousands of small values are read that have no cycles.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collections() -> Iterator[None]:
    """Run a block, or a function that is decorated with it, without the collector."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
