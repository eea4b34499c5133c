"""How often AWS was called, by service and outcome, as a real client's hooks tell it."""

from contextlib import suppress

import pytest
from support.saving.fixed_answers import answering

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.provider.calls import CallCount, outcome


@pytest.mark.parametrize(
    ("status", "code", "counted"),
    [
        (200, "", {("sqs", "ok"): 1}),
        (404, "QueueDoesNotExist", {("sqs", "missing"): 1}),
        (403, "AccessDenied", {("sqs", "refused"): 1}),
        (429, "", {("sqs", "busy"): 1}),
        (503, "ServiceUnavailable", {("sqs", "busy"): 2}),
    ],
)
def test_every_attempt_counts(
    status: int, code: str, counted: dict[tuple[str, str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(status, code) as url:
        assert called(url, monkeypatch) == counted


def test_a_call_without_an_answer_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert called("http://127.0.0.1:9", monkeypatch) == {("sqs", "no answer"): 2}


def called(url: str, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], int]:
    for name, value in {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    aws = Aws("us-east-1", account="123456789012", attempts=2)
    calls = CallCount(aws)
    with suppress(Exception):
        aws.sqs.list_queues()
    return dict(calls.so_far())


def test_an_answer_without_a_body_is_judged_by_its_status() -> None:
    assert outcome({"ResponseMetadata": {"HTTPStatusCode": 429}}) == "busy"
    assert outcome({"ResponseMetadata": {"HTTPStatusCode": 304}}) == "ok"


@pytest.mark.parametrize("code", ["Throttling", "ThrottlingException", "RequestLimitExceeded"])
def test_too_many_calls_are_told_by_the_code_where_the_status_says_less(code: str) -> None:
    answer = {"ResponseMetadata": {"HTTPStatusCode": 400}, "Error": {"Code": code}}
    assert outcome(answer) == "busy"
