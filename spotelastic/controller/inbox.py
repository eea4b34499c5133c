"""The queue that AWS's events arrive on, read by the leading controller alone."""

import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from spotelastic.aws.clients import Aws, calling
from spotelastic.aws.events import parse
from spotelastic.clock import Clock, unbroken
from spotelastic.controller.seen import Discard, Message
from spotelastic.errors import SpotelasticError

LONG_POLL = 20
"""Seconds; the most that SQS offers."""
REMEMBERED = 10_000
RETRY = 1.0


def url(aws: Aws, queue: str) -> str:
    with calling(f"find the queue {queue}"):
        return str(aws.sqs.get_queue_url(QueueName=queue)["QueueUrl"])


class Inbox:
    """Receives from its own thread until it is closed; `arrived` is called from there."""

    def __init__(
        self, aws: Aws, queue_url: str, arrived: Callable[[], None], clock: Clock = unbroken
    ) -> None:
        self._aws = aws
        self._url = queue_url
        self._arrived = arrived
        self._clock = clock
        self._lock = threading.Lock()
        self._pending: dict[str, Message] = {}
        self._handled: deque[str] = deque(maxlen=REMEMBERED)
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="inbox", daemon=True).start()

    @property
    def messages(self) -> tuple[Message, ...]:
        """Those not deleted yet, oldest first."""
        with self._lock:
            return tuple(self._pending.values())

    @property
    def handled(self) -> frozenset[str]:
        """Ids of the last events that were dealt with."""
        with self._lock:
            return frozenset(self._handled)

    def settle(self, done: Sequence[object]) -> None:
        """Forgets the messages that were deleted."""
        with self._lock:
            for action in done:
                if isinstance(action, Discard):
                    self._pending.pop(action.message.receipt, None)
                    if action.fate == "handled":
                        self._handled.append(action.message.event.id)

    def close(self) -> None:
        """Nothing is called any more; a receive under way is left to its own end."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                batch = self._receive()
            except SpotelasticError as error:
                print(f"controller: {error}", file=sys.stderr, flush=True)
                self._closed.wait(RETRY)
                continue
            if batch and not self._closed.is_set():
                with self._lock:
                    self._pending |= {message.receipt: message for message in batch}
                self._arrived()

    def _receive(self) -> list[Message]:
        with calling("receive messages"):
            answer: Any = self._aws.sqs.receive_message(
                QueueUrl=self._url, MaxNumberOfMessages=10, WaitTimeSeconds=LONG_POLL
            )
        now = self._clock()
        return [
            Message(item["ReceiptHandle"], parse(item["Body"]), now)
            for item in answer.get("Messages", ())
        ]
