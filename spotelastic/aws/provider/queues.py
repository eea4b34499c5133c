"""SQS queues of one cluster: AWS's events, and users' commands."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Generic, TypeVar

from spotelastic.aws.base.clients import Aws, calling, passing
from spotelastic.aws.messaging import command_queue, eventbridge
from spotelastic.cloud.events import CloudEvent
from spotelastic.cloud.port import Delivery
from spotelastic.model.requests.command import Command

T = TypeVar("T")

LONGEST_POLL = 20
"""Seconds that SQS lets one request wait for messages."""
_STALE = "ReceiptHandleIsInvalid"
_NOT_HELD = frozenset(
    {
        _STALE,
        "InvalidParameterValue",  # for a message that is deleted
        "MessageNotInflight",
        "AWS.SimpleQueueService.MessageNotInflight",
    }
)
"""SQS's answers about a message that this receipt does not hold any more."""
AT_ONCE = 10
"""Messages that one request returns at most."""


class SqsQueue(Generic[T]):
    """One queue, whose messages `read` turns into values. Thread-safe."""

    def __init__(self, aws: Aws, name: str, read: Callable[[Mapping[str, Any]], T]) -> None:
        """Use the queue of that name. It is looked up with the first call."""
        self._aws = aws
        self._sqs = aws.sqs  # made here: threads may share a client, but not make one
        self._name = name
        self._read = read

    @cached_property
    def _url(self) -> str:
        return command_queue.queue_url(self._aws, self._name)

    def receive(self, seconds: float) -> tuple[Delivery[T], ...]:
        """Wait at most so long for messages, and return them."""
        with calling("receive messages"):
            answer = self._sqs.receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=AT_ONCE,
                WaitTimeSeconds=min(LONGEST_POLL, int(seconds)),
                AttributeNames=["SentTimestamp"],
            )
        return tuple(
            Delivery(
                item["MessageId"], item["ReceiptHandle"], self._read(item), command_queue.sent(item)
            )
            for item in answer.get("Messages", ())
        )

    def delete(self, receipt: str) -> None:
        """Delete a message.

        If the receipt is no longer valid, because this took too long, the queue delivers the
        message again with another receipt. It is then a duplicate.
        """
        with passing(_STALE), calling("delete a message"):
            self._sqs.delete_message(QueueUrl=self._url, ReceiptHandle=receipt)

    def hand_back(self, receipt: str) -> None:
        """Make a message visible again at once, unless it is so already or is deleted."""
        with passing(*_NOT_HELD), calling("hand a message back"):
            self._sqs.change_message_visibility(
                QueueUrl=self._url, ReceiptHandle=receipt, VisibilityTimeout=0
            )


def events(aws: Aws, name: str) -> SqsQueue[CloudEvent]:
    """Return the queue that EventBridge delivers a cluster's events to."""
    return SqsQueue(aws, name, lambda item: eventbridge.parse(item["Body"]))


def commands(aws: Aws, name: str) -> SqsQueue[Command | None]:
    """Return the queue that a cluster's commands are sent to."""
    return SqsQueue(aws, name, command_queue.read)
