"""Asks the caller before something is changed, paid for or deleted that may not be meant.

Whoever uses the client passes a function that answers; `spotelastic up` asks on its terminal.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from spotelastic.errors import NotConfirmed
from spotelastic.model.job import JobSpec


@dataclass(frozen=True, slots=True)
class ConfirmationRequest:
    """Something that is done only if it is meant."""

    about: Literal["price", "other job", "other checkpoints", "data", "file"]
    what: str
    """What there is, or what would be done: a sentence without its full stop."""
    question: str
    """A question that yes or no answers."""
    declined: str
    """What is said if the answer is no."""
    instead: str = ""
    """What else the user can do; may be empty."""


Confirm = Callable[[ConfirmationRequest], bool]
"""Returns whether it is meant."""


def agreed(request: ConfirmationRequest) -> bool:
    """Answer as a caller who means everything."""
    return True


def nobody_asked(request: ConfirmationRequest) -> bool:
    """Answer as a program that has said nothing. Raises `NotConfirmed`."""
    instead = f"{request.instead}, or " if request.instead else ""
    raise NotConfirmed(f"{request.what}: {instead}pass yes=True if that is meant")


def ensure(request: ConfirmationRequest, confirm: Confirm) -> None:
    """Raise `NotConfirmed` unless the caller means it."""
    if not confirm(request):
        raise NotConfirmed(request.declined)


def ensure_other(
    about: Literal["other job", "other checkpoints"],
    what: str,
    question: str,
    instead: str,
    confirm: Confirm,
) -> None:
    """Raise `NotConfirmed` unless what may be someone else's is to be changed."""
    declined = f"nothing was changed: {instead}"
    ensure(ConfirmationRequest(about, what, question, declined, instead), confirm)


def difference(job: JobSpec, script: str, folder: str) -> str | None:
    """Return how the job's script or folder differs from those given here.

    None if they are the same.

    Also None if the folder is not known: older versions did not record it.
    """
    elsewhere = job.folder not in ("", folder)
    if job.script == script and not elsewhere:
        return None
    if elsewhere:
        return f"{job.script} of {job.folder}, not {script} of {folder}"
    return f"{job.script}, not {script}"
