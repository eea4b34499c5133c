"""Real nodes with a parameter server: whichever node is lost, each batch is part of one update."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes.patience import PATIENT
from support.processes.run_launcher import descendants, vanish
from support.store.etcd_members import EtcdCluster
from support.training.parameter_servers import (
    ALL,
    SCRIPT,
    UPDATES,
    WINDOWS,
    ends_well,
    kept_their_processes,
    none_was_lost,
    roles,
    training,
)

from spotelastic.store.etcd_server.process import EtcdMember, standalone

pytestmark = pytest.mark.faults

MODES = ("synchronous", "bounded", "asynchronous")
LONG = 80
"""Windows in which several nodes are lost."""


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdMember]:
    with standalone(tmp_path / "etcd") as member:
        yield member


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", MODES)
def test_no_acknowledged_update_is_lost_with_a_node(
    etcd: EtcdMember, tmp_path: Path, mode: str
) -> None:
    """The standby, a worker and the server, one after the other, each with a node that follows."""
    with training(etcd.endpoint, tmp_path, mode, LONG) as run:
        round_ = run.trains(*ALL, beyond=2)
        for rank, follows in ((1, "e"), (2, "f"), (0, "g")):
            before = roles(round_)
            gone = before[rank]
            left = [node for node in before if node != gone]
            vanish(run.nodes.pop(gone))
            after = run.trains(*left)
            assert after.in_place == "keep"
            if rank == 0:
                assert roles(after)[0] == before[1], "the standby has rank 0"
            run.add(follows)
            round_ = run.trains(*left, follows, beyond=after.resume.step)
        ends_well(run, LONG)
        none_was_lost(run)
        kept_their_processes(run, *left)


@pytest.mark.soak
@pytest.mark.parametrize("mode", MODES)
def test_no_acknowledged_update_is_lost_with_all_workers(
    etcd: EtcdMember, tmp_path: Path, mode: str
) -> None:
    with training(etcd.endpoint, tmp_path, mode, nnodes="2:5") as run:
        before = roles(run.trains(*ALL, beyond=2))
        vanish(*(run.nodes.pop(node) for node in before[2:]))
        after = run.trains(*before[:2])
        assert after.in_place == "keep"
        run.add("e")
        run.trains(*before[:2], "e", beyond=after.resume.step)
        ends_well(run)
        none_was_lost(run)
        kept_their_processes(run, *before[:2])


@pytest.mark.soak
@pytest.mark.parametrize("mode", MODES)
def test_when_server_and_standby_vanish_the_window_is_made_again(
    etcd: EtcdMember, tmp_path: Path, mode: str
) -> None:
    with training(etcd.endpoint, tmp_path, mode, nnodes="2:5") as run:
        before = roles(run.trains(*ALL, beyond=2))
        vanish(run.nodes.pop(before[0]), run.nodes.pop(before[1]))
        run.trains(*before[2:])
        ends_well(run)
        kept_their_processes(run, *before[2:])


@pytest.mark.soak
def test_the_store_may_be_lost_together_with_the_server(
    etcd_cluster: EtcdCluster, tmp_path: Path
) -> None:
    """No round forms before etcd is there again. Nothing is lost meanwhile."""
    with training(",".join(etcd_cluster.endpoints), tmp_path, "asynchronous") as run:
        before = roles(run.trains(*ALL, beyond=2))
        etcd_cluster.kill()
        vanish(run.nodes.pop(before[0]))
        run.lets_pass(2.0)
        etcd_cluster.start()
        run.trains(*before[1:])
        ends_well(run)
        none_was_lost(run)
        kept_their_processes(run, *before[1:])


@pytest.mark.soak
def test_a_server_that_was_frozen_reaches_nobody_and_takes_the_state_of_the_others(
    etcd: EtcdMember, tmp_path: Path
) -> None:
    with training(etcd.endpoint, tmp_path, "asynchronous", 60) as run:
        before = roles(run.trains(*ALL, beyond=2))
        agent = run.nodes[before[0]].process.pid
        frozen = (agent, *descendants(agent))
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        after = run.trains(*before[1:])
        run.trains(*before[1:], beyond=after.resume.step + 2)
        for pid in reversed(frozen):
            os.kill(pid, signal.SIGCONT)
        again = run.trains(*ALL, beyond=after.resume.step + 2)
        assert roles(again)[0] != before[0]
        ends_well(run, 60)
        none_was_lost(run)
        kept_their_processes(run, *before[1:])


@pytest.mark.soak
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_synchronous_parameters_are_those_of_a_run_without_losses(
    etcd: EtcdMember, tmp_path: Path, lost: int
) -> None:
    """Bit for bit: with three workers, with two, and with one process that does everything."""
    alone = tmp_path / "alone"
    alone.mkdir()
    command = (sys.executable, str(SCRIPT), str(alone), "synchronous", str(WINDOWS), str(UPDATES))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "SPOTELASTIC_STORAGE": str(alone / "kept")}
    subprocess.run([*command, "0"], cwd=alone, env=env, check=True, timeout=PATIENT)
    expected = json.loads((alone / "alone.end").read_text())
    with training(etcd.endpoint, tmp_path, "synchronous") as run:
        before = roles(run.trains(*ALL, beyond=2))
        vanish(run.nodes.pop(before[lost]))
        left = [node for node in before if node != before[lost]]
        run.add("e")
        run.trains(*left, "e")
        assert all(end == expected for end in ends_well(run))
        none_was_lost(run)
