"""What is told of a refusal of AWS's: the reason that counts, and what may be behind it."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.fake_aws import Answer, Pages, fake_aws, refusal

from spotelastic.aws.base.clients import SignedOut, calling
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
    with pytest.raises(EnvironmentFailure, match=r"failed: Queue: the name is taken$"):
        aws = fake_aws(cloudformation=stack)
        cloudformation.ensure(aws, NAME, {"Cluster": "demo"}, lambda _: None, maker="m")
    assert stack.pages == 2, "what was before is not read"


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
    with pytest.raises(SignedOut, match="log in again") as told, calling("look"):
        raise refusal(code, "Look")
    assert ("the region is not enabled for this account" in str(told.value)) == region
