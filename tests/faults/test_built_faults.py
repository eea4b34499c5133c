"""Real nodes whose model is sharded over them: processes outlive their round, and restore."""

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes.run_launcher import Run, running, vanish

from spotelastic.store.etcd_server.process import standalone

pytestmark = [pytest.mark.faults, pytest.mark.soak]

SCRIPT = Path(__file__).parent.parent / "support/scripts/train_built.py"
ALL = ("a", "b", "c")
EVERY = 10
"""Steps between two snapshots."""


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Run]:
    script, name = (str(SCRIPT), str(tmp_path), "100000", "0.02"), uuid.uuid4().hex
    with (
        standalone(tmp_path / "etcd") as etcd,
        running(etcd.endpoint, name, tmp_path, nnodes="1:4", script=script) as run,
    ):
        for node in ALL:
            run.add(node)
        begun = run.trains(*ALL)
        run.trains(*ALL, beyond=begun.resume.step + 3 * EVERY)
        yield run


def made(run: Run, node: str) -> list[tuple[int, int, str]]:
    """(step, pid, sum of the parameters before it) of each step that counts on the node."""
    rows = (run.folder / f"{node}.steps").read_text().splitlines(keepends=True)
    words = [row.split() for row in rows if row.endswith("\n")]
    return [(int(step), int(pid), total) for _, step, _, pid, total in words]


def all_have_trained_alike(run: Run, lost: int) -> None:
    """The state before a step was the same on all nodes, and each time that it was made. At most so
    many steps were lost at a time.
    """
    sums: dict[int, set[str]] = {}
    for node in run.nodes:
        last = 0
        for step, _, total in made(run, node):
            assert last == 0 or step > last - lost, f"{node} has made step {step} after {last}"
            sums.setdefault(step, set()).add(f"{float(total):.7g}")
            last = step
    assert sorted(sums) == list(range(min(sums), max(sums) + 1))
    assert not {step: found for step, found in sums.items() if len(found) > 1}


def test_a_worker_that_is_killed_costs_its_peers_no_process_and_few_steps(three: Run) -> None:
    """Its node's daemon has its shard. When its node is back, no step is lost."""
    pids = {node: three.nodes[node].workers() for node in ("a", "b")}
    os.kill(three.nodes["c"].workers()[0], signal.SIGKILL)
    two = three.trains("a", "b")
    assert (two.cause, two.in_place, two.resume.kind) == ("worker", "restore", "memory")
    reached = three.step(two)
    again = three.trains(*ALL)
    assert (again.cause, again.in_place, again.resume.kind) == ("arrival", "restore", "memory")
    assert again.resume.step >= reached
    three.trains(*ALL, beyond=again.resume.step + 20)
    assert {node: three.nodes[node].workers() for node in pids} == pids
    all_have_trained_alike(three, lost=EVERY + 1)


def test_a_node_that_vanishes_costs_its_peers_no_process(three: Run) -> None:
    """Its shard is lost, unless another node has a copy: the rest comes from the store."""
    pids = {node: three.nodes[node].workers() for node in ("a", "b")}
    vanish(three.nodes["c"])
    two = three.trains("a", "b")
    assert two.in_place == "restore"
    three.trains("a", "b", beyond=two.resume.step + 20)
    assert {node: three.nodes[node].workers() for node in pids} == pids
    del three.nodes["c"]
    all_have_trained_alike(three, lost=10 * EVERY)
