"""What an `up` of a cluster that is there already leaves as it is, whatever it does not name."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.aws.account import REGION, account
from support.aws.cluster_requests import request

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.names import Names
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.compute.estimate import DISK_MIB_S
from spotelastic.aws.compute.images import RootDisk
from spotelastic.aws.network import cloudformation
from spotelastic.aws.planning import plan as requests
from spotelastic.aws.planning.plan import LaunchPlan, plan_of
from spotelastic.errors import EnvironmentFailure, UsageError

NAME = "quokka"
RUN = "wombat"


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aws]:
    """Of an account in which the cluster goes on with an earlier one's run."""
    with account(tmp_path_factory.mktemp("account")):
        aws = Aws(REGION)
        clusters.create(request(NAME, run=RUN), lambda _: None, aws)
        yield aws


def planned(aws: Aws, **changes: Any) -> LaunchPlan:
    return plan_of(
        request(NAME, 3, **changes), aws, cloudformation.describe(aws, Names(NAME).stack)
    )


def test_it_goes_on_with_the_run_that_it_trains(aws: Aws) -> None:
    """Nodes of another run would train from the start, beside those that train already."""
    plan = planned(aws)
    assert (plan.spec.run, plan.parameters["Run"]) == (RUN, RUN)
    assert plan.spec.storage == f"s3://{plan.bucket}/{RUN}/checkpoints"


def test_nodes_that_come_later_boot_the_image_of_those_that_train(
    aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AWS puts out another one every few weeks, and nodes with another Python are refused."""
    before = planned(aws).image
    monkeypatch.setattr(requests, "first_image", lambda *_: "ami-of-today")
    plan = planned(aws)
    assert plan.image == before
    assert plan.parameters["ControlImage"] == "ami-of-today"


def test_nodes_that_come_later_have_the_disk_of_those_that_train(aws: Aws) -> None:
    assert planned(aws).disk == planned(aws, disk=100).disk == RootDisk("/dev/xvda", 100)
    with pytest.raises(UsageError, match=f"--disk 300: {NAME} was made with disks of 100 GiB"):
        planned(aws, disk=300)
    assert (planned(aws).spec.disk_gib, planned(aws).spec.disk_mib_s) == (100, DISK_MIB_S)


def test_what_an_up_that_was_killed_has_left_is_named_where_the_next_one_fails(
    aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    found = cloudformation.describe(aws, Names(NAME).stack)
    assert found is not None
    found["StackStatus"] = "CREATE_IN_PROGRESS"
    with monkeypatch.context() as patch, pytest.raises(EnvironmentFailure):
        patch.setattr(cloudformation, "describe", lambda *_: found)
        patch.setattr(cloudformation, "ensure", failing)
        clusters.create(request(NAME, run=RUN), told.append, aws)
    assert f"`spotelastic down {NAME}`" in told[-1]


def failing(*_: object, **__: object) -> None:
    raise EnvironmentFailure("there is no room for another VPC")
