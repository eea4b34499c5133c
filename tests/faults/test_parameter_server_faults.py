"""Real nodes with a parameter server: whoever is lost, each batch is part of one update."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.launcher import Run, running, vanish

from spotelastic.store.etcd_server.process import EtcdMember, standalone

pytestmark = pytest.mark.faults

SCRIPT = Path(__file__).parent.parent / "support" / "train_parameter_server.py"
ALL = ("a", "b", "c", "d")
WINDOWS, UPDATES = 24, 40
EVERY = ("--snapshot-every", "1", "--checkpoint-every", "4")


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdMember]:
    with standalone(tmp_path / "etcd") as member:
        yield member


def train(etcd: EtcdMember, folder: Path, mode: str, pace: float = 0.01) -> Run:
    script = (str(SCRIPT), str(folder), mode, str(WINDOWS), str(UPDATES), str(pace))
    name = uuid.uuid4().hex
    return running(  # type: ignore[return-value]
        etcd.endpoint, name, folder, nnodes="2:4", script=script, flags=EVERY
    )


def each_batch_counts_once(run: Run) -> None:
    """What the last parameters say, and what workers were told."""
    for node in run.nodes.values():
        assert node.wait() == 0, node.output[-3000:]
    found = [json.loads(file.read_text()) for file in run.folder.glob("*.marks")]
    assert found and all(marks == [1.0] * len(marks) for marks in found)
    told = [
        int(line)
        for file in run.folder.glob("*.acknowledged")
        for line in file.read_text().splitlines()
    ]
    assert len(told) == len({*told}), "a batch was acknowledged twice: it was lost in between"


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["asynchronous", "bounded", "synchronous"])
def test_the_standby_goes_on_when_the_server_is_lost(
    etcd: EtcdMember, tmp_path: Path, mode: str
) -> None:
    with train(etcd, tmp_path, mode) as run:
        for node in ALL:
            run.add(node)
        begun = run.trains(*ALL)
        serves = next(member.node for member in begun.members if member.slot == 0)
        left = [node for node in ALL if node != serves]
        pids = {node: run.nodes[node].workers() for node in left}
        vanish(run.nodes.pop(serves))
        after = run.trains(*left)
        assert after.in_place == "keep"
        assert {node: run.nodes[node].workers() for node in left} == pids
        each_batch_counts_once(run)
