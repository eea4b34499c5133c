"""Prints messages for people: wrapped between words on a terminal, unchanged in a file or pipe."""

import shutil
import sys
import textwrap
from typing import TextIO

NARROW = 20
"""Columns below which a terminal is left to wrap by itself."""


def wrapped(text: str, to: TextIO) -> str:
    """Return `text` as it is to be written to the stream `to`.

    Lines that begin with a blank keep their layout.
    """
    columns = shutil.get_terminal_size().columns
    if not to.isatty() or columns < NARROW:
        return text
    return "\n".join(_broken(line, columns) for line in text.split("\n"))


def _broken(line: str, columns: int) -> str:
    if len(line) <= columns or line[:1].isspace():
        return line
    return "\n".join(textwrap.wrap(line, columns, break_long_words=False, break_on_hyphens=False))


def say(text: str) -> None:
    """Print to stdout."""
    print(wrapped(text, sys.stdout), flush=True)


def note(text: str) -> None:
    """Print to stderr, beside a result on stdout. Lines of several threads stay whole."""
    sys.stderr.write(f"{wrapped(text, sys.stderr)}\n")
    sys.stderr.flush()
