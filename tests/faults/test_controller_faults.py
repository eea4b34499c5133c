"""Whole jobs on the local cloud, of which a controller stands still, or whose market turns against
them.

Each job tells every step: what it computed is what a run without interruptions computes.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.clusters.running_job import (
    SAVES,
    TYPE,
    finishes,
    is_whole,
    machines,
    no_worker_lives,
    running_job,
    training,
)
from support.clusters.trial_cluster import ONE_LEADS, Trial, controllers, eventually

from spotelastic.local import cloud
from spotelastic.model.job import Settings
from spotelastic.model.progress import Status

pytestmark = pytest.mark.soak


def said(control: str) -> str:
    """All that a control node has said so far."""
    info = cloud.find()
    assert info is not None
    return Path(info.folder, "instances", control, "console.log").read_text()


@contextmanager
def standing_still(trial: Trial, control: str) -> Iterator[None]:
    """The controller there, as on a machine that hangs."""
    processes = trial.faults.processes(control)
    (pid,) = (each.pid for each in processes if each.role == "se-controller")
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_leader_that_stood_still_does_nothing_about_what_another_one_handles(
    tmp_path: Path,
) -> None:
    with running_job(tmp_path, settings=Settings(1, 2, workers=1, **SAVES)) as trial:
        before = trial.status(
            lambda s: len(training(s)) == 2 and s.committed > 0 and controllers(s) == ONE_LEADS,
            "a job that trains",
        )
        victim, other = sorted(training(before))
        with standing_still(trial, before.leader):
            seen = trial.status(lambda s: s.leader not in ("", before.leader), "another leader")
            heard = len(said(before.leader))
            trial.faults.interrupt(victim, 15.0)
        after = trial.status(
            lambda s: len(training(s) - {victim}) == 2 and controllers(s) == ONE_LEADS,
            "a job with another node",
        )
        assert after.leader == seen.leader
        assert "leads" in said(seen.leader)
        assert "lost" in said(before.leader)[heard:]
        assert " goes: " not in said(before.leader)[heard:]
        ended = [line for line in said(seen.leader).splitlines() if f"{victim} goes: " in line]
        assert len(ended) == 1
        eventually(
            lambda: machines(trial)[victim].state == "terminated" or None, "an end of the victim"
        )
        report = finishes(trial, tmp_path)
        assert len(machines(trial)) == 3, "one was replaced, once"
        assert {victim, other} < set(machines(trial))
        (row,) = report.interruptions
        assert (row.kind, row.node, row.steps_lost) == ("spot_interruption", victim, 0)


def test_a_market_that_turns_against_a_job_costs_it_no_committed_step(tmp_path: Path) -> None:
    with running_job(tmp_path, settings=Settings(1, 2, workers=1, **SAVES)) as trial:
        noticed = the_node_of_rank_0_has_five_seconds(trial, is_whole(trial))
        noticed |= all_capacity_is_gone_for_a_while(trial, is_whole(trial, without=noticed))
        before = is_whole(trial, without=noticed)
        lost = a_zone_is_lost_with_its_control_node(trial, before)
        is_whole(trial, without=noticed | lost)
        report = finishes(trial, tmp_path)
        assert trial.group().desired == 0, "nothing is launched for a job that has ended"
    rows = {row.node: row for row in report.interruptions if row.kind != "etcd"}
    assert (len(noticed), len(lost)) == (3, 2)
    assert {node: row.kind for node, row in rows.items()} == {
        **dict.fromkeys(noticed, "spot_interruption"),
        **dict.fromkeys(lost, "loss"),
    }
    assert {rows[node].steps_lost for node in noticed} == {0}
    assert all((rows[node].saved_step or 0) >= before.committed for node in lost)


def the_node_of_rank_0_has_five_seconds(trial: Trial, now: Status) -> set[str]:
    (victim,) = (node.id for node in now.nodes if 0 in node.ranks)
    trial.faults.interrupt(victim, 5.0)
    return {victim}


def all_capacity_is_gone_for_a_while(trial: Trial, now: Status) -> set[str]:
    """All zones are dry, and both nodes have a notice."""
    zones = trial.cluster.aws.ec2.describe_availability_zones()["AvailabilityZones"]
    for zone in zones:
        trial.faults.set_capacity(TYPE, zone["ZoneName"], 0)
    for node in training(now):
        trial.faults.interrupt(node, 15.0)
    no_worker_lives(trial)
    assert trial.status(lambda s: not training(s), "a job that waits").state == "running"
    for zone in zones:
        trial.faults.set_capacity(TYPE, zone["ZoneName"], 100)
    return training(now)


def a_zone_is_lost_with_its_control_node(trial: Trial, now: Status) -> set[str]:
    """The one that both workers are in: nobody is warned, and no memory of a save is left.

    On a slow cloud the workers may have moved to a zone without a control node. Then another
    zone's is lost.
    """
    (zone,) = {node.zone for node in now.nodes if node.id in training(now)}
    living = {node.id: node for node in now.nodes if node.state != "gone"}
    lost = {name: node.role for name, node in living.items() if node.zone == zone}
    if "control" not in lost.values():
        lost |= {next(name for name, node in living.items() if node.role == "control"): "control"}
    assert sorted(lost.values()) == ["control", "worker", "worker"]
    for node in lost:
        trial.faults.kill(node)
    return training(now)
