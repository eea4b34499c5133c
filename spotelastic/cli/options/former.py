"""Keeps a command under its former name."""

import functools
from collections.abc import Callable
from typing import Any

from spotelastic.wrapping import note


def former(command: Callable[..., None], now: str) -> Callable[..., None]:
    """Return the command, which first says what takes the place of its name."""

    @functools.wraps(command)
    def told(*args: Any, **given: Any) -> None:
        note(f"note: `spotelastic {command.__name__}` is now `spotelastic {now}`")
        command(*args, **given)

    return told
