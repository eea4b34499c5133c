"""Sends commands to a cluster through an SQS queue, and reads the answers from its bucket.

A command that is not answered in time expires before its sender gives up, by SQS's own time stamp.
So it never takes effect as a surprise.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from spotelastic_checkpoints.decoders import from_json

from spotelastic.aws.base.clients import Aws, calling, explained
from spotelastic.aws.base.names import Names
from spotelastic.errors import EnvironmentFailure
from spotelastic.model.requests.command import Command

_NO_QUEUE = "AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"


def queue_url(aws: Aws, queue: str) -> str:
    """Return the URL of a queue."""
    with calling(f"find the queue {queue}"):
        return str(aws.sqs.get_queue_url(QueueName=queue)["QueueUrl"])


def send(aws: Aws, cluster: str, command: Command) -> None:
    """Send a command. Raises `EnvironmentFailure` if the cluster has no queue for it."""
    none = EnvironmentFailure(
        f"{cluster} accepts no commands: it was made by an older version, or is being taken down; "
        "run `spotelastic up` again, or `spotelastic down`"
    )
    with explained(none, *_NO_QUEUE):
        url = queue_url(aws, Names(cluster).commands)
    with calling(f"send a command to {cluster}"):
        aws.sqs.send_message(QueueUrl=url, MessageBody=msgspec.json.encode(command).decode())


def read(item: Mapping[str, Any]) -> Command | None:
    """Return an SQS message as a command; None if it is not one."""
    try:
        return from_json(item["Body"], Command)
    except msgspec.MsgspecError:
        return None


def sent(item: Mapping[str, Any]) -> float:
    """Return when an SQS message was sent, in seconds since the epoch; 0 if not known."""
    return int(item.get("Attributes", {}).get("SentTimestamp", 0)) / 1000
