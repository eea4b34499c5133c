"""Reports helper threads that end by an exception, so that the failure is not silent."""

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def minded(names: tuple[str, ...], ended: Callable[[str, str], None]) -> Iterator[None]:
    """Call `ended` with the name and the error of each thread that ends by an exception.

    Only threads whose names begin with one of `names` are reported. `ended` is called in the
    thread. The traceback is printed as usual.
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
