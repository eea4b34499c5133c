"""Nodes whose model is sharded over them keep each other's shards: a lost one costs few steps."""

import random
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes.run_launcher import Run, replicated, running, vanish
from support.store.etcd_members import wait_until

from spotelastic.store.etcd_server.process import standalone

pytestmark = [pytest.mark.faults, pytest.mark.soak]

SCRIPT = Path(__file__).parent.parent / "support/scripts/train_built.py"
ALL = ("a", "b", "c", "d")
EVERY = 10
"""Steps between two snapshots."""


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Run]:
    script, name = (str(SCRIPT), str(tmp_path), "100000", "0.1"), uuid.uuid4().hex
    flags = ("--replicate", "1GB")
    with (
        standalone(tmp_path / "etcd") as etcd,
        running(etcd.endpoint, name, tmp_path, nnodes="1:4", script=script, flags=flags) as run,
    ):
        for node in ALL:
            run.add(node)
        run.trains(*ALL)
        yield run


def made(run: Run, node: str) -> list[tuple[int, str]]:
    """(step, sum of the parameters before it) of each step that counts on the node."""
    rows = (run.folder / f"{node}.steps").read_text().splitlines(keepends=True)
    words = [row.split() for row in rows if row.endswith("\n")]
    return [(int(step), total) for _, step, _, _, total in words]


def all_have_trained_alike(run: Run) -> None:
    """Whoever made a step began it with the same parameters, also where it was made twice."""
    sums: dict[int, set[str]] = {}
    for node in ALL:
        for step, total in made(run, node):
            sums.setdefault(step, set()).add(f"{float(total):.7g}")
    assert sorted(sums) == list(range(min(sums), max(sums) + 1))
    assert not {step: found for step, found in sums.items() if len(found) > 1}


def test_a_node_that_vanishes_costs_the_steps_since_a_snapshot(four: Run) -> None:
    begun = four.trains(*ALL)
    assert {partner.of for partner in begun.partners} == set(ALL)
    wait_until(
        lambda: all(replicated(node, begun) >= 3 * EVERY for node in four.nodes.values()),
        "each node has a replica of its partner",
    )
    lost = random.choice(ALL)
    kept = min(replicated(node, begun) for node in four.nodes.values())
    vanish(four.nodes[lost])
    reached = max(step for step, _ in made(four, lost))
    left = tuple(node for node in ALL if node != lost)
    after = four.trains(*left)
    assert after.resume.kind == "memory"
    assert after.cause in ("loss", "arrival")  # of one whose lease ended with it, on a busy machine
    assert after.resume.step >= max(kept, reached - 2 * EVERY)
    four.trains(*left, beyond=after.resume.step + 2 * EVERY)
    # The one that has lost its partner makes a ring with the pair that lives.
    assert {partner.of for partner in after.partners} == set(left)

    four.nodes.pop(lost)
    four.add(lost)
    again = four.trains(*ALL)
    assert (again.cause, again.resume.kind) == ("arrival", "memory")
    four.trains(*ALL, beyond=again.resume.step + EVERY)
    all_have_trained_alike(four)


def test_when_a_whole_pair_vanishes_the_newest_commit_serves(four: Run) -> None:
    begun = four.trains(*ALL)
    four.commits(EVERY)
    wait_until(
        lambda: all(replicated(node, begun) for node in four.nodes.values()), "all have replicas"
    )
    pair = begun.partners[0]
    vanish(four.nodes[pair.of], four.nodes[pair.node])
    left = tuple(node for node in ALL if node not in (pair.of, pair.node))
    after = four.trains(*left)
    assert after.resume.kind == "store" and after.resume.step > 0
    for node in (pair.of, pair.node):
        four.nodes.pop(node)
    four.trains(*left, beyond=after.resume.step + 2 * EVERY)
