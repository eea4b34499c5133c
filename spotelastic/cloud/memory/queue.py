"""A queue of messages in memory: at least once, in any order, as the port says."""

import itertools
import threading
from dataclasses import dataclass
from typing import Generic, TypeVar

from spotelastic.clock import Clock, steady, wall
from spotelastic.cloud.port import Delivery

T = TypeVar("T")

INVISIBLE_FOR = 5.0
"""Seconds after which a message that was received, and is not deleted, is delivered again."""


@dataclass(slots=True)
class _Message(Generic[T]):
    content: T
    sent_at: float
    receipt: str = ""
    """Receipt of its last delivery, which alone counts."""
    visible_at: float = float("-inf")


class MemoryQueue(Generic[T]):
    """A queue. Thread-safe."""

    def __init__(
        self,
        invisible_for: float = INVISIBLE_FOR,
        clock: Clock = steady,
        wall: Clock = wall,
    ) -> None:
        self._invisible_for = invisible_for
        self._clock = clock
        self._wall = wall
        self._ids = itertools.count(1)
        self._messages: dict[str, _Message[T]] = {}
        self._changed = threading.Condition()

    @property
    def contents(self) -> tuple[T, ...]:
        """What has been sent and not been deleted."""
        with self._changed:
            return tuple(each.content for each in self._messages.values())

    def send(self, content: T) -> None:
        """Send a message."""
        with self._changed:
            self._messages[f"m{next(self._ids)}"] = _Message(content, self._wall())
            self._changed.notify_all()

    def receive(self, seconds: float) -> tuple[Delivery[T], ...]:
        """Wait at most so long for messages, and return them."""
        deadline = self._clock() + seconds
        with self._changed:
            while not (found := self._visible()):
                now = self._clock()
                if now >= deadline:
                    return ()
                due = min((each.visible_at for each in self._messages.values()), default=deadline)
                self._changed.wait(max(0.0, min(due, deadline) - now))
            return tuple(self._delivered(id, self._messages[id]) for id in found)

    def delete(self, receipt: str) -> None:
        """Delete the message of that delivery, if it is the message's last."""
        with self._changed:
            for id in [id for id, each in self._messages.items() if each.receipt == receipt]:
                del self._messages[id]

    def hand_back(self, receipt: str) -> None:
        """Make the message of that delivery visible again at once."""
        with self._changed:
            for each in self._messages.values():
                if each.receipt == receipt:
                    each.visible_at = float("-inf")
            self._changed.notify_all()

    def _visible(self) -> list[str]:
        now = self._clock()
        return [id for id, each in self._messages.items() if each.visible_at <= now]

    def _delivered(self, id: str, message: _Message[T]) -> Delivery[T]:
        message.receipt = f"{id}-r{next(self._ids)}"
        message.visible_at = self._clock() + self._invisible_for
        return Delivery(id, message.receipt, message.content, message.sent_at)
