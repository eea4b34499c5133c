"""Asks the cloud questions whose answers the leader can do without."""

from collections.abc import Callable
from typing import TypeVar

from spotelastic.clock import Clock, steady
from spotelastic.errors import EnvironmentFailure, Unavailable

T = TypeVar("T")


class OptionalQuery:
    """Asks one question repeatedly, and pauses after a failure."""

    def __init__(
        self, instead: str, again_after: float, say: Callable[[str], None], clock: Clock = steady
    ) -> None:
        """`instead` describes what is done without an answer.

        `say` receives it at the first failure of several in a row. After a failure nothing is asked
        for `again_after` seconds, because a question may take until its deadline.
        """
        self._instead = instead
        self._again_after = again_after
        self._say = say
        self._clock = clock
        self._silent_until = float("-inf")
        self._failing = False

    def ask(self, question: Callable[[], T]) -> T | None:
        """Return the answer, or None if there is none."""
        if self._clock() < self._silent_until:
            return None
        try:
            answer = question()
        except (Unavailable, EnvironmentFailure) as error:
            self._silent_until = self._clock() + self._again_after
            if not self._failing:
                self._say(f"{self._instead}: {error}")
            self._failing = True
            return None
        self._failing = False
        return answer
