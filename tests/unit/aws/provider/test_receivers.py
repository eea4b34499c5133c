"""Where notifications go: topics of SNS by the role, everything else by its URL."""

from email.message import Message

import pytest
from support.saving.fixed_answers import answering

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.provider.receivers import TopicReceiver, receiver
from spotelastic.notifications.notification import Notification
from spotelastic.notifications.url_receiver import UrlReceiver

ARN = "arn:aws:sns:eu-west-1:123456789012:alerts"
TOLD = Notification("trial 1", "demo — begun " + "x" * 200, "text")


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Aws:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    return Aws("us-east-1", account="123456789012")


def test_a_topic_is_told_in_its_own_region(aws: Aws) -> None:
    found = receiver(aws, "1-sns", f"sns:{ARN}")
    assert isinstance(found, TopicReceiver)
    assert (found.name, found.arn, found.region) == ("1-sns", ARN, "eu-west-1")


def test_all_else_is_told_by_its_url(aws: Aws) -> None:
    assert isinstance(receiver(aws, "1-json", "json://127.0.0.1"), UrlReceiver)


@pytest.mark.parametrize(("status", "word"), [(403, "cannot publish to arn"), (500, "busy")])
def test_what_sns_answers_is_the_outcome(
    aws: Aws, status: int, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[str, Message]] = []
    with answering(status, "AccessDenied" if status == 403 else "", heard) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        outcome = receiver(aws, "1-sns", f"sns:{ARN}").send(TOLD)
    assert len(heard) == 1, "a notification is not sent again by the client itself"
    assert word in outcome.why and not outcome.unsure
