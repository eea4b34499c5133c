"""What is told of a refusal of AWS's: the reason that counts, and what may be behind it."""

from typing import Any, cast

import pytest
from botocore.exceptions import ClientError

from spotelastic.aws.base.clients import Aws, SignedOut, calling
from spotelastic.aws.network import cloudformation
from spotelastic.errors import EnvironmentFailure

NAME = "spotelastic-demo"
AT_ONCE = 100
"""Events of a page."""


def event(what: str, status: str, reason: str = "") -> dict[str, str]:
    return {"LogicalResourceId": what, "ResourceStatus": status, "ResourceStatusReason": reason}


class Account:
    """Of one stack, which an operation has left as it is."""

    def __init__(self, status: str, events: list[dict[str, str]]) -> None:
        self.cloudformation = self
        self._status = status
        self._newest_first = events[::-1]
        self.pages = 0

    def describe_stacks(self, StackName: str) -> dict[str, Any]:
        return {"Stacks": [{"StackName": StackName, "StackStatus": self._status}]}

    def describe_stack_events(self, StackName: str) -> dict[str, Any]:
        return {"StackEvents": self._newest_first[:AT_ONCE]}

    def update_stack(self, **_: Any) -> None:
        """It has failed already."""

    def get_paginator(self, operation: str) -> Any:
        assert operation == "describe_stack_events"
        return self

    def paginate(self, StackName: str) -> Any:
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
    account = Account("UPDATE_ROLLBACK_COMPLETE", EARLIER + NOW)
    with pytest.raises(EnvironmentFailure, match=r"failed: Queue: the name is taken$"):
        cloudformation.ensure(
            cast(Aws, account), NAME, {"Cluster": "demo"}, lambda _: None, maker="m"
        )
    assert account.pages == 2, "what was before is not read"


@pytest.mark.parametrize(
    ("code", "region"),
    [
        ("AuthFailure", True),
        ("InvalidClientTokenId", True),
        ("UnrecognizedClientException", True),
        ("ExpiredToken", False),
        ("RequestExpired", False),
    ],
)
def test_a_region_that_is_not_enabled_may_be_what_refuses_credentials(
    code: str, region: bool
) -> None:
    answer: Any = {"Error": {"Code": code, "Message": "no"}}
    with pytest.raises(SignedOut, match="log in again") as told, calling("look"):
        raise ClientError(answer, "Look")
    assert ("the region is not enabled for this account" in str(told.value)) == region
