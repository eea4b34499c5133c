"""Real nodes that train while members of their three-member etcd are killed and frozen."""

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes.patience import PATIENT
from support.processes.run_launcher import Run, running
from support.store.etcd_members import EtcdCluster

from spotelastic.model.round import Round

pytestmark = [pytest.mark.faults, pytest.mark.every_turn]

AWAY = 1000 if os.environ.get("SOAK_TURN") else 200
"""Steps that are executed while all of etcd is away; a thousand take some thirty seconds."""


@pytest.fixture
def pair(etcd_cluster: EtcdCluster, tmp_path: Path) -> Iterator[Run]:
    """Two nodes that train."""
    endpoints = ",".join(etcd_cluster.endpoints)
    with running(endpoints, uuid.uuid4().hex, tmp_path, nnodes="1:2") as run:
        run.add("a")
        run.add("b")
        run.trains("a", "b", beyond=15)
        yield run


def same(before: Round, after: Round) -> bool:
    return after.incarnation == before.incarnation


@pytest.mark.soak
def test_a_leader_that_dies_or_freezes_is_not_noticed_by_the_training(
    pair: Run, etcd_cluster: EtcdCluster
) -> None:
    before = pair.trains("a", "b")
    killed = etcd_cluster.leader()
    etcd_cluster.kill(killed)
    assert same(before, pair.trains("a", "b", beyond=pair.step() + 20))
    etcd_cluster.start(killed)
    frozen = etcd_cluster.leader()
    etcd_cluster.freeze(frozen)
    assert same(before, pair.trains("a", "b", beyond=pair.step() + 20))
    # Two of three are enough for a change, too.
    pair.nodes["b"].kill()
    alone = pair.trains("a", beyond=pair.step() + 20)
    assert alone.number == before.number + 1 and alone.cause == "loss"
    etcd_cluster.thaw(frozen)
    pair.add("c")
    assert pair.trains("a", "c").parent == alone.incarnation


@pytest.mark.soak
@pytest.mark.timeout(600)  # a turn of the soak trains for long without etcd
def test_training_goes_on_without_etcd_and_membership_changes_resume(
    pair: Run, etcd_cluster: EtcdCluster
) -> None:
    before = pair.trains("a", "b")
    workers = {name: node.workers() for name, node in pair.nodes.items()}
    leader = etcd_cluster.leader()
    majority = [leader, etcd_cluster.followers()[0]]
    etcd_cluster.kill(*majority)
    pair.commits(beyond=pair.newest().step + 100)
    etcd_cluster.start(*majority)
    assert same(before, pair.trains("a", "b", beyond=pair.newest().step))
    for name in majority:
        etcd_cluster.freeze(name)
    pair.commits(beyond=pair.newest().step + 100)
    for name in majority:
        etcd_cluster.thaw(name)
    assert same(before, pair.trains("a", "b", beyond=pair.newest().step))
    etcd_cluster.kill()
    pair.commits(beyond=pair.newest().step + AWAY, timeout=2 * PATIENT)
    etcd_cluster.start()
    assert same(before, pair.trains("a", "b", beyond=pair.newest().step))
    assert {name: node.workers() for name, node in pair.nodes.items()} == workers
    pair.add("c")
    pair.nodes["b"].signal(signal.SIGTERM)
    changed = pair.trains("a", "c")
    assert changed.number > before.number and not changed.charged
