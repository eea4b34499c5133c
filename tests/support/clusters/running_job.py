"""Runs a job on its own local cloud, with a script that reports every step (`train_exactly`)."""

import math
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from support.clusters.trial_cluster import (
    NAME,
    ONE_LEADS,
    Trial,
    controllers,
    eventually,
    running_trial,
)
from support.places import TESTS
from support.training import exactly
from support.training.exactly import SCRIPT

from spotelastic.aws.compute import autoscaling
from spotelastic.aws.compute.prices import AwsPrices
from spotelastic.client.published import cost_of
from spotelastic.cloud.bucket import USAGE
from spotelastic.cloud.model import ALIVE, Instance
from spotelastic.controller.accounting.ledger_events import entries
from spotelastic.controller.accounting.usage import Usage
from spotelastic.controller.model.observation import account
from spotelastic.local import cloud
from spotelastic.model.interval import Interval
from spotelastic.model.progress import LEDGER, Event, Report, Status

TYPE = "c5.large"
STEP_TIME = "0.05"
NONE: Mapping[str, str] = {}
SAVES: Mapping[str, Any] = {"snapshot_every": Interval(5), "checkpoint_every": Interval(20)}


@contextmanager
def running_job(folder: Path, *, more: Mapping[str, str] = NONE, **request: Any) -> Iterator[Trial]:
    """`more`: further variables of the job."""
    with running_trial(
        folder,
        boot=cloud.BOOT,
        script=SCRIPT.read_text(),
        args=(str(folder), STEP_TIME),
        env={"PYTHONPATH": str(TESTS), **more},
        instance_types=(TYPE,),
        **request,
    ) as trial:
        yield trial


def machines(trial: Trial, role: str = "worker") -> dict[str, Instance]:
    """Every one that there ever was."""
    return {m.id: m for m in autoscaling.instances(trial.cluster.aws, NAME, role)}


def training(status: Status) -> set[str]:
    return {node.id for node in status.nodes if node.state == "training"}


def is_whole(trial: Trial, size: int = 2, without: Set[str] = frozenset()) -> Status:
    """So many nodes train that are none of these and have committed; all controllers are there."""

    def whole(status: Status) -> bool:
        return len(training(status) - without) == size and controllers(status) == ONE_LEADS

    seen = trial.status(whole, "a whole job")
    return trial.status(lambda s: whole(s) and s.committed > seen.step, "a commit of its own")


def no_worker_lives(trial: Trial) -> None:
    eventually(
        lambda: all(m.state not in ALIVE for m in machines(trial).values()) or None,
        "an end of all workers",
    )


def finishes(trial: Trial, folder: Path) -> Report:
    """The report of the job, whose steps were right and are all accounted for."""
    (folder / "stop").touch()
    trial.status(lambda status: status.state == "succeeded", "the end of the job")
    no_worker_lives(trial)
    last, report = exactly.check(folder), trial.cluster.objects.report()
    assert report is not None
    lost = sum(row.steps_lost or 0 for row in report.interruptions)
    assert (report.job.final_step, report.job.steps_run) == (last, last + lost), report
    its_events_carry_the_ledger(trial, report)
    return the_bill_adds_up(trial)


def its_events_carry_the_ledger(trial: Trial, report: Report) -> None:
    """Every row whose price is known is told, and none twice."""
    due = {account(event) for event in entries(report, 0.0)}

    def all_told() -> list[Event] | None:
        told = [event for event in trial.cluster.objects.events() if event.kind == LEDGER]
        return told if due <= set(map(account, told)) else None

    told = eventually(all_told, f"events for {len(due)} rows")
    assert len(set(map(account, told))) == len(told), told


def the_bill_adds_up(trial: Trial) -> Report:
    """Every worker is on it once, from its launch on and at EC2's price; the report of it then."""
    known, prices = machines(trial), AwsPrices(trial.cluster.aws)

    def all_ended() -> list[Usage] | None:
        bill = msgspec.json.decode(trial.cluster.objects.get(USAGE) or b"[]", type=list[Usage])
        workers = [item for item in bill if item.role == "worker"]
        return workers if workers and all(item.end for item in workers) else None

    bill = eventually(all_ended, "a bill on which all workers have ended")
    assert sorted(item.instance for item in bill) == sorted(known)
    for item in bill:
        machine = known[item.instance]
        price = prices.spot(TYPE, machine.zone)
        assert (item.start, item.usd_per_hour) == (machine.launched_at, price), item
    total = sum(item.usd(item.start, item.end or 0.0) for item in bill)

    def told() -> Report | None:
        report = trial.cluster.objects.report()
        return report if report and math.isclose(report.cost_usd, total) else None

    report = eventually(told, f"a report of {total} USD")
    assert math.isclose(cost_of(trial.cluster).cost_usd, total)
    parts = [row.usd for row in report.interruptions]
    assert all(part is None or part >= 0.0 for part in parts), parts
    assert sum(part or 0.0 for part in parts) <= total
    return report
