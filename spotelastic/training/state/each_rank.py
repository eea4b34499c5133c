"""Saves what each rank has of its own: which of its modules are in eval mode, and its loss.

A script may keep the statistics of its batch normalisation from some step on, and many scripts let
one rank evaluate. And what a script does at the end of an epoch may tell the loss of its last step.
"""

import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from spotelastic.training.state import growth
from spotelastic.training.state.state import State
from spotelastic.training.state.value_entries import OWN, ValueEntry, own_entry

_NAME = "rank-"
Saved = tuple[int, bytes, float]
"""A checksum of the modules' names, for each whether it is in eval mode and was not at first, and
the loss; NaN for none.

The size stays as it is: a value has room for itself alone.
"""


def entry(state: State, rank: int, loss: Callable[[], float]) -> ValueEntry:
    """Return the value that is saved of a rank."""
    found = growth.modules_of(state)
    names = _checksum(found)
    trained = [(part, name in growth.begin(state).training) for name, part in found.items()]

    def own() -> Saved:
        return names, bytes(trains and not part.training for part, trains in trained), loss()

    return own_entry(own, f"{_NAME}{rank}", rank=rank)


def is_entry(fqn: str) -> bool:
    """Return whether a value of this name is a rank's own: others may need it, too."""
    return fqn.startswith(f"{OWN}.{_NAME}")


def restore(
    state: State, value: Callable[[str], Any], ranks: Sequence[int], *, trains: bool
) -> float:
    """Put the modules into eval mode that were in it, and return the loss.

    `value` returns a saved value by its name, or None. Of the `ranks`, the first one counts whose
    value can be had: a rank may be new, or its node gone with it.

    The others go into train mode only in a process that `trains` already. A script that evaluates
    what was saved may have put them into eval mode itself.
    """
    had = (value(f"{_NAME}{rank}") for rank in ranks)
    saved: Saved | None = next((each for each in had if each is not None), None)
    found, begun = growth.modules_of(state), growth.begin(state).training
    if saved is None:
        return math.nan
    names, modes, loss = saved
    if names != _checksum(found):
        return loss
    for (name, part), evaluates in zip(found.items(), modes, strict=True):
        part.training = not evaluates and (part.training or (trains and name in begun))
    return loss


def _checksum(names: Iterable[growth.Name]) -> int:
    return zlib.crc32(repr([*names]).encode())
