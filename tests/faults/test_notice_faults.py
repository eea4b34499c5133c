"""Whole jobs on the local cloud whose notices come badly: late, twice, never, or many at once.

Each job tells every step: what it computed is what a run without interruptions computes.
"""

import json
import uuid
from collections.abc import Set
from functools import partial
from pathlib import Path

import pytest
from support.clusters.running_job import SAVES, finishes, is_whole, machines, running_job, training
from support.clusters.trial_cluster import NAME, Trial, eventually

from spotelastic.aws.base.names import Names
from spotelastic.aws.compute import worker_groups
from spotelastic.aws.messaging import command_queue
from spotelastic.model.job import Settings
from spotelastic.model.progress import Event, Interruption, Report, Status
from spotelastic.model.requests.command import Command

pytestmark = pytest.mark.soak


def test_notices_that_come_late_twice_by_one_way_or_never(tmp_path: Path) -> None:
    with running_job(tmp_path, settings=Settings(1, 2, workers=1, **SAVES)) as trial:
        whole = nobody_s_messages_come_too(trial, is_whole(trial))
        by_bus = the_metadata_is_away_and_the_bus_tells_thrice(trial, whole)
        by_imds = the_bus_loses_all(trial, is_whole(trial, without={by_bus}))
        before = is_whole(trial, without={by_bus, by_imds})
        unwarned = nobody_tells(trial, before)
        withdrawn = a_notice_is_withdrawn(trial, is_whole(trial, without={unwarned}))
        is_whole(trial, without={withdrawn})
        nothing_is_queued(trial)
        report = finishes(trial, tmp_path)
        assert len(machines(trial)) == 6, "four were replaced, each once"
    rows = by_node(report)
    assert {node: (row.kind, row.told_by) for node, row in rows.items()} == {
        by_bus: ("spot_interruption", "sqs"),
        by_imds: ("spot_interruption", "imds"),
        unwarned: ("loss", rows[unwarned].told_by),
        withdrawn: ("spot_interruption", rows[withdrawn].told_by),
    }
    assert rows[unwarned].told_by in ("cloud", "lease")
    assert {rows[node].steps_lost for node in (by_bus, by_imds, withdrawn)} == {0}
    assert (rows[unwarned].saved_step or 0) >= before.committed


def test_notices_for_rank_0_while_a_job_grows_and_then_for_all_at_once(tmp_path: Path) -> None:
    with running_job(tmp_path, settings=Settings(1, 2, workers=1, **SAVES)) as trial:
        first = rank_0_has_notice_while_others_join(trial, is_whole(trial))
        four = training(is_whole(trial, 4, without={first}))
        for node in four:
            trial.faults.interrupt(node, 30.0)
        is_whole(trial, 4, without=four)
        report = finishes(trial, tmp_path)
        assert len(machines(trial)) == 2 + 2 + 1 + 4, "each was replaced, once"
    rows = by_node(report)
    assert {node: (row.kind, row.steps_lost) for node, row in rows.items()} == dict.fromkeys(
        {first, *four}, ("spot_interruption", 0)
    )


def test_a_reboot_in_ten_minutes_and_a_node_that_somebody_ends_by_hand(tmp_path: Path) -> None:
    with running_job(tmp_path, settings=Settings(1, 2, workers=1, **SAVES)) as trial:
        rebooted = a_reboot_is_announced(trial, is_whole(trial))
        ended = somebody_ends_a_node(trial, is_whole(trial, without={rebooted}))
        is_whole(trial, without={ended})
        nothing_is_queued(trial)
        report = finishes(trial, tmp_path)
        assert len(machines(trial)) == 4, "two were replaced, each once"
    rows = by_node(report)
    assert {node: row.kind for node, row in rows.items()} == {
        rebooted: "planned",
        ended: "by_hand",
    }
    assert rows[rebooted].steps_lost == 0


def by_node(report: Report) -> dict[str, Interruption]:
    rows = {row.node: row for row in report.interruptions if row.kind != "etcd"}
    assert len(rows) == len(report.interruptions), "each once"
    return rows


def rank_0(status: Status) -> str:
    (node,) = (node.id for node in status.nodes if 0 in node.ranks)
    return node


def send(trial: Trial, body: str) -> None:
    url = command_queue.queue_url(trial.cluster.aws, Names(NAME).queue)
    trial.cluster.aws.sqs.send_message(QueueUrl=url, MessageBody=body)


def nobody_s_messages_come_too(trial: Trial, now: Status) -> Status:
    """What is no message, and a warning about somebody else's node."""
    foreign = {
        "id": str(uuid.uuid4()),
        "source": "aws.ec2",
        "detail-type": "EC2 Spot Instance Interruption Warning",
        "time": "2026-01-01T00:00:00Z",
        "detail": {"instance-id": "i-00000000000000000", "instance-action": "terminate"},
    }
    before = now.messages
    for body in ("{", "[]", json.dumps(foreign)):
        send(trial, body)

    def counted(status: Status, fate: str) -> int:
        return status.messages.get(fate, 0) - before.get(fate, 0)

    return trial.status(
        lambda s: (counted(s, "malformed"), counted(s, "foreign")) == (2, 1), "three that count"
    )


def the_metadata_is_away_and_the_bus_tells_thrice(trial: Trial, now: Status) -> str:
    victim = rank_0(now)
    trial.faults.set_metadata(victim, "unavailable")
    trial.faults.set_delivery(4.0, 0.5, 2.0)
    trial.faults.interrupt(victim, 15.0)
    return victim


def the_bus_loses_all(trial: Trial, now: Status) -> str:
    victim = rank_0(now)
    trial.faults.set_delivery()
    trial.faults.set_metadata(victim, "expired")
    trial.faults.interrupt(victim, 15.0)
    return victim


def nobody_tells(trial: Trial, now: Status) -> str:
    """The bus loses all, still."""
    victim = rank_0(now)
    trial.faults.set_metadata(victim, "hangs")
    trial.faults.interrupt(victim, 2.0)
    return victim


def a_notice_is_withdrawn(trial: Trial, now: Status) -> str:
    """But the node is replaced by then: nobody can know."""
    victim = rank_0(now)
    trial.faults.set_delivery(0.0)
    trial.faults.interrupt(victim, 15.0)
    trial.event("notice", lambda e: (e.node, e.data["source"]) == (victim, "imds"))
    trial.faults.withdraw(victim)
    eventually(lambda: machines(trial)[victim].state == "terminated" or None, "an end of its node")
    return victim


def is_told_of(victim: str, source: str, event: Event) -> bool:
    return (event.node, event.data.get("source")) == (victim, source)


def a_reboot_is_announced(trial: Trial, now: Status) -> str:
    """And the node is replaced ahead, because nothing else is missing."""
    victim = rank_0(now)
    trial.faults.schedule(victim, "system-reboot", 600.0)
    for source in ("imds", "sqs"):
        trial.event("scheduled", partial(is_told_of, victim, source))
    trial.event("scheduled", lambda e: e.node == victim and "is replaced ahead" in e.message)
    return victim


def somebody_ends_a_node(trial: Trial, now: Status) -> str:
    victim = rank_0(now)
    trial.cluster.aws.ec2.terminate_instances(InstanceIds=[victim])
    return victim


def rank_0_has_notice_while_others_join(trial: Trial, now: Status) -> str:
    worker_groups.allow(trial.cluster.aws, Names(NAME).workers, 4)
    command_queue.send(trial.cluster.aws, NAME, Command("larger", "scale", max_nodes=4))
    old = training(now)

    def joining(status: Status) -> Set[str]:
        return {n.id for n in status.nodes if n.role == "worker" and n.state == "waiting"} - old

    seen = trial.status(lambda s: bool(joining(s)) or len(training(s)) > 2, "one that joins")
    victim = rank_0(seen)
    trial.faults.interrupt(victim, 15.0)
    return victim


def nothing_is_queued(trial: Trial) -> None:
    counts = "ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"

    def look() -> bool | None:
        sqs = trial.cluster.aws.sqs
        url = command_queue.queue_url(trial.cluster.aws, Names(NAME).queue)
        found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=counts)["Attributes"]
        return all(found[count] == "0" for count in counts) or None

    eventually(look, "an empty queue")
