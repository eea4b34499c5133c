"""What becomes of messages whose reader does not lead any more."""

import queue
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.processes.needed_threads import begun
from support.processes.patience import PATIENT

from spotelastic.cloud.events import CloudEvent, SpotWarning
from spotelastic.cloud.port import Delivery
from spotelastic.controller.effects.inbox import Inbox, message
from spotelastic.controller.model.observation import Discard, Message
from spotelastic.errors import Unavailable

EventInbox = Inbox[CloudEvent, Message]
WARNING = SpotWarning("e1", 1000.0, "i-1")


class Queue:
    """Who receives waits until there is something."""

    def __init__(self) -> None:
        self._arriving: queue.Queue[list[str]] = queue.Queue()
        self.handed_back: queue.Queue[str] = queue.Queue()

    def bring(self, *receipts: str) -> None:
        """Each of a message of its own, unless it is named: `name/receipt`."""
        self._arriving.put(list(receipts))

    def receive(self, seconds: float) -> list[Delivery[CloudEvent]]:
        return [
            Delivery(receipt.rpartition("/")[0] or receipt, receipt, WARNING)
            for receipt in self._arriving.get(timeout=30)
        ]

    def hand_back(self, receipt: str) -> None:
        self.handed_back.put(receipt)

    def delete(self, receipt: str) -> None: ...


@pytest.fixture
def sqs() -> Queue:
    return Queue()


@pytest.fixture
def arrived() -> threading.Event:
    return threading.Event()


@pytest.fixture
def inbox(sqs: Queue, arrived: threading.Event) -> Iterator[EventInbox]:
    inbox = Inbox(sqs, message, arrived.set)
    yield inbox
    inbox.close()
    sqs.bring()


def test_what_is_received_stays_until_it_is_dealt_with(
    inbox: EventInbox, sqs: Queue, arrived: threading.Event
) -> None:
    sqs.bring("r1", "r2")
    assert arrived.wait(PATIENT)
    assert [each.receipt for each in inbox.messages] == ["r1", "r2"]
    assert sqs.handed_back.empty()


def test_what_is_delivered_again_is_there_once_with_its_new_receipt(
    inbox: EventInbox, sqs: Queue, arrived: threading.Event
) -> None:
    """While AWS is away nothing is dealt with, and everything comes again every few seconds."""
    sqs.bring("m/r1", "other")
    assert arrived.wait(PATIENT)
    first, other = inbox.messages
    arrived.clear()
    sqs.bring("m/r2")
    assert arrived.wait(PATIENT)
    assert inbox.messages == (replace(first, receipt="m/r2"), other), "seen when it came first"
    inbox.settle([Discard(first, "handled")])
    assert len(inbox.messages) == 2, "the receipt that is known does not delete it any more"
    inbox.settle([Discard(inbox.messages[0], "duplicate")])
    assert [*inbox.messages] == [other]


def test_who_leads_no_more_hands_back_what_he_has_and_what_he_still_gets(
    inbox: EventInbox, sqs: Queue, arrived: threading.Event
) -> None:
    sqs.bring("r1")
    assert arrived.wait(PATIENT)
    arrived.clear()
    inbox.close()
    assert sqs.handed_back.get(timeout=PATIENT) == "r1"
    sqs.bring("r2")
    assert sqs.handed_back.get(timeout=PATIENT) == "r2"
    assert (inbox.messages, arrived.is_set()) == ((), False)


class Throttled:
    """Fails so often, and then hands over a message; fails for good after that."""

    def __init__(self, times: int) -> None:
        self.pauses: list[float] = []
        self.paused = threading.Event()
        self._left = times

    def receive(self, seconds: float) -> list[Delivery[CloudEvent]]:
        self._left -= 1
        if self._left != -1:
            raise Unavailable("the cloud is busy")
        return [Delivery("m1", "r1", WARNING)]

    def draw(self, _: float, high: float) -> float:
        """No pause is waited for but the first after the message."""
        self.pauses.append(high)
        if self._left >= 0:
            return 0.0
        self.paused.set()
        return 1e6

    def hand_back(self, receipt: str) -> None: ...

    def delete(self, receipt: str) -> None: ...


def test_a_queue_that_throttles_is_asked_ever_more_rarely_until_it_answers(
    arrived: threading.Event, said: list[str]
) -> None:
    sqs = Throttled(7)
    inbox, thread = begun(lambda: Inbox(sqs, message, arrived.set, draw=sqs.draw))
    assert sqs.paused.wait(PATIENT)
    assert arrived.is_set()
    assert sqs.pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 1.0]
    assert sum("the cloud is busy" in line for line in said) == 1
    inbox.close()
    thread.join(PATIENT)
    assert not thread.is_alive(), "no pause is waited for then"
