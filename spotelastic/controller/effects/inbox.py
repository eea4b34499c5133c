"""Receives the cloud's events, or users' commands, from a queue while this controller leads."""

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from spotelastic_checkpoints.backoff import Backoff, Draw

from spotelastic.clock import Clock, unbroken
from spotelastic.cloud.events import CloudEvent
from spotelastic.cloud.port import Delivery, MessageQueue
from spotelastic.controller.decisions.throttle import JITTER
from spotelastic.controller.effects.complaint import Complaint
from spotelastic.controller.model.config import LoopPace
from spotelastic.controller.model.observation import Discard, Message, PendingCommand, Reply
from spotelastic.errors import told
from spotelastic.model.requests.command import Command

logger = logging.getLogger(__name__)

PACE = LoopPace()
REMEMBERED = 10_000
RETRY_AT_MOST = 30.0


class Received(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def receipt(self) -> str: ...


T = TypeVar("T", bound=Received)
C = TypeVar("C")


def message(delivery: Delivery[CloudEvent], now: float) -> Message:
    return Message(delivery.receipt, delivery.content, now)


def order(delivery: Delivery[Command | None], now: float) -> PendingCommand:
    return PendingCommand(delivery.receipt, delivery.content, delivery.sent_at or now)


class Inbox(Generic[C, T]):
    """Receives on a thread of its own until it is closed, and calls `arrived` from there."""

    def __init__(
        self,
        queue: MessageQueue[C],
        read: Callable[[Delivery[C], float], T],
        arrived: Callable[[], None],
        clock: Clock = unbroken,
        pace: LoopPace = PACE,
        retry_at_most: float = RETRY_AT_MOST,
        draw: Draw = random.uniform,
    ) -> None:
        self._queue = queue
        self._read = read
        self._arrived = arrived
        self._clock = clock
        self._long_poll = pace.long_poll
        self._draw = draw
        self._backoff = Backoff(pace.retry, retry_at_most, jitter=JITTER)
        self._complain = Complaint(logger.warning)
        self._lock = threading.Lock()
        self._pending: dict[str, T] = {}
        """Messages by their id in the queue, which stays the same at another delivery."""
        self._handled: deque[str] = deque(maxlen=REMEMBERED)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inbox", daemon=True)
        self._thread.start()

    @property
    def messages(self) -> tuple[T, ...]:
        """The messages that were not deleted yet, oldest first."""
        with self._lock:
            return tuple(self._pending.values())

    @property
    def handled(self) -> frozenset[str]:
        """Ids of the last messages that were handled."""
        with self._lock:
            return frozenset(self._handled)

    def settle(self, done: Sequence[object]) -> None:
        """Forgets the messages that were deleted."""
        with self._lock:
            for action in done:
                match action:
                    case Discard(message, fate):
                        self._forget(message.receipt)
                        if fate == "handled":
                            self._handled.append(message.event.id)
                    case Reply(order, answer):
                        self._forget(order.receipt)
                        if answer is not None:
                            self._handled.append(answer.id)

    def _forget(self, receipt: str) -> None:
        found = (id for id, each in self._pending.items() if each.receipt == receipt)
        self._pending.pop(next(found, ""), None)

    def close(self) -> None:
        """Stop receiving and calls nothing any more.

        Messages that were not handled, and those that a request under way still returns, go back to
        the queue at once: another controller may lead by now.
        """
        with self._lock:
            self._closed.set()
            left, self._pending = tuple(self._pending.values()), {}
        threading.Thread(
            target=self._hand_back, args=(left,), name="hand back", daemon=True
        ).start()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                batch = self._receive()
            except Exception as error:
                self._complain(told(error))
                self._backoff = self._backoff.failed()
                self._closed.wait(self._backoff.pause(self._draw))
                continue
            self._backoff = self._backoff.succeeded()
            if batch and not self._keep(batch):
                self._hand_back(batch.values())

    def _keep(self, batch: Mapping[str, T]) -> bool:
        """Keep the messages and return True; returns False after `close`.

        A message that is delivered again replaces the earlier one: only its new receipt is sure to
        delete it.
        """
        with self._lock:
            if self._closed.is_set():
                return False
            for id, each in batch.items():
                before = self._pending.get(id, each)
                self._pending[id] = replace(before, receipt=each.receipt)
        self._arrived()
        return True

    def _hand_back(self, messages: Iterable[T]) -> None:
        """Make messages visible in the queue again.

        Otherwise no controller would see them until the queue gives up on this one.
        """
        for message in messages:
            try:
                self._queue.hand_back(message.receipt)
            except Exception as error:
                self._complain(told(error))

    def _receive(self) -> dict[str, T]:
        deliveries = self._queue.receive(self._long_poll)
        now = self._clock()
        return {each.id: self._read(each, now) for each in deliveries}
