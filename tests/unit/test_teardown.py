"""How a cluster ends: what is waited for before the network goes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.account import Laptop, account
from support.asked import request
from support.remains import remains

from spotelastic.aws import cluster as clusters
from spotelastic.aws import stack, teardown
from spotelastic.aws.names import Names
from spotelastic.errors import Unavailable

NAME = "quokka"
LEFT = {"NetworkInterfaceId": "eni-1"}


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Laptop]:
    with account(tmp_path):
        laptop = Laptop()
        clusters.create(request(NAME, 2), lambda _: None, laptop.aws)
        yield laptop


def linger(laptop: Laptop, looks: int) -> None:
    """An interface of a terminated instance that so many looks still see, as seconds do on AWS."""
    seen = 0

    def answer(parsed: dict[str, Any], **_: object) -> None:
        nonlocal seen
        seen += 1
        if seen <= looks:
            parsed["NetworkInterfaces"] = [LEFT]

    laptop.aws.ec2.meta.events.register("after-call.ec2.DescribeNetworkInterfaces", answer)


def test_the_stack_goes_when_the_interfaces_of_the_instances_have_gone(laptop: Laptop) -> None:
    linger(laptop, 2)
    with laptop.trial():
        teardown.delete(NAME, aws=laptop.aws)
    looks = [at for at, call in enumerate(laptop.calls) if call == "ec2.DescribeNetworkInterfaces"]
    assert len(looks) == 3
    assert looks[-1] < laptop.calls.index("cloudformation.DeleteStack")
    assert remains(NAME) == []


def test_interfaces_that_stay_are_named_and_keep_the_stack(
    laptop: Laptop, monkeypatch: pytest.MonkeyPatch
) -> None:
    linger(laptop, 1_000_000)
    monkeypatch.setattr(teardown, "TERMINATE_TIMEOUT", 0.2)
    with pytest.raises(Unavailable, match=f"interfaces of {NAME} are still there: not after"):
        teardown.delete(NAME, aws=laptop.aws)
    assert stack.describe(laptop.aws, Names(NAME).stack) is not None
