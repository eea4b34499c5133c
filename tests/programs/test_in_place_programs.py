"""Loops that belong to libraries go on in their processes when nodes are lost and come."""

import os
import signal
import uuid
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from support.processes.run_launcher import Run, running, vanish

from spotelastic.model.round import Round
from spotelastic.store.etcd_server.process import EtcdMember

pytestmark = [pytest.mark.programs, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
PROGRAMS = {"transformers_in_place": "transformers"}


@pytest.fixture(params=PROGRAMS)
def run(request: pytest.FixtureRequest, etcd_member: EtcdMember, tmp_path: Path) -> Iterator[Run]:
    """Three nodes that train."""
    pytest.importorskip(PROGRAMS[request.param])
    script = (str(HERE / f"{request.param}.py"), str(tmp_path))
    name = uuid.uuid4().hex
    with running(etcd_member.endpoint, name, tmp_path, nnodes="1:4", script=script) as run:
        for node in "a", "b", "c":
            add(run, node)
        lets_rehearse(run, run.trains("a", "b", "c"))
        yield run


def add(run: Run, node: str) -> None:
    path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH", ""))))
    run.add(node, env={"PYTHONPATH": path, "OMP_NUM_THREADS": "1"})


def lets_rehearse(run: Run, round_: Round) -> None:
    """Wait until the first steps of a round are made, which are rehearsed. A peer that is lost
    meanwhile costs a restore.
    """
    members = [member.node for member in round_.members]
    run.trains(*members, beyond=round_.resume.step + 10)


def test_no_step_is_lost_and_no_process_of_the_peers(run: Run) -> None:
    """A worker is killed, a node vanishes, and another one comes."""
    first, second = (run.nodes[node].workers() for node in ("a", "b"))
    os.kill(*run.nodes["c"].workers(), signal.SIGKILL)
    two = run.trains("a", "b")
    assert two.in_place == "keep"
    lets_rehearse(run, two)
    again = run.trains("a", "b", "c")
    assert again.in_place == "keep"
    lets_rehearse(run, again)
    vanish(run.nodes.pop("c"))
    two = run.trains("a", "b")
    assert two.in_place == "keep"
    lets_rehearse(run, two)
    add(run, "d")
    more = run.trains("a", "b", "d")
    assert more.in_place == "keep"
    lets_rehearse(run, more)
    assert [run.nodes[node].workers() for node in ("a", "b")] == [first, second]
    sums: dict[int, set[str]] = {}
    for node in "a", "b", "c", "d":
        rows = (run.folder / f"{node}.steps").read_text().splitlines(keepends=True)
        steps = [row.split() for row in rows if row.endswith("\n")]
        for step, _, _, total in steps:
            sums.setdefault(int(step), set()).add(total)
        if node in ("a", "b"):
            numbers = [int(step) for step, *_ in steps]
            assert all(after == before + 1 for before, after in pairwise(numbers))
            assert {world for _, world, *_ in steps} >= {"2", "3"}
    assert not {step: found for step, found in sums.items() if len(found) > 1}
