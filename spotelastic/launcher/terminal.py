"""Prints lines to a terminal, pipe or file of which nothing is known, and never raises."""

import logging
import os
import re
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from spotelastic.agent.workers.output import Unfinished

logger = logging.getLogger(__name__)

_PROMPT = re.compile(r"[]:>?)$#] ?$")


def printer(
    prefix: Callable[[int, int], str], to: TextIO, *, answers: bool = False
) -> Callable[[int, int, str], None]:
    """Return a function that prints a worker's line, given its rank and local rank.

    An unfinished one is gone on with, unless another worker writes meanwhile. Where a person
    `answers`, what is typed ends the line of a prompt.
    """
    writes: list[tuple[int, int]] = []  # who has written the unfinished line

    def show(rank: int, local_rank: int, line: str) -> None:
        begin = ""
        if writes != [(rank, local_rank)]:
            begin = ("\n" if writes else "") + prefix(rank, local_rank)
        unfinished = isinstance(line, Unfinished) and not (answers and _PROMPT.search(line))
        writes[:] = [(rank, local_rank)] if unfinished else []
        _print(f"{begin}{line}" if unfinished or line.endswith("\r") else f"{begin}{line}\n", to)

    return show


def print_line(line: str, to: TextIO | None) -> None:
    """Print a line; never raises."""
    _print(f"{line}\n", to)


def _print(text: str, to: TextIO | None) -> None:
    """Print text; never raises, as training goes on without it.

    What ends in a carriage return is an update, and the next line overwrites it.
    """
    if to is None:  # it was already closed when this process started
        return
    try:
        _write(text, to)
    except (OSError, ValueError) as error:
        _silence(to)
        # The reader of a pipe has closed it (no message), or a disk is full.
        if to is not sys.stderr and not isinstance(error, BrokenPipeError):
            why = error.strerror if isinstance(error, OSError) else error
            logger.warning(f"the output of workers is no longer shown: {why}")


def _write(text: str, to: TextIO) -> None:
    """Write all of it, also into a pipe that is full and non-blocking."""
    encoding = getattr(to, "encoding", None) or "utf-8"
    data = text.encode(encoding, "backslashreplace")
    try:
        fd = to.fileno()
    except (OSError, AttributeError):  # a notebook's stream has no file descriptor
        to.write(data.decode(encoding))
        to.flush()
        return
    to.flush()
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            select.select([], [fd], [])


def _silence(to: TextIO) -> None:
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, to.fileno())
        os.close(nowhere)
