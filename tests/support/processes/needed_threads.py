"""Waits for threads that a part of the product begins and keeps to itself."""

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def begun(make: Callable[[], T]) -> tuple[T, threading.Thread]:
    """What is made, and the one thread that it has begun."""
    before = set(threading.enumerate())
    made = make()
    [thread] = set(threading.enumerate()) - before
    return made, thread
