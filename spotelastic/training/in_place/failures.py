"""Tells that a collective failed because a peer was lost, which is not the script's mistake."""

import re
import traceback
from collections.abc import Iterator

import torch.distributed as dist

_LOST = re.compile(
    r"/gloo/|\bgloo\b|\bnccl|process group"
    r"|(connection|socket) .*(closed|reset|refused|aborted)|(closed|reset) by peer|broken pipe"
    r"|timed out waiting .*ms for (recv|send)",
    re.I,
)
"""What torch says of a collective that failed, where it has no class for that (`DistError`)."""
_MISTAKE = re.compile(r"enforce fail", re.I)
"""What gloo says where ranks have passed different shapes."""
_FORMER = re.compile(
    r"not initialized in the world group map|invalid process group|is not registered, please", re.I
)
"""What torch says of a group that was destroyed."""


class Unwound(BaseException):
    """Takes the main thread out of a step that is begun again.

    A script that catches `Exception` lets it pass. It is raised where an optimizer would have
    stepped, in the thread that trains, and never leaves the block of the step.
    """


def is_of_collective(error: BaseException) -> bool:
    """Return whether a collective failed, or something was raised from that."""
    return any(
        isinstance(each, dist.DistError) or (type(each) is RuntimeError and _is_loss(str(each)))
        for each in _causes(error)
    )


def _is_loss(message: str) -> bool:
    return _LOST.search(message) is not None and _MISTAKE.search(message) is None


def is_of_closed_group(error: BaseException) -> bool:
    """Return whether it may come from a process group that this process has closed itself.

    What torch raises then depends on where the main thread was.
    """
    return any(isinstance(each, RuntimeError | ValueError) for each in _causes(error))


def explain(error: BaseException) -> None:
    """Say in a note what to do about an error of the script's that is easily misunderstood."""
    if isinstance(error, ValueError) and _FORMER.search(str(error)):
        error.add_note(
            "The step used a process group of a round that is over: ask for "
            "torch.distributed.group.WORLD where you use it, and keep no group in a variable."
        )


def is_unwinding(error: BaseException | None) -> bool:
    """Return whether it is `Unwound`, or was raised by the script while that passed."""
    while error is not None:
        if isinstance(error, Unwound):
            return True
        error = error.__cause__ or error.__context__
    return False


def clear_frames(error: BaseException | None) -> None:
    """Drop the variables of functions that an exception has ended: they hold a step's tensors."""
    seen: set[int] = set()
    left = [error]
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            traceback.clear_frames(each.__traceback__)
            left += each.__cause__, each.__context__


def _causes(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__
