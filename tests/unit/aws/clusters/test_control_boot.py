"""Workers wait for control nodes where none has worked before, and not for ever."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.aws.account import REGION, account
from support.aws.cluster_requests import request

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.names import MEMBERS, Names
from spotelastic.aws.clusters import control_boot, teardown
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.clusters.control_boot import REFUSED_FOR, SILENT_FOR, ControlGroup, hopeless
from spotelastic.aws.compute import autoscaling
from spotelastic.cloud.model import ALIVE

NAME = "quokka"
KMS = "Instance became unhealthy while waiting. Termination Reason: Client.InternalError"
RUNS, REFUSED, LATE = ControlGroup(1), ControlGroup(0, KMS), ControlGroup(0)


@pytest.fixture
def aws(tmp_path: Path) -> Iterator[Aws]:
    with account(tmp_path):
        yield Aws(REGION)


@pytest.mark.parametrize(
    ("groups", "after"),
    [
        ((REFUSED, REFUSED, REFUSED), REFUSED_FOR),
        ((REFUSED, REFUSED, RUNS), REFUSED_FOR),
        ((REFUSED, RUNS, RUNS), SILENT_FOR),
        ((LATE, LATE, LATE), SILENT_FOR),
        ((RUNS, RUNS, RUNS), SILENT_FOR),
        ((ControlGroup(1, KMS), ControlGroup(1, KMS), RUNS), SILENT_FOR),
        ((), SILENT_FOR),
    ],
)
def test_control_nodes_are_given_up_when_they_cannot_come(
    groups: tuple[ControlGroup, ...], after: float
) -> None:
    assert hopeless(groups, after - 1.0) == ""
    assert hopeless(groups, after).startswith("no control node has reported for")


def test_what_aws_says_of_the_launches_is_told_once() -> None:
    other = ControlGroup(0, "The image is not there.")
    told = hopeless((REFUSED, REFUSED, other), SILENT_FOR)
    assert told.endswith(f"0 of 3 run. AWS says: {KMS}; The image is not there.")


def workers(aws: Aws) -> int:
    return sum(each.state in ALIVE for each in autoscaling.instances(aws, NAME, "worker"))


@pytest.mark.parametrize("proven", [True, False])
def test_workers_come_first_only_where_a_cluster_has_worked(aws: Aws, proven: bool) -> None:
    clusters.create(request(NAME, 2, proven=proven), lambda _: None, aws)
    assert workers(aws) == (2 if proven else 0)
    found = control_boot.look(aws, NAME)
    assert [(each.running, each.failure) for each in found] == [(1, "")] * len(MEMBERS)
    teardown.delete(NAME, aws=aws)
    assert control_boot.look(aws, NAME) == ()


def test_a_place_has_worked_when_that_was_noted(aws: Aws) -> None:
    aws.s3.create_bucket(Bucket="spotelastic-place")
    assert not control_boot.has_worked(aws, "spotelastic-place")
    control_boot.note_worked(aws, "spotelastic-place")
    assert control_boot.has_worked(aws, "spotelastic-place")
    assert not control_boot.has_worked(aws, "spotelastic-not-there")
    control_boot.note_worked(aws, "spotelastic-not-there")


def test_names_of_control_groups_are_those_of_the_stack() -> None:
    assert Names(NAME).control("a") == f"spotelastic-{NAME}-control-a"
