"""A whole job on a local cloud that is as unkind as AWS.

Each turn of `make soak` has one condition, in rotation; without a turn there are all, one after the
other, and `SPOTELASTIC_LOCAL_CONDITIONS` names others. In each, two nodes have notice in the same
second, and one is lost without.
"""

import os
from pathlib import Path

import pytest
from support.clusters.local_cloud import environment
from support.clusters.running_job import SAVES, finishes, is_whole, machines, running_job, training
from support.clusters.trial_cluster import Trial
from support.unkind.conditions import KIND, VARIABLE

from spotelastic.model.job import Settings
from spotelastic.model.progress import Report

pytestmark = [pytest.mark.soak, pytest.mark.every_turn, pytest.mark.timeout(600)]

CONDITIONS = (
    "stale=3",
    "throttled=0.2",
    "slow=0.02",
    "late=2.4",  # two minutes, as slow as the others
    "lost=0.5",
    "duplicated=0.5,late=1",
    "together=1",
    "slow=0.02,stale=2,throttled=0.1,late=2.4,duplicated=0.3,lost=0.3",
)


def chosen() -> tuple[str, ...]:
    given, turn = os.environ.get(VARIABLE), os.environ.get("SOAK_TURN")
    if given:
        return (given,)
    if turn:
        return (f"{CONDITIONS[int(turn) % len(CONDITIONS)]},seed={turn}",)
    return CONDITIONS


@pytest.mark.parametrize("conditions", chosen())
def test_each_node_is_replaced_once_and_every_step_is_right(
    tmp_path: Path, conditions: str
) -> None:
    with (
        environment(**{VARIABLE: conditions, "AWS_MAX_ATTEMPTS": "6"}),
        running_job(tmp_path, settings=Settings(1, 3, workers=1, **SAVES)) as trial,
    ):
        warned = two_have_notice_in_one_second(trial)
        lost = one_is_lost(trial, warned)
        is_whole(trial, 3, without={*warned, lost})
        trial.faults.set_conditions(KIND)  # the test itself looks at what there is
        report = finishes(trial, tmp_path)
        gone = by_node(report)
        assert {*warned, lost} <= gone.keys()
        assert len(machines(trial)) == 3 + len(gone), "each was replaced, once"
        if "together" not in conditions:
            assert gone.keys() == {*warned, lost}
    assert {gone[node] for node in warned} == {"spot_interruption"}
    assert gone[lost] == "loss"


def two_have_notice_in_one_second(trial: Trial) -> set[str]:
    warned = set(sorted(training(is_whole(trial, 3)))[:2])
    for node in warned:
        trial.faults.interrupt(node, 20.0)
    return warned


def one_is_lost(trial: Trial, before: set[str]) -> str:
    lost = min(training(is_whole(trial, 3, without=before)))
    trial.faults.kill(lost)
    return lost


def by_node(report: Report) -> dict[str, str]:
    """The kind of each node's interruption."""
    rows = {row.node: str(row.kind) for row in report.interruptions if row.kind != "etcd"}
    assert len(rows) == len(report.interruptions), "each once"
    return rows
