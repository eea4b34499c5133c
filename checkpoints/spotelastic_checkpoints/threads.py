"""Minds helper threads: one that ends by an error must not take the work along silently."""

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def minded(names: tuple[str, ...], ended: Callable[[str, str], None]) -> Iterator[None]:
    """`ended` is told the name and the error of each thread that ends by one, from that thread.

    Of those whose names begin so: there may be others' threads in this process. The interpreter
    shows the traceback as ever.
    """
    before = threading.excepthook

    def hook(told: threading.ExceptHookArgs) -> None:
        before(told)
        name = told.thread.name if told.thread is not None else ""
        if name.startswith(names):
            ended(name, f"{told.exc_type.__name__}: {told.exc_value}")

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = before
