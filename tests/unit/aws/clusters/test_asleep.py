"""A cluster that is asleep: it is all there but for its instances, and no change wakes it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.aws.account import REGION, account
from support.aws.cluster_remains import remains
from support.aws.cluster_requests import request

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.names import MEMBERS, Names
from spotelastic.aws.clusters import asleep, teardown
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.compute import autoscaling, worker_groups
from spotelastic.aws.network import cloudformation
from spotelastic.cloud.model import ALIVE
from spotelastic.model.job import Regions

NAME = "quokka"
ITS = Names(NAME)
REGIONS = Regions((REGION, "us-west-2"))


@pytest.fixture
def aws(tmp_path: Path) -> Iterator[Aws]:
    with account(tmp_path):
        yield Aws(REGION)


def up(aws: Aws, **changes: Any) -> None:
    clusters.create(request(NAME, 2, regions=REGIONS, **changes), lambda _: None, aws)


def alive(aws: Aws, role: str = "") -> int:
    return sum(each.state in ALIVE for each in autoscaling.instances(aws, NAME, role))


def control_nodes(aws: Aws) -> str:
    found = cloudformation.describe(aws, ITS.stack)
    assert found is not None
    return cloudformation.parameters(found)["ControlNodes"]


def sizes(aws: Aws) -> set[tuple[int, int]]:
    """Least and wanted sizes of the control nodes' groups."""
    found = aws.autoscaling.describe_auto_scaling_groups(
        AutoScalingGroupNames=[ITS.control(member) for member in MEMBERS]
    )["AutoScalingGroups"]
    assert len(found) == len(MEMBERS)
    return {(group["MinSize"], group["DesiredCapacity"]) for group in found}


def test_a_cluster_is_made_asleep_with_all_that_a_job_needs(aws: Aws) -> None:
    up(aws, asleep=True)
    assert not asleep.is_awake(aws, NAME)
    assert alive(aws) == 0
    assert (sizes(aws), control_nodes(aws)) == ({(0, 0)}, "0")
    found = clusters.find(NAME, aws)
    assert found is not None
    assert found.spec.regions == REGIONS
    assert found.objects.has(f"code/{found.spec.code}.tar.gz")
    asleep.wake(aws, NAME)
    assert asleep.is_awake(aws, NAME)
    assert alive(aws, "control") == len(MEMBERS)
    teardown.delete(NAME, aws=aws)
    assert remains(NAME) == []


def test_a_change_of_a_cluster_that_is_asleep_does_not_wake_it(aws: Aws) -> None:
    up(aws, asleep=True)
    up(aws, asleep=True, code="other")
    assert alive(aws) == 0
    assert clusters.find(NAME, aws).spec.code == "other"  # type: ignore[union-attr]


def test_one_that_was_put_to_sleep_stays_so_and_one_that_was_woken_as_well(aws: Aws) -> None:
    up(aws)
    assert (sizes(aws), control_nodes(aws)) == ({(1, 1)}, "1")
    asleep.put_to_sleep(aws, NAME)
    assert sizes(aws) == {(0, 0)}
    changed_template(aws)
    assert sizes(aws) == {(0, 0)}
    up(aws, asleep=True, code="other")
    assert (sizes(aws), control_nodes(aws)) == ({(0, 0)}, "0")
    assert alive(aws, "control") == 0
    asleep.wake(aws, NAME)
    changed_template(aws)
    up(aws, code="third")
    assert control_nodes(aws) == "0"
    assert alive(aws, "control") == len(MEMBERS)


def changed_template(aws: Aws) -> None:
    """The control nodes get another image, and so their groups another launch template."""
    found = cloudformation.describe(aws, ITS.stack)
    assert found is not None
    given = cloudformation.parameters(found)
    given["BootScript"] = "IyEvYmluL3NoCg=="
    body = aws.cloudformation.get_template(StackName=ITS.stack)["TemplateBody"]
    cloudformation.update(aws, ITS.stack, given, body, cloudformation.tags(found))
    cloudformation.settled(aws, ITS.stack, lambda _: None)


def test_a_first_up_that_fails_leaves_nothing_asleep(
    aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(worker_groups, "ensure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        up(aws, asleep=True)
    assert remains(NAME) == []
    teardown.delete(NAME, aws=aws)  # there is nothing to be deleted
