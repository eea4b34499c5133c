"""Validates the number that a script passes to `Checkpointer.step`: steps done, counted from 1."""

import operator
from typing import Any

from spotelastic.errors import UsageError


def checked(step: Any, last: int) -> int:
    """Return the number as an int. Raises `UsageError` where it cannot follow `last`.

    0 is refused, not ignored. In a loop that counts from 0 every checkpoint would be one step older
    than its content, and each restore would train that step twice.
    """
    try:
        number = operator.index(step)
    except TypeError:
        raise UsageError(f"step({step!r}): give a whole number of steps") from None
    if number < 1:
        raise UsageError(
            f"step({number}): the number says how many steps are done, so the first is step(1). "
            "In a loop that counts from 0 call checkpoint.step(step + 1), and start it at "
            "checkpoint.restore(); with gradient accumulation, call it after the optimizer's step"
        )
    if number < last:
        raise UsageError(f"step({number}) after step({last}): count steps over all epochs, upwards")
    return number


def falls_on(step: int, every: int) -> bool:
    """Return whether a schedule has this step; 0 steps: it has none."""
    return every > 0 and step % every == 0
