"""A cluster's control plane on the local cloud: three etcd members, one controller that leads.

Workers boot into nothing here, so that only what the controller does can bring them and end them.
A test is a story of several steps, because a cluster takes seconds to start.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.aws.cluster_requests import changed
from support.aws.policies import keeps_to_its_cluster, role_of
from support.clusters.trial_cluster import (
    NAME,
    ONE_LEADS,
    Trial,
    controllers,
    eventually,
    nothing_is_left,
    running_trial,
)
from support.processes.webhooks import Webhook, webhook

from spotelastic.aws.base.names import CONTROL_TYPE, Names
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.clusters import teardown
from spotelastic.aws.compute import autoscaling, worker_groups
from spotelastic.aws.compute.estimate import besides
from spotelastic.aws.compute.prices import shipped_table
from spotelastic.clock import wall
from spotelastic.cloud.model import ALIVE, UNATTENDED, Instance
from spotelastic.local import cloud
from spotelastic.model.job import Capacity, Job
from spotelastic.store.codec import encode
from spotelastic.store.etcd_server.process import find_leader
from spotelastic.store.keys import Keys

KEYS = Keys(NAME)


# -- the stories ---------------------------------------------------------------------------------


@pytest.mark.soak
def test_the_control_plane_outlives_each_of_its_parts(trial: Trial, hook: Webhook) -> None:
    three_members_serve_and_one_controller_leads(trial)
    people_are_told_that_the_deadline_is_near(hook)
    a_killed_leader_is_succeeded_while_its_node_stays(trial)
    the_next_leader_tells_what_is_new_and_nothing_again(trial, hook)
    an_etcd_member_that_dies_is_started_again_and_the_outage_is_on_record(trial)
    control_nodes_have_logged_records(trial)


@pytest.mark.soak
def test_from_up_to_down(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    what_the_laptop_finds_is_what_was_created(trial)
    bringing_up_again_changes_what_differs_and_nothing_else(trial)
    a_zone_without_capacity_is_left_for_another(trial)
    a_noticed_worker_is_replaced_before_it_is_gone(trial)
    nobody_looks_after_the_workers_and_aws_ends_them(trial)
    when_the_job_ends_the_workers_go_and_the_report_is_there(trial)
    the_control_role_could_do_what_it_did_and_nothing_to_another_cluster(trial)
    a_deleted_cluster_leaves_nothing_but_its_objects(trial)
    where_creating_fails_half_way_nothing_is_left(trial, monkeypatch)


@pytest.fixture
def hook() -> Iterator[Webhook]:
    with webhook() as hook:
        yield hook


@pytest.fixture
def trial(tmp_path: Path, hook: Webhook) -> Iterator[Trial]:
    """Its deadline is near, of which people are told."""
    more: dict[str, Any] = {
        "env": {"SPOTELASTIC_LOG_FORMAT": "json"},
        "notify": {"1-json": hook.url},
        "capacity": Capacity(deadline=wall() + 3000.0, within=36000.0),
    }
    with running_trial(tmp_path, **more) as running:
        yield running


# -- the steps -----------------------------------------------------------------------------------


def three_members_serve_and_one_controller_leads(trial: Trial) -> None:
    seen = trial.status(
        lambda s: controllers(s) == ONE_LEADS, "three controllers, one of which leads"
    )
    assert len({node.zone for node in seen.nodes if node.role == "control"}) == 3
    assert seen.leader in {node.id for node in seen.nodes if node.state == "leading"}
    assert len(set(trial.members().values())) == 3


def people_are_told_that_the_deadline_is_near(hook: Webhook) -> None:
    hook.wait(1)
    assert [each.partition(" in ")[0] for each in hook.titles] == ["trial reaches its deadline"]


def the_next_leader_tells_what_is_new_and_nothing_again(trial: Trial, hook: Webhook) -> None:
    with trial.store() as store:
        store.put(KEYS.job, encode(Job("failed", wall(), "rank 0 failed")))
        hook.wait(2)
        store.delete(KEYS.job)
    assert hook.titles[1:] == ["trial has failed"]
    told = trial.event("notify", lambda event: "has failed" in event.message)
    assert told.data["id"].startswith("ended ")


def control_nodes_have_logged_records(trial: Trial) -> None:
    """All but what each says before it has read the job."""
    info = cloud.find()
    assert info is not None
    told = []
    for machine in autoscaling.instances(trial.cluster.aws, NAME, "control"):
        lines = Path(info.folder, "instances", machine.id, "console.log").read_text().splitlines()
        assert lines[0].startswith(f"boot: {machine.id} in ")
        records = [json.loads(line) for line in lines if not line.startswith("boot: ")]
        assert {each["node"] for each in records} == {machine.id}
        told += [each["message"] for each in records]
    assert "leads" in told and "etcd ended with -9: starting it again" in told


def what_the_laptop_finds_is_what_was_created(trial: Trial) -> None:
    found = clusters.find(NAME)
    assert found is not None
    assert found.spec == trial.cluster.spec
    assert clusters.all_names() == (NAME,)
    assert clusters.find("other") is None
    machines = autoscaling.instances(trial.cluster.aws, NAME, "worker")
    assert all(machine.spot for machine in machines)
    assert len(machines) == 2


def bringing_up_again_changes_what_differs_and_nothing_else(trial: Trial) -> None:
    before = {machine.id for machine in autoscaling.instances(trial.cluster.aws, NAME)}
    again = clusters.create(trial.request, lambda _: None)
    assert again.spec.etcd == trial.cluster.spec.etcd
    other_types = changed(trial.request, instance_types=("c5.large", "m5.large"))
    clusters.create(other_types, lambda _: None)
    assert {machine.id for machine in autoscaling.instances(trial.cluster.aws, NAME)} == before
    assert len(trial.group().members) == 2


def a_zone_without_capacity_is_left_for_another(trial: Trial) -> None:
    victim, other = eventually(lambda: both_run(trial), "two workers that run")
    assert victim.zone == other.zone, "packed into one"
    before = trial.group().subnets
    trial.faults.set_capacity("m5.large", victim.zone, 0)
    trial.faults.set_capacity("c5.large", victim.zone, 1)
    trial.faults.kill(victim.id)

    def left() -> bool | None:
        trial.faults.set_capacity("c5.large", victim.zone, 1)  # upon which the group tries again
        return True if trial.group().subnets != before else None

    eventually(left, "other subnets")
    told = trial.event("zone")
    assert told.data["left"] == victim.zone
    eventually(lambda: True if len(staying(trial)) == 2 else None, "a worker in another zone")
    zones = {m.id: m.zone for m in autoscaling.instances(trial.cluster.aws, NAME, "worker")}
    assert {zones[name] for name in staying(trial)} == {victim.zone, told.data["zone"]}
    both = autoscaling.groups(trial.cluster.aws, (Names(NAME).workers, Names(NAME).on_demand))
    assert len({group.subnets for group in both.values()}) == 1
    trial.faults.set_capacity("c5.large", victim.zone, 100)


def both_run(trial: Trial) -> list[Instance] | None:
    found = autoscaling.instances(trial.cluster.aws, NAME, "worker")
    running = [machine for machine in found if machine.state == "running"]
    return running if len(running) == 2 else None


def staying(trial: Trial) -> set[str]:
    return {place.instance for place in trial.group().members if not place.leaving}


def a_killed_leader_is_succeeded_while_its_node_stays(trial: Trial) -> None:
    with trial.store() as store:
        before = store.get(KEYS.leader)
        assert before is not None
        trial.faults.kill_process(before.data.decode(), "se-controller")

        def succeeded() -> str | None:
            held = store.get(KEYS.leader)
            return None if held is None or held.created == before.created else held.data.decode()

        after = eventually(succeeded, "another term")
    trial.status(
        lambda s: s.leader == after and controllers(s) == ONE_LEADS,
        "the new leader's account, with the killed one standing by",
    )


def an_etcd_member_that_dies_is_started_again_and_the_outage_is_on_record(
    trial: Trial,
) -> None:
    leads = trial.status(lambda s: bool(s.etcd_leader), "an etcd leader").etcd_leader
    trial.faults.kill_process(leads, "etcd")
    outage = trial.event("etcd")
    assert outage.node == leads
    assert outage.data["at"] < outage.data["back_at"]
    assert len(trial.members()) == 3
    eventually(lambda: find_leader(trial.cluster.spec.etcd, tls=trial.tls), "a leader")


def a_noticed_worker_is_replaced_before_it_is_gone(trial: Trial) -> None:
    victim = trial.group().members[0].instance
    trial.faults.interrupt(victim, 120.0)
    notice = trial.event("notice", lambda event: event.node == victim)
    assert notice.data["source"] == "sqs"

    def replaced() -> bool | None:
        staying = [place for place in trial.group().members if not place.leaving]
        names = {place.instance for place in staying}
        return True if len(names) == 2 and victim not in names else None

    assert eventually(replaced, "a replacement")
    # Its node never registered, so there is nothing to wait for at the hook: it does not get the
    # two minutes that it would have had.
    eventually(lambda: None if trial.group().member(victim) else True, "the end of the drain")


def nobody_looks_after_the_workers_and_aws_ends_them(trial: Trial) -> None:
    """The leader has set the switch an hour ahead; here it acts at once, without the leader."""
    scaling, group = trial.cluster.aws.autoscaling, Names(NAME).workers
    (switch,) = scaling.describe_scheduled_actions(AutoScalingGroupName=group)[
        "ScheduledUpdateGroupActions"
    ]
    assert switch["DesiredCapacity"] == 0
    assert switch["StartTime"].timestamp() > time.time() + UNATTENDED / 2
    scaling.suspend_processes(AutoScalingGroupName=group, ScalingProcesses=["Launch"])
    worker_groups.postpone(trial.cluster.aws, group, time.time() + 1.0)
    eventually(lambda: None if trial.group().members else True, "workers that AWS has ended")
    scaling.resume_processes(AutoScalingGroupName=group, ScalingProcesses=["Launch"])
    eventually(
        lambda: True if len(trial.group().members) == 2 else None, "the leader's own workers again"
    )


def the_control_role_could_do_what_it_did_and_nothing_to_another_cluster(trial: Trial) -> None:
    """From the calls that this very run made."""
    done = {
        "autoscaling:PutScheduledUpdateGroupAction",
        "autoscaling:SetDesiredCapacity",
        "autoscaling:TerminateInstanceInAutoScalingGroup",
        "ec2:AttachNetworkInterface",
        "ec2:AttachVolume",
        "s3:PutObject",
        "sqs:ReceiveMessage",
    }
    role = role_of(trial.cluster.aws, NAME, "ControlRole")
    keeps_to_its_cluster(role, NAME, trial.faults.calls(), done)


def when_the_job_ends_the_workers_go_and_the_report_is_there(trial: Trial) -> None:
    with trial.store() as store:
        store.put(KEYS.job, encode(Job("succeeded", time.time(), "done", final_step=7)))
    ended = trial.status(lambda s: s.state == "succeeded", "the end of the job")
    assert ended.step == 7
    report = trial.cluster.objects.report()
    assert report is not None
    assert report.job.state == "succeeded"
    assert 0 < report.cost_usd < report.on_demand_usd
    found = autoscaling.instances(trial.cluster.aws, NAME, "control")
    alive = [machine for machine in found if machine.state in ALIVE]
    extra = sum(besides("control", public=machine.public) for machine in alive)
    each = shipped_table().usd_per_hour[CONTROL_TYPE]
    assert report.control_usd_per_hour == pytest.approx(3 * each + extra)
    assert report.total_usd == pytest.approx(report.cost_usd + report.control_usd)

    def empty() -> bool | None:
        found = trial.group()
        return True if found.desired == 0 and not found.members else None

    assert eventually(empty, "an empty worker group")


def a_deleted_cluster_leaves_nothing_but_its_objects(trial: Trial) -> None:
    aws = trial.cluster.aws
    teardown.delete(NAME, aws=aws)
    nothing_is_left(aws)
    assert trial.cluster.objects.report() is not None
    teardown.delete(NAME, keep_data=False, aws=aws)
    assert trial.cluster.objects.report() is None


def where_creating_fails_half_way_nothing_is_left(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(worker_groups, "ensure", interrupted)
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        clusters.create(trial.request, said.append, trial.cluster.aws)
    nothing_is_left(trial.cluster.aws)
    assert any("failed: deleting what was created" in line for line in said)
