"""Defines what a caller is told while something is being done."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from spotelastic.clock import Clock, steady
from spotelastic.model.job import ENDED
from spotelastic.model.progress import Event, Status

Say: TypeAlias = Callable[[str], None]
"""Called with one line for people."""


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
    """Serve as the callback of a caller who wants to be told nothing."""


def saying(on_update: OnUpdate) -> Say:
    """Return a function that passes lines of text on as messages."""

    def say(text: str) -> None:
        on_update(ProgressMessage(text))

    return say


STEP_WITHIN = 10.0
"""Seconds from the first round's start within which `up --detach` waits for a step."""


class FirstStepTimer:
    """Measures once how long it took from a beginning to the first step.

    The status of a round that resumes shows the checkpoint's step before any new step. A first step
    is known by a loss, a step time or a further step.
    """

    def __init__(self, began: float, clock: Clock = steady) -> None:
        self._began = began
        self._clock = clock
        self._from: int | None = None
        self.is_over = False
        """Whether the first step was seen."""

    def feed(self, status: Status) -> FirstStep | None:
        """Look at a new status; return the first step if it shows that for the first time."""
        if self._from is None and (status.step or training(status)):
            self._from = status.step
        further = self._from is not None and status.step > self._from
        if self.is_over or not (further or status.loss is not None or status.step_time):
            return None
        self.is_over = True
        return FirstStep(self._clock() - self._began)


class Beginning:
    """Tells when a job that was brought up can be left to itself: it trains.

    A round has started then, and a step was made. A script need not report steps, or may take long
    to the first one: it is not waited for longer than `STEP_WITHIN`.
    """

    def __init__(self, first: FirstStepTimer | None, clock: Clock = steady) -> None:
        self._first = first
        self._clock = clock
        self._since: float | None = None

    def is_over(self, status: Status) -> bool:
        """Look at a new status, which `first` has seen."""
        if ended(status) or not training(status):
            return ended(status)
        if self._since is None:
            self._since = self._clock()
        waited = self._clock() - self._since
        return self._first is None or self._first.is_over or waited >= STEP_WITHIN


def ended(status: Status) -> bool:
    """Whether the job has ended."""
    return status.state in ENDED


def training(status: Status) -> bool:
    """Whether the first round has started, or the job is already over."""
    return ended(status) or any(node.state == "training" for node in status.nodes)
