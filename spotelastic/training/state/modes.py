"""Saves which modules a script has put into eval mode since it began, and puts them back into it.

A script may keep the statistics of its batch normalisation from some step on. Each rank has modes
of its own, because many scripts let one rank evaluate.
"""

import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from spotelastic.training.state import growth
from spotelastic.training.state.state import State
from spotelastic.training.state.value_entries import OWN, ValueEntry, own_entry

_NAME = "modes-"
Saved = tuple[int, bytes]
"""A checksum of the modules' names, and for each whether it is in eval mode and was not at first.

The size stays as it is: a value has room for itself alone.
"""


def entry(state: State, rank: int) -> ValueEntry:
    """Return the value that is saved of a rank."""
    found = growth.modules_of(state)
    names = _checksum(found)
    trained = [(part, name in growth.begin(state).training) for name, part in found.items()]

    def modes() -> Saved:
        return names, bytes(trains and not part.training for part, trains in trained)

    return own_entry(modes, f"{_NAME}{rank}", rank=rank)


def is_entry(fqn: str) -> bool:
    """Return whether a value of this name has a rank's modes: others may need them, too."""
    return fqn.startswith(f"{OWN}.{_NAME}")


def restore(
    state: State, value: Callable[[str], Any], ranks: Sequence[int], *, trains: bool
) -> None:
    """Put the modules into eval mode that were in it.

    `value` returns a saved value by its name, or None. Of the `ranks`, the first one counts whose
    modes can be had: a rank may be new, or its node gone with them.

    The others go into train mode only in a process that `trains` already. A script that evaluates
    what was saved may have put them into eval mode itself.
    """
    had = (value(f"{_NAME}{rank}") for rank in ranks)
    saved: Saved | None = next((each for each in had if each is not None), None)
    found, begun = growth.modules_of(state), growth.begin(state).training
    if saved is None or saved[0] != _checksum(found):
        return
    for (name, part), evaluates in zip(found.items(), saved[1], strict=True):
        part.training = not evaluates and (part.training or (trains and name in begun))


def _checksum(names: Iterable[growth.Name]) -> int:
    return zlib.crc32(repr([*names]).encode())
