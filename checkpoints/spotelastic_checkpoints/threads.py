"""Helper threads: those that step back behind training, and those whose end is not to be silent."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

NICENESS = 10
"""Nice value of threads that step back."""


def step_back() -> None:
    """Give this thread a lower priority: where processors are short, training goes first.

    A priority that is lower already stays. Few may raise it, and the thread would fail.
    """
    here = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, here, max(NICENESS, os.getpriority(os.PRIO_PROCESS, here)))


@contextlib.contextmanager
def minded(names: tuple[str, ...], ended: Callable[[str, str], None]) -> Iterator[None]:
    """Call `ended` with the name and the error of each thread that ends by an exception.

    Only threads whose names begin with one of `names` are reported. `ended` is called in the
    thread. The traceback is printed as usual.
    """
    before, over = threading.excepthook, threading.Event()

    def hook(told: threading.ExceptHookArgs) -> None:
        before(told)
        name = told.thread.name if told.thread is not None else ""
        if name.startswith(names) and not over.is_set():
            ended(name, f"{told.exc_type.__name__}: {told.exc_value}")

    threading.excepthook = hook
    try:
        yield
    finally:
        over.set()
        if threading.excepthook is hook:  # else another one passes its calls on to this
            threading.excepthook = before
