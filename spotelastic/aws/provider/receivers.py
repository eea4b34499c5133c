"""Finds where the notifications of a cluster go: what `up` has stored of `--notify`."""

from collections.abc import Mapping
from dataclasses import dataclass

from spotelastic_checkpoints import log_records

from spotelastic.aws.base.clients import Aws, calling
from spotelastic.aws.security import secrets
from spotelastic.errors import EnvironmentFailure, Unavailable
from spotelastic.notifications.notification import Notification, Receiver, SendOutcome
from spotelastic.notifications.url_receiver import UrlReceiver
from spotelastic.notifications.urls import TOPIC
from spotelastic.redaction import redactor

SUBJECT = 100
"""Most characters of a subject, which SNS takes in ASCII alone."""


@dataclass(frozen=True, slots=True)
class TopicReceiver:
    """A topic of SNS, told by the role of this process."""

    aws: Aws
    name: str
    arn: str
    region: str

    def send(self, notification: Notification) -> SendOutcome:
        subject = notification.title.encode("ascii", "replace").decode()[:SUBJECT]
        try:
            with calling(f"publish to {self.arn}"):
                self.aws.sns(self.region).publish(
                    TopicArn=self.arn, Subject=subject, Message=notification.text
                )
        except (Unavailable, EnvironmentFailure) as error:
            # Whoever took it and did not answer may have told everybody already.
            return SendOutcome(str(error), unsure=isinstance(error.__cause__, _unanswered()))
        return SendOutcome()


def _unanswered() -> tuple[type[Exception], ...]:
    from botocore.exceptions import ConnectionClosedError, ReadTimeoutError

    return ConnectionClosedError, ReadTimeoutError


def receivers(aws: Aws, cluster: str, names: Mapping[str, int]) -> tuple[Receiver, ...]:
    """Return the receivers of these names. One whose URL is gone is left out."""
    found = {name: url for name in names for url in secrets.known(aws, cluster, (name,), "notify")}
    log_records.hide(redactor(found.values()))
    return tuple(receiver(aws, name, url) for name, url in sorted(found.items()))


def receiver(aws: Aws, name: str, url: str) -> Receiver:
    """Return what a URL of `--notify` leads to."""
    topic = TOPIC.fullmatch(url)
    return UrlReceiver(name, url) if topic is None else TopicReceiver(aws, name, topic[1], topic[2])
