"""What becomes of messages whose reader does not lead any more."""

import json
import queue
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from spotelastic.controller.effects.inbox import Inbox, message
from spotelastic.controller.model.observation import Discard, Message
from spotelastic.errors import Unavailable

WARNING = {
    "id": "e1",
    "detail-type": "EC2 Spot Instance Interruption Warning",
    "source": "aws.ec2",
    "time": "2026-01-01T00:00:00Z",
    "detail": {"instance-id": "i-1", "instance-action": "terminate"},
}


class Queue:
    """As SQS: who receives waits until there is something."""

    def __init__(self) -> None:
        self._arriving: queue.Queue[list[str]] = queue.Queue()
        self.handed_back: queue.Queue[tuple[str, int]] = queue.Queue()

    def bring(self, *receipts: str) -> None:
        """Each of a message of its own, unless it is named: `name/receipt`."""
        self._arriving.put(list(receipts))

    def receive_message(self, **_: Any) -> dict[str, Any]:
        body = json.dumps(WARNING)
        return {
            "Messages": [
                {
                    "MessageId": receipt.rpartition("/")[0] or receipt,
                    "ReceiptHandle": receipt,
                    "Body": body,
                }
                for receipt in self._arriving.get(timeout=30)
            ]
        }

    def change_message_visibility(self, **told: Any) -> None:
        self.handed_back.put((told["ReceiptHandle"], told["VisibilityTimeout"]))


@pytest.fixture
def sqs() -> Queue:
    return Queue()


@pytest.fixture
def arrived() -> threading.Event:
    return threading.Event()


@pytest.fixture
def inbox(sqs: Queue, arrived: threading.Event) -> Iterator[Inbox[Message]]:
    aws: Any = SimpleNamespace(sqs=sqs)
    inbox = Inbox(aws, "queue", message, arrived.set)
    yield inbox
    inbox.close()
    sqs.bring()


def test_what_is_received_stays_until_it_is_dealt_with(
    inbox: Inbox[Message], sqs: Queue, arrived: threading.Event
) -> None:
    sqs.bring("r1", "r2")
    assert arrived.wait(30)
    assert [each.receipt for each in inbox.messages] == ["r1", "r2"]
    assert sqs.handed_back.empty()


def test_what_is_delivered_again_is_there_once_with_its_new_receipt(
    inbox: Inbox[Message], sqs: Queue, arrived: threading.Event
) -> None:
    """While AWS is away nothing is dealt with, and everything comes again every few seconds."""
    sqs.bring("m/r1", "other")
    assert arrived.wait(30)
    first, other = inbox.messages
    arrived.clear()
    sqs.bring("m/r2")
    assert arrived.wait(30)
    assert inbox.messages == (replace(first, receipt="m/r2"), other), "seen when it came first"
    inbox.settle([Discard(first, "handled")])
    assert len(inbox.messages) == 2, "the receipt that is known does not delete it any more"
    inbox.settle([Discard(inbox.messages[0], "duplicate")])
    assert inbox.messages == (other,)


def test_who_leads_no_more_hands_back_what_he_has_and_what_he_still_gets(
    inbox: Inbox[Message], sqs: Queue, arrived: threading.Event
) -> None:
    sqs.bring("r1")
    assert arrived.wait(30)
    arrived.clear()
    inbox.close()
    assert sqs.handed_back.get(timeout=30) == ("r1", 0)
    sqs.bring("r2")
    assert sqs.handed_back.get(timeout=30) == ("r2", 0)
    assert (inbox.messages, arrived.is_set()) == ((), False)


class Throttled:
    """Fails so often, and then hands over a message; fails for good after that."""

    def __init__(self, times: int) -> None:
        self.pauses: list[float] = []
        self.paused = threading.Event()
        self._left = times

    def receive_message(self, **_: Any) -> dict[str, Any]:
        self._left -= 1
        if self._left != -1:
            raise Unavailable("AWS is busy")
        body = json.dumps(WARNING)
        return {"Messages": [{"MessageId": "m1", "ReceiptHandle": "r1", "Body": body}]}

    def draw(self, _: float, high: float) -> float:
        """No pause is waited for but the first after the message."""
        self.pauses.append(high)
        if self._left >= 0:
            return 0.0
        self.paused.set()
        return 1e6

    def change_message_visibility(self, **_: Any) -> None: ...


def test_a_queue_that_throttles_is_asked_ever_more_rarely_until_it_answers(
    arrived: threading.Event, said: list[str]
) -> None:
    sqs = Throttled(7)
    aws: Any = SimpleNamespace(sqs=sqs)
    inbox = Inbox(aws, "queue", message, arrived.set, draw=sqs.draw)
    assert sqs.paused.wait(30)
    assert arrived.is_set()
    assert sqs.pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 1.0]
    assert sum("AWS is busy" in line for line in said) == 1
    thread = inbox._thread
    inbox.close()
    thread.join(30)
    assert not thread.is_alive(), "no pause is waited for then"
