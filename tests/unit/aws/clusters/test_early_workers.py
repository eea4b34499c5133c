"""Workers that are made while their cluster's stack is still being made, and may yet fail."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.aws.account import (
    DENIED,
    KILLED,
    KILLED_AFTER,
    Fault,
    Killed,
    Laptop,
    account,
    forget,
)
from support.aws.cluster_remains import remains
from support.aws.cluster_requests import request

from spotelastic.aws.base.names import Names
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.clusters import teardown
from spotelastic.aws.compute import autoscaling
from spotelastic.errors import EnvironmentFailure, UsageError

NAME = "quokka"
ITS = Names(NAME)
GROUP = "autoscaling.UpdateAutoScalingGroup"
"""The call by which a group launches."""


class Slow:
    """CloudFormation as it is: a stack is being made for so many looks, and then as it ends."""

    def __init__(self, laptop: Laptop) -> None:
        self.laptop = laptop
        self.looks = 0
        self.ends: list[str] = []
        """How the stack ends that is made next, and those after it; then they stand."""
        self._end = "CREATE_COMPLETE"
        self.without_role = 0
        """So many looks see an instance profile that does not have its role yet."""
        self.forbidden = False
        """Whether the credentials may not look at the parts of a stack."""
        self.refused = 0
        self.workers: list[int] = []
        """How many workers there were at each look."""
        events = laptop.aws.session.events
        events.register("before-parameter-build.cloudformation.CreateStack", self._begun)
        events.register("after-call.cloudformation.DescribeStacks", self._described)
        events.register("before-call.cloudformation.DescribeStackResource", self._look)
        events.register("after-call.iam.GetInstanceProfile", self._profile)

    def _begun(self, params: dict[str, Any], **_: Any) -> None:
        if params["StackName"] == ITS.stack:
            self._end = self.ends.pop(0) if self.ends else "CREATE_COMPLETE"

    def _described(self, parsed: dict[str, Any], **_: Any) -> None:
        for stack in parsed.get("Stacks", ()):
            if stack["StackName"] != ITS.stack or stack["StackStatus"] != "CREATE_COMPLETE":
                continue
            self.workers.append(self.living())
            stack["StackStatus"] = "CREATE_IN_PROGRESS" if self.looks > 0 else self._end
            self.looks -= 1

    def _profile(self, parsed: dict[str, Any], **_: Any) -> None:
        self.without_role -= 1
        if self.without_role >= 0:
            parsed["InstanceProfile"]["Roles"] = []

    def _look(self, **_: Any) -> Any:
        if not self.forbidden:
            return None
        self.refused += 1
        answer = {
            "Error": {"Code": DENIED.code, "Message": "denied"},
            "ResponseMetadata": {"HTTPStatusCode": DENIED.status},
        }
        return SimpleNamespace(status_code=DENIED.status), answer

    def living(self) -> int:
        from moto.autoscaling.models import autoscaling_backends
        from moto.core import DEFAULT_ACCOUNT_ID

        groups = autoscaling_backends[DEFAULT_ACCOUNT_ID]["us-east-1"].autoscaling_groups
        return int(groups[ITS.workers].desired_capacity or 0) if ITS.workers in groups else 0


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Slow]:
    with account(tmp_path):
        yield Slow(Laptop())


def up(slow: Slow) -> None:
    clusters.create(request(NAME, 2), lambda _: None, slow.laptop.aws)


def nothing_is_left(slow: Slow) -> None:
    machines = autoscaling.instances(slow.laptop.aws, NAME)
    assert [each for each in machines if each.state != "terminated"] == []
    assert remains(NAME) == []


def test_they_are_made_once_before_the_stack_is_complete(slow: Slow) -> None:
    slow.looks, slow.without_role = 4, 2
    with slow.laptop.trial():
        up(slow)
    assert slow.workers == [0, 0, 0, 2, 2, 2]
    assert slow.laptop.calls.count(GROUP) == 2, "one of each group"
    made = autoscaling.group(slow.laptop.aws, ITS.workers)
    assert made is not None and made.desired == 2
    with slow.laptop.trial():
        up(slow)
    assert "iam.GetInstanceProfile" not in slow.laptop.calls, "nothing of it is new"


def test_who_may_not_look_at_parts_of_a_stack_gets_them_at_its_end(slow: Slow) -> None:
    slow.looks, slow.forbidden = 2, True
    up(slow)
    assert slow.workers == [0, 0, 0, 0]
    assert (slow.refused, slow.living()) == (1, 2)


def test_a_stack_that_fails_afterwards_takes_them_with_it(slow: Slow) -> None:
    slow.looks, slow.ends = 1, ["CREATE_FAILED"]
    with pytest.raises(EnvironmentFailure, match=f"the stack {ITS.stack} failed"):
        up(slow)
    assert 2 in slow.workers
    nothing_is_left(slow)


@pytest.mark.parametrize("fault", [KILLED_AFTER, pytest.param(KILLED, marks=pytest.mark.soak)])
def test_an_up_that_is_killed_leaves_none_that_the_next_up_or_down_forgets(
    slow: Slow, fault: Fault
) -> None:
    """The stack fails after `up` was killed in the middle of making workers."""
    for again in (True, False):
        slow.looks, slow.ends = 1, ["CREATE_FAILED"]
        with slow.laptop.trial(fault, 2, of=GROUP), pytest.raises(Killed):
            up(slow)
        assert slow.living() == (2 if fault is KILLED_AFTER else 0)
        if again:
            first = {each.id for each in autoscaling.instances(slow.laptop.aws, NAME, "worker")}
            up(slow)
            found = autoscaling.instances(slow.laptop.aws, NAME, "worker")
            living = {each.id for each in found if each.state != "terminated"}
            assert (slow.living(), living & first) == (2, set())
        teardown.delete(NAME, aws=slow.laptop.aws)
        nothing_is_left(slow)


@pytest.mark.soak
def test_an_up_that_is_killed_anywhere_is_over_after_the_next_up_and_down(slow: Slow) -> None:
    """From the first call about its stack on. The stack fails after that."""
    up(slow)
    teardown.delete(NAME, aws=slow.laptop.aws)
    slow.looks = 2
    with slow.laptop.trial():
        up(slow)
    teardown.delete(NAME, aws=slow.laptop.aws)
    calls = list(slow.laptop.calls)
    first = calls.index("cloudformation.CreateStack") + 1
    assert GROUP in calls[first:] and len(calls) - first > 15
    for at in range(first, len(calls) + 1):
        slow.looks, slow.ends = 2, ["CREATE_FAILED"]
        with slow.laptop.trial(KILLED_AFTER if at % 3 else KILLED, at), suppress(Killed):
            up(slow)
        if at % 2:
            slow.looks = 0
            with suppress(UsageError):  # what `up` was undoing when it was killed
                up(slow)
        teardown.delete(NAME, aws=slow.laptop.aws)
        nothing_is_left(slow)
        forget()
