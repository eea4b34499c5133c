"""Workers that get no further: real agents notice, keep their stacks, and replace the round."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes.patience import PATIENT
from support.processes.run_launcher import Run, running
from support.store.etcd_members import wait_until

from spotelastic.store.etcd_server.process import EtcdMember, standalone

pytestmark = pytest.mark.faults

SCRIPT = """\
import pathlib, sys, threading, time
import torch, torch.distributed as dist
import spotelastic as se

folder = pathlib.Path(sys.argv[1])

def stands_still():
    threading.Event().wait()

dist.init_process_group("gloo")
with se.Checkpointer({"seen": 0}) as checkpoint:
    step = checkpoint.restore()
    while True:
        stop = torch.tensor(float((folder / "stop").exists()))
        dist.all_reduce(stop)
        if stop:
            break
        step += 1
        checkpoint.step(step)
        time.sleep(0.02)
        if dist.get_rank() == 1 and (folder / "hang").exists():
            (folder / "hang").unlink()
            stands_still()
dist.destroy_process_group()
"""


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdMember]:
    with standalone(tmp_path / "etcd") as member:
        yield member


@pytest.fixture
def pair(etcd: EtcdMember, tmp_path: Path) -> Iterator[Run]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with running(etcd.endpoint, uuid.uuid4().hex, tmp_path, nnodes="2") as run:
        for name in ("a", "b"):
            run.add(name, str(script), str(tmp_path), args=("--stall-timeout", "5"))
        run.trains("a", "b", beyond=15)
        yield run


@pytest.mark.soak
def test_a_round_that_stalls_is_replaced_and_all_ranks_say_where_they_were(
    pair: Run, tmp_path: Path
) -> None:
    before = pair.trains("a", "b").number
    (tmp_path / "hang").touch()
    pair.wait(lambda s: s.round and s.round.cause == "stall", "a new round")
    after = pair.trains("a", "b")
    assert len(after.charged) == 1, "a hang is the script's own"
    stacks = {
        path.stem: path.read_text() for path in tmp_path.glob(f"logs/*/logs/{before:04}/*.stack")
    }
    assert "in stands_still" in stacks["rank-1"]
    assert "in all_reduce" in stacks["rank-0"] and "in stands_still" not in stacks["rank-0"]
    told = "".join(node.output for node in pair.nodes.values())
    assert "has executed no step after step" in told and "rank-*.stack" in told
    (tmp_path / "stop").touch()
    assert [node.wait() for node in pair.nodes.values()] == [0, 0]


@pytest.mark.soak
def test_nodes_without_etcd_end_what_stalls_and_wait(
    pair: Run, etcd: EtcdMember, tmp_path: Path
) -> None:
    before = pair.trains("a", "b")
    etcd.kill()
    (tmp_path / "hang").touch()
    wait_until(lambda: not any(n.workers() for n in pair.nodes.values()), "no worker")
    etcd.start()
    etcd.await_service(PATIENT)
    pair.wait(lambda s: s.round and s.round.cause == "stall", "a new round")
    after = pair.trains("a", "b")
    assert (after.number, len(after.charged)) == (before.number + 1, 1)
