"""Nodes of sharded jobs vanish one after the other: the run ends as one that was not interrupted.

Each time the state comes from the slots of those that live, and from the replica that the lost
node's partner keeps. Survivors go on in the same processes.
"""

import random
import uuid
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from support.processes.run_launcher import Run, replicated, running, vanish
from support.store.etcd_members import wait_until

from spotelastic.model.round import Round
from spotelastic.store.etcd_server.process import standalone

pytestmark = [pytest.mark.faults, pytest.mark.soak, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parent.parent / "support/scripts/train_replicated.py"
ALL = ("a", "b", "c", "d")
EVERY = 10
"""Steps between two snapshots."""
STEPS, STEP_TIME = 160, 0.02
LOSSES = 3


@pytest.mark.parametrize("kind", ["fsdp", "hybrid", "grid"])
def test_nodes_lost_one_after_the_other_cost_the_steps_since_a_snapshot(
    tmp_path: Path, kind: str
) -> None:
    with standalone(tmp_path / "etcd") as etcd:
        with job(etcd.endpoint, tmp_path / "whole", kind) as run:
            add(run, *ALL)
            ends_well(run)
        with job(etcd.endpoint, tmp_path / "interrupted", kind) as run:
            add(run, *ALL)
            begun = run.trains(*ALL)
            for number in range(1, LOSSES + 1):
                run.trains(*ALL, beyond=number * STEPS // (LOSSES + 2))
                begun = one_is_lost(run, begun, kind)
            ends_well(run)
    assert sums(tmp_path / "interrupted") == sums(tmp_path / "whole")


def job(endpoint: str, folder: Path, kind: str) -> AbstractContextManager[Run]:
    folder.mkdir()
    script = str(SCRIPT), str(folder), str(STEPS), str(STEP_TIME), kind
    flags = ("--replicate", "1GB", "--checkpoint-every", str(10 * STEPS))
    return running(endpoint, uuid.uuid4().hex, folder, nnodes="4:4", script=script, flags=flags)


def add(run: Run, *nodes: str) -> None:
    for node in nodes:
        run.add(node, env={"PYTHONPATH": str(SCRIPT.parents[2])})


def ends_well(run: Run) -> None:
    assert {node: run.nodes[node].wait() for node in ALL} == dict.fromkeys(ALL, 0)


def one_is_lost(run: Run, begun: Round, kind: str) -> Round:
    """At a random moment. Returns the round that goes on without a step lost that was copied."""
    if kind != "hybrid":  # where the other group of shards has the same, there is no replica
        wait_until(
            lambda: all(replicated(node, begun) for node in run.nodes.values()), "all have replicas"
        )
    run.lets_pass(random.uniform(0, EVERY * STEP_TIME))
    lost = random.choice(ALL)
    pids = {node: run.nodes[node].workers() for node in ALL if node != lost}
    vanish(run.nodes.pop(lost))
    reached = max(step for step, _ in rows(run.folder / f"{lost}.steps"))
    # Of the partner; its newest replica stays until those of the next round are whole.
    keepers = [partner.node for partner in begun.partners if partner.of == lost]
    kept = [replicated(run.nodes[node], begun) for node in keepers]
    add(run, lost)
    after = run.trains(*ALL, beyond=reached)
    assert (after.resume.kind, after.in_place) == ("memory", "restore")
    assert after.resume.step >= max(kept, default=0)
    # One interval, and another one where the newest snapshot was not copied yet.
    assert reached - after.resume.step <= 2 * EVERY
    assert {node: run.nodes[node].workers() for node in pids} == pids
    return after


def rows(file: Path) -> list[tuple[int, str]]:
    words = [row.split() for row in file.read_text().splitlines(keepends=True) if row[-1] == "\n"]
    return [(int(step), total) for step, total in words]


def sums(folder: Path) -> dict[int, set[str]]:
    """By step: the sums of the parameters before it, of all nodes, each time that it was made."""
    found: dict[int, set[str]] = {}
    for node in ALL:
        for step, total in rows(folder / f"{node}.steps"):
            found.setdefault(step, set()).add(total)
    assert sorted(found) == list(range(1, STEPS + 1))
    assert all(len(each) == 1 for each in found.values())
    return found
