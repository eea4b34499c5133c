"""What a script may say to `step(n)`: n steps are done, so the first is step(1)."""

import operator
from typing import Any

from spotelastic.errors import UsageError


def checked(step: Any, last: int) -> int:
    """The number as an int; raises `UsageError` where it is none that can follow `last`.

    0 is refused, not ignored: in a loop that counts from 0 every checkpoint would be one step
    older than its contents, and each restore would train that step twice.
    """
    try:
        number = operator.index(step)
    except TypeError:
        raise UsageError(f"step({step!r}): a whole number of steps is needed") from None
    if number < 1:
        raise UsageError(
            f"step({number}): the number says how many steps are done, so the first is step(1). "
            "In a loop that counts from 0 call checkpoint.step(step + 1), and start it at "
            "checkpoint.restore(); with gradient accumulation, call it after the optimizer's step"
        )
    if number < last:
        raise UsageError(f"step({number}) after step({last}): count steps over all epochs, upwards")
    return number
