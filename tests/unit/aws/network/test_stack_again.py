"""A stack whose queues were there under the same names until a moment ago: SQS keeps these."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moto.sqs.models import SQSBackend
from support.aws.account import NETWORK, REGION, account
from support.aws.cluster_requests import request

from spotelastic.aws.base.account import ensure_service_role
from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.names import Names
from spotelastic.aws.network import cloudformation, shared_network
from spotelastic.aws.planning.plan import plan_of
from spotelastic.errors import EnvironmentFailure

NAME = "quokka"
TOO_SOON = (
    "You must wait 60 seconds after deleting a queue before you can create another with the same "
    "name."
)


@pytest.fixture
def aws(tmp_path: Path) -> Iterator[Aws]:
    with account(tmp_path):
        yield Aws(REGION)


class Queues:
    """SQS refuses as many as it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refusals = 0
        self.why = TOO_SOON
        create = SQSBackend.create_queue

        def create_queue(backend: Any, *args: Any, **kwargs: Any) -> Any:
            self.refusals -= 1
            if self.refusals >= 0:
                raise RuntimeError(self.why)
            return create(backend, *args, **kwargs)

        monkeypatch.setattr(SQSBackend, "create_queue", create_queue)


@pytest.fixture
def queues(monkeypatch: pytest.MonkeyPatch) -> Queues:
    return Queues(monkeypatch)


def made(
    aws: Aws, told: list[str], slept: list[float], cleared: list[str] | None = None
) -> dict[str, str]:
    shared_network.ensure(aws, NETWORK, (), lambda _: None)
    parameters = plan_of(request(NAME), aws, None).parameters
    wanted = {**parameters, "ServiceRole": ensure_service_role(aws)}
    return cloudformation.ensure(
        aws,
        Names(NAME).stack,
        wanted,
        told.append,
        maker="m",
        sleep=slept.append,
        clear=lambda: None if cleared is None else cleared.append("cleared"),
    )


def test_it_is_made_again_a_minute_later(aws: Aws, queues: Queues) -> None:
    told, slept, cleared = list[str](), list[float](), list[str]()
    queues.refusals = 1
    assert made(aws, told, slept, cleared)["WorkerProfile"]
    assert slept == [cloudformation.QUEUE_REST]
    assert [line for line in told if "not free yet, retrying in 60 s" in line]
    assert cleared == ["cleared"], "workers that use the stack are ended before it goes"


def test_after_that_the_reason_is_told(aws: Aws, queues: Queues) -> None:
    slept = list[float]()
    queues.refusals = 1_000
    with pytest.raises(EnvironmentFailure, match="60 seconds after deleting"):
        made(aws, [], slept)
    assert slept == [cloudformation.QUEUE_REST]


def test_for_another_reason_it_is_not_made_again(aws: Aws, queues: Queues) -> None:
    slept = list[float]()
    queues.refusals, queues.why = 1, "there is no room for another queue"
    with pytest.raises(EnvironmentFailure, match="no room for another queue"):
        made(aws, [], slept)
    assert slept == []
