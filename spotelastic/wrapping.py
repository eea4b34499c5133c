"""Lines for people: on a terminal they are broken between words, elsewhere they stay whole."""

import shutil
import sys
import textwrap
from typing import TextIO

NARROW = 20
"""Columns below which a terminal may do as it likes."""


def wrapped(text: str, to: TextIO) -> str:
    """What is to be written to `to`. Lines that begin with a blank are somebody's layout."""
    columns = shutil.get_terminal_size().columns
    if not to.isatty() or columns < NARROW:
        return text
    return "\n".join(_broken(line, columns) for line in text.split("\n"))


def _broken(line: str, columns: int) -> str:
    if len(line) <= columns or line[:1].isspace():
        return line
    return "\n".join(textwrap.wrap(line, columns, break_long_words=False, break_on_hyphens=False))


def say(text: str) -> None:
    """To stdout."""
    print(wrapped(text, sys.stdout), flush=True)


def note(text: str) -> None:
    """To stderr, beside a result that goes to stdout."""
    print(wrapped(text, sys.stderr), file=sys.stderr, flush=True)
