"""What becomes of messages whose reader does not lead any more."""

import json
import queue
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from spotelastic.controller.inbox import Inbox, message
from spotelastic.controller.seen import Message

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
        self._arriving.put(list(receipts))

    def receive_message(self, **_: Any) -> dict[str, Any]:
        body = json.dumps(WARNING)
        return {
            "Messages": [
                {"ReceiptHandle": receipt, "Body": body}
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
