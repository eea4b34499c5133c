"""`--control 1`: a cluster with one control node, whose job trains on while it is replaced."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.aws.account import REGION, account
from support.aws.cluster_remains import remains
from support.aws.cluster_requests import changed, request
from support.aws.own_network import Own
from support.clusters.trial_cluster import Trial, eventually, running_trial

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.names import Names
from spotelastic.aws.clusters import asleep, control_boot, lifecycle, teardown
from spotelastic.aws.compute import autoscaling
from spotelastic.aws.planning.survey import ALONE, survey
from spotelastic.clock import wall
from spotelastic.cloud.model import ALIVE
from spotelastic.controller.etcd import snapshots
from spotelastic.controller.etcd.generations import Generations
from spotelastic.errors import EnvironmentFailure, UsageError
from spotelastic.local import cloud
from spotelastic.model.job import Settings
from spotelastic.model.progress import Status

NAME = "quokka"
ITS = Names(NAME)
ONE = ("a",)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Own]:
    with account(tmp_path_factory.mktemp("account")):
        yield Own(Aws(REGION), "127.98.0.0/16")


def up(own: Own, **changes: Any) -> lifecycle.ClusterRecord:
    return lifecycle.create(request(NAME, 2, **changes), lambda _: None, own.aws)


@pytest.mark.parametrize("network", ["shared", "own"])
def test_there_is_one_of_all_that_a_control_node_has(own: Own, network: str) -> None:
    where: dict[str, Any] = {"vpc": own.vpc, "subnets": own.subnets[:1]}
    where = where if network == "own" else {}
    wanted = request(NAME, 2, etcd_members=ONE, control_type="t3.medium", **where)
    found = survey(own.aws, wanted.job)
    assert ALONE in found.warnings
    (control,) = [line for line in found.estimate.lines if "t3.medium" in line.what]
    assert (control.low, control.high) == (1, 1)
    cluster = lifecycle.create(wanted, lambda _: None, own.aws)
    assert (cluster.spec.etcd_members, len(cluster.spec.etcd)) == (ONE, 1)
    kinds = [each["ResourceType"].removeprefix("AWS::") for each in resources(own)]
    counted = {f"{kinds.count(kind)} {kind}" for kind in kinds}
    assert counted == {each for each in found.resources if "SharedNetwork" not in each}
    assert {f"1 EC2::{kind}" for kind in ("Volume", "NetworkInterface")} <= counted
    nodes = autoscaling.instances(own.aws, NAME, "control")
    assert [each.type for each in nodes if each.state in ALIVE] == ["t3.medium"]
    (group,) = control_boot.look(own.aws, NAME)
    assert group.running == 1
    below = {"Key": "Name", "Option": "BeginsWith", "Values": [f"{ITS.secrets}/control/"]}
    (its,) = own.aws.ssm.describe_parameters(ParameterFilters=[below])["Parameters"]
    assert its["Name"] == ITS.member_certificate("a")
    again = lifecycle.create(changed(wanted, code="new"), lambda _: None, own.aws)
    assert again.spec.etcd == cluster.spec.etcd
    asleep.put_to_sleep(own.aws, NAME)
    assert not asleep.is_awake(own.aws, NAME)
    asleep.wake(own.aws, NAME)
    assert asleep.is_awake(own.aws, NAME)
    teardown.delete(NAME, aws=own.aws)
    assert remains(NAME) == []


def test_without_a_word_there_are_three_and_what_they_lack_names_the_way_out(own: Own) -> None:
    assert len(up(own).spec.etcd) == len(control_boot.look(own.aws, NAME)) == 3
    teardown.delete(NAME, aws=own.aws)
    with pytest.raises(UsageError, match=r"are in 1 .*or take one control node with --control 1"):
        survey(own.aws, own.request(NAME, subnets=own.subnets[:1]).job)
    with pytest.raises(EnvironmentFailure, match="has no control nodes in us-east-1"):
        asleep.wake(own.aws, NAME)


@pytest.mark.parametrize(
    ("kind", "why"),
    [("t4g.small", "it is for arm64"), ("t3.nano", "it has 512"), ("t2.small", "NVMe")],
)
def test_a_type_that_could_not_be_one_is_refused(own: Own, kind: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"--control-type {kind}: .*{why}.*: use t3.small"):
        survey(own.aws, request(NAME, 2, control_type=kind).job)


def resources(own: Own) -> list[dict[str, str]]:
    stack = own.aws.cloudformation.describe_stack_resources(StackName=ITS.stack)
    found: list[dict[str, str]] = stack["StackResources"]
    return found


# -- the job -------------------------------------------------------------------------------------

SCRIPT = """
import time
from pathlib import Path

import torch
import torch.distributed as dist
import spotelastic as se

dist.init_process_group("gloo")
torch.manual_seed(0)
with se.Checkpointer({{"model": torch.nn.Linear(2, 1)}}) as checkpoint:
    step = checkpoint.restore()
    while True:
        dist.barrier()
        step += 1
        if dist.get_rank() == 0:
            with Path({steps!r}).open("a") as file:
                file.write(f"{{step}}\\n")
        checkpoint.step(step)
        time.sleep(0.05)
"""


@pytest.mark.soak
def test_a_job_trains_on_without_it_and_nodes_join_when_it_is_restored(tmp_path: Path) -> None:
    script = SCRIPT.format(steps=str(tmp_path / "steps"))
    settings = Settings(1, 2, workers=1)
    with running_trial(
        tmp_path, boot=cloud.BOOT, script=script, settings=settings, etcd_members=ONE
    ) as trial:
        before = trial.status(lambda s: s.step > 20 and len(training(s)) == 2, "two that train")
        snapshots.save(trial.cluster.objects, trial.cluster.spec.etcd, trial.tls, wall())
        the_control_node_is_lost_with_its_disk(trial)
        reached = last_step(tmp_path)
        eventually(lambda: True if last_step(tmp_path) > reached + 50 else None, "steps without it")
        assert alive(trial) == training(before)
        asleep.wake(trial.cluster.aws, trial.cluster.name)
        back = trial.status(
            lambda s: s.at > before.at and s.step > reached and len(training(s)) == 2, "its status"
        )
        found = Generations(trial.cluster.objects).newest()
        assert found is not None and (found.number, bool(found.snapshot)) == (2, True)
        assert training(back) == training(before), "nobody had to begin anew"
        lost = min(training(back))
        trial.faults.kill(lost)
        trial.status(
            lambda s: lost not in training(s) and len(training(s)) == 2, "another one that joined"
        )


def the_control_node_is_lost_with_its_disk(trial: Trial) -> None:
    """Its group starts another one only when it is let: until then the job is without."""
    aws, name = trial.cluster.aws, trial.cluster.name
    tags = [{"Name": "tag:spotelastic:cluster", "Values": [name]}]
    tags.append({"Name": "tag:spotelastic:member", "Values": ["a"]})
    (disk,) = aws.ec2.describe_volumes(Filters=tags)["Volumes"]
    aws.ec2.detach_volume(VolumeId=disk["VolumeId"], Force=True)
    aws.ec2.delete_volume(VolumeId=disk["VolumeId"])
    group = Names(name).control("a")
    aws.autoscaling.update_auto_scaling_group(
        AutoScalingGroupName=group, MinSize=0, DesiredCapacity=0
    )
    eventually(lambda: None if alive(trial, "control") else True, "the end of the control node")


def alive(trial: Trial, role: str = "worker") -> set[str]:
    found = autoscaling.instances(trial.cluster.aws, trial.cluster.name, role)
    return {each.id for each in found if each.state in ALIVE}


def training(status: Status) -> set[str]:
    return {node.id for node in status.nodes if node.state == "training"}


def last_step(folder: Path) -> int:
    return int((folder / "steps").read_text().split()[-1])
