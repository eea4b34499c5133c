"""Puts something around functions of other libraries, once in each process."""

import functools
from collections.abc import Callable
from typing import Any

_MARK = "_spotelastic"


def is_around(function: Any) -> bool:
    """Return whether something was put around it."""
    return hasattr(function, _MARK)


def put_around(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Have `around` called in place of a function, which is its first argument."""
    made = getattr(owner, name)
    if is_around(made):
        return

    @functools.wraps(made)
    def put(*args: Any, **more: Any) -> Any:
        return around(made, *args, **more)

    setattr(put, _MARK, True)
    setattr(owner, name, put)
