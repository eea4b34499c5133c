"""Defines what a caller is told while something is being done."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from spotelastic.model.progress import Event, Status


@dataclass(frozen=True, slots=True)
class ProgressMessage:
    """One line for people: what is being done, or what they should know."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class FirstStep:
    """The first training step was done, `seconds` after `up` began."""

    seconds: float

    def __str__(self) -> str:
        return f"first step {self.seconds:.0f} s after the command"


Update: TypeAlias = ProgressMessage | FirstStep | Event | Status
"""What there is to tell: a line for people, or a value that the cluster has published."""

OnUpdate: TypeAlias = Callable[[Update], object]
"""Called with every update, on the thread that waits."""


def ignored(update: Update) -> None:
    """The callback of a caller who wants to be told nothing."""


def saying(on_update: OnUpdate) -> Callable[[str], None]:
    """Return a function that passes lines of text on as messages."""

    def say(text: str) -> None:
        on_update(ProgressMessage(text))

    return say
