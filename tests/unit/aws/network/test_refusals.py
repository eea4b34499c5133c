"""What is told of a refusal of AWS's: the reason that counts, and what may be behind it."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore import exceptions
from support.aws.fake_services import Answer, Pages, fake_aws, refusal
from support.processes.patience import PATIENT

from spotelastic.aws.base.clients import Rejected, SignedOut, calling
from spotelastic.aws.network import cloudformation
from spotelastic.errors import EnvironmentFailure

NAME = "spotelastic-demo"
AT_ONCE = 100
"""Events of a page."""


def event(what: str, status: str, reason: str = "") -> dict[str, str]:
    return {"LogicalResourceId": what, "ResourceStatus": status, "ResourceStatusReason": reason}


class OneStack:
    """CloudFormation with one stack, which an operation has left as it is."""

    def __init__(self, status: str, events: list[dict[str, str]]) -> None:
        self._status = status
        self._newest_first = events[::-1]
        self.pages = 0

    def describe_stacks(self, StackName: str) -> dict[str, Any]:
        return {"Stacks": [{"StackName": StackName, "StackStatus": self._status}]}

    def describe_stack_events(self, StackName: str) -> dict[str, Any]:
        return {"StackEvents": self._newest_first[:AT_ONCE]}

    def update_stack(self, **_: Any) -> None:
        """It has failed already."""

    def get_paginator(self, operation: str) -> Pages:
        assert operation == "describe_stack_events"
        return Pages(self._events)

    def _events(self, StackName: str) -> Iterator[Answer]:
        for start in range(0, len(self._newest_first), AT_ONCE):
            self.pages += 1
            yield {"StackEvents": self._newest_first[start : start + AT_ONCE]}


EARLIER = [
    event(NAME, "CREATE_IN_PROGRESS"),
    event("Vpc", "CREATE_FAILED", "too many networks"),
    *[event("Vpc", "CREATE_COMPLETE")] * 300,
]
"""Of another operation."""
NOW = [
    event(NAME, "UPDATE_IN_PROGRESS"),
    event("Queue", "UPDATE_FAILED", "the name is taken"),
    event("Logs", "UPDATE_FAILED", "Resource update cancelled"),
    event(NAME, "UPDATE_ROLLBACK_IN_PROGRESS", "The following resources failed"),
    *[event("Subnet", "UPDATE_COMPLETE")] * 150,
    event(NAME, "UPDATE_ROLLBACK_COMPLETE"),
]


def test_the_first_failure_of_this_operation_is_told_however_far_back() -> None:
    stack = OneStack("UPDATE_ROLLBACK_COMPLETE", EARLIER + NOW)
    with pytest.raises(
        EnvironmentFailure, match="failed: Queue: the name is taken; the cluster is"
    ):
        aws = fake_aws(cloudformation=stack)
        cloudformation.ensure(aws, NAME, {"Cluster": "demo"}, lambda _: None, maker="m")
    assert stack.pages == 2, "what was before is not read"


@pytest.mark.parametrize(
    "error",
    [
        exceptions.SSOTokenLoadError(error_msg="no token"),
        exceptions.UnauthorizedSSOTokenError(),
        exceptions.TokenRetrievalError(provider="sso", error_msg="expired"),
    ],
)
def test_a_session_of_identity_center_that_has_ended_names_what_begins_another(
    error: exceptions.BotoCoreError,
) -> None:
    with pytest.raises(SignedOut, match=r"log in again with `aws sso login`$"), calling("look"):
        raise error


@pytest.mark.parametrize(
    ("code", "region"),
    [
        ("InvalidClientTokenId", True),
        ("UnrecognizedClientException", True),
        ("ExpiredToken", False),
    ],
)
def test_a_region_that_is_not_enabled_may_be_what_refuses_credentials(
    code: str, region: bool
) -> None:
    with pytest.raises(SignedOut, match="log in again") as told, calling("look"):
        raise refusal(code, "Look")
    assert ("the region is not enabled for this account" in str(told.value)) == region


def test_aws_own_words_are_told_with_the_advice() -> None:
    words = "AWS was not able to validate the provided access credentials"
    with pytest.raises(SignedOut, match=f"{words}.*log in again.*not enabled"), calling("look"):
        raise refusal("AuthFailure", "Look", words)


def test_an_image_of_another_account_is_no_matter_of_the_login() -> None:
    words = "Not authorized for images: [ami-1]"
    with pytest.raises(Rejected, match=re.escape(words)) as told, calling("look"):
        raise refusal("AuthFailure", "Look", words)
    assert not isinstance(told.value, SignedOut)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("SignatureDoesNotMatch", "Signature expired: 20260101T0 is now earlier than 20260101T1"),
        ("InvalidSignatureException", "Signature not yet current: 20260101T1 is still later"),
        ("RequestTimeTooSkewed", "The difference between the request time and the current time"),
        ("RequestExpired", "Request has expired."),
    ],
)
def test_a_wrong_clock_is_named(code: str, words: str) -> None:
    with pytest.raises(SignedOut, match="this machine's clock differs") as told, calling("look"):
        raise refusal(code, "Look", words)
    assert words in str(told.value)


@pytest.mark.parametrize(
    "error",
    [
        exceptions.RefreshWithMFAUnsupportedError(),
        exceptions.CredentialRetrievalError(provider="custom-process", error_msg="no ticket"),
        exceptions.UnauthorizedSSOTokenError(),
        exceptions.TokenRetrievalError(provider="sso", error_msg="expired"),
        getattr(exceptions, "LoginRefreshRequired", exceptions.SSOError)(),
    ],
)
def test_a_login_that_has_ended_is_told_as_such(error: Exception) -> None:
    with pytest.raises(SignedOut, match=re.escape(f"{error}: log in again")), calling("look"):
        raise error


def test_a_profile_that_asks_for_a_code_without_a_terminal_ends_in_one_line(
    tmp_path: Path,
) -> None:
    (tmp_path / "config").write_text(
        "[profile p]\nrole_arn = arn:aws:iam::123456789012:role/x\nsource_profile = base\n"
        "mfa_serial = arn:aws:iam::123456789012:mfa/me\nregion = us-east-1\n"
    )
    (tmp_path / "credentials").write_text(
        "[base]\naws_access_key_id = AKIA0000000000000000\naws_secret_access_key = x\n"
    )
    ours = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    ended = subprocess.run(
        [sys.executable, "-m", "spotelastic", "status", "demo"],
        env=ours
        | {
            "AWS_PROFILE": "p",
            "AWS_CONFIG_FILE": str(tmp_path / "config"),
            "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
            "SPOTELASTIC_HOME": str(tmp_path / "home"),
        },
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # getpass asks at the terminal of the session, if there is one
        capture_output=True,
        text=True,
        timeout=PATIENT,
        check=False,
    )
    assert ended.returncode == 2
    assert "there is no terminal to ask for it: log in beforehand" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_stack_that_cannot_be_taken_back_has_a_way_out() -> None:
    stack = OneStack("UPDATE_ROLLBACK_FAILED", EARLIER)
    with pytest.raises(EnvironmentFailure, match="end the cluster with `spotelastic down`"):
        aws = fake_aws(cloudformation=stack)
        cloudformation.ensure(aws, NAME, {"Cluster": "demo"}, lambda _: None, maker="m")


class DeletedAgain(OneStack):
    """CloudFormation shows how an earlier deletion ended until it has begun the new one."""

    def __init__(self) -> None:
        failed = [
            {**event(NAME, "DELETE_IN_PROGRESS"), "EventId": "1"},
            event("Vpc", "DELETE_FAILED", "the old reason"),
        ]
        super().__init__("DELETE_FAILED", failed)
        self.looks = 0

    def delete_stack(self, StackName: str) -> None:
        """It takes a while until this shows."""

    def describe_stacks(self, StackName: str) -> dict[str, Any]:
        self.looks += 1
        if self.looks > 3:
            return {"Stacks": []}
        return super().describe_stacks(StackName)


def test_how_an_earlier_deletion_ended_is_not_told_of_this_one() -> None:
    stack = DeletedAgain()
    cloudformation.delete(fake_aws(cloudformation=stack), NAME)
    assert stack.looks > 3
