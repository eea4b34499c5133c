"""Real agents, workers, daemons and etcd, killed and frozen one at a time."""

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes.run_launcher import Run, comm, descendants, running
from support.store.etcd_members import EtcdCluster, wait_until

from spotelastic.store.etcd_server.process import EtcdMember, standalone

pytestmark = pytest.mark.faults


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdMember]:
    with standalone(tmp_path / "etcd") as member:
        yield member


@pytest.fixture
def pair(etcd: EtcdMember, tmp_path: Path) -> Iterator[Run]:
    """Two nodes that train; either may be lost."""
    with running(etcd.endpoint, uuid.uuid4().hex, tmp_path, nnodes="1:2") as run:
        run.add("a")
        run.add("b")
        run.seals("a", "b")
        yield run


def processes(run: Run, node: str, name: str) -> list[int]:
    pids = [p for p in descendants(run.nodes[node].process.pid) if comm(p).startswith(name)]
    assert pids, f"{node} has no {name}"
    return pids


def process(run: Run, node: str, name: str) -> int:
    return processes(run, node, name)[0]


def lost(run: Run, number: int) -> int:
    """Steps of the round before `number` that had to be executed again."""
    seen = run.wait(lambda s: s.round and s.round.number >= number, f"round {number}")
    assert seen.round is not None
    return run.record(number - 1).last_step - seen.round.resume.step


def saves_every(run: Run, number: int) -> int:
    """Steps between snapshots in the round before `number`, at its end."""
    return run.record(number - 1).round.schedule.snapshot_every


@pytest.mark.soak
def test_a_zygote_that_freezes_is_waited_for_and_one_that_dies_costs_one_round(pair: Run) -> None:
    """Until its old workers are reaped a node is not ready, and does not say so."""
    before = pair.trains("a", "b")
    zygote = process(pair, "b", "se-zygote")
    os.kill(zygote, signal.SIGSTOP)
    pair.trains("a", "b", beyond=pair.step() + 20)
    os.kill(pair.nodes["a"].workers()[0], signal.SIGKILL)
    proposed = pair.wait(lambda s: s.round and s.round.number > before.number, "a proposal").round
    assert proposed is not None
    pair.wait(
        lambda s: "b" in s.acks and s.acks["b"].round == proposed.incarnation, "b has seen it"
    )
    os.kill(zygote, signal.SIGCONT)
    waited = pair.trains("a", "b")
    assert (waited.number, waited.missed) == (before.number + 1, ())
    os.kill(zygote, signal.SIGKILL)
    pair.wait(lambda s: s.round and s.round.number > waited.number, "a new round")
    after = pair.trains("a", "b")
    assert after.resume.kind == "memory"
    assert 0 <= lost(pair, after.number) <= saves_every(pair, after.number)


@pytest.mark.soak
def test_a_killed_round_store_costs_an_uncharged_round(pair: Run) -> None:
    before = pair.trains("a", "b")
    first = before.members[0].node
    for pid in processes(pair, first, "se-store"):  # also the one that waits for the next round
        os.kill(pid, signal.SIGKILL)
    pair.wait(lambda s: s.round and s.round.number > before.number, "a new round")
    after = pair.trains("a", "b")
    assert (after.cause, after.charged) == ("store", ())


@pytest.mark.soak
@pytest.mark.parametrize("first", [True, False], ids=["holder", "member"])
def test_a_frozen_agent_is_left_behind_and_comes_back_as_a_newcomer(pair: Run, first: bool) -> None:
    before = pair.trains("a", "b", beyond=55)
    seen = pair.wait(lambda s: s.holder, "a holder")
    frozen = seen.holder if first else next(n for n in ("a", "b") if n != seen.holder)
    other = next(n for n in ("a", "b") if n != frozen)
    was = seen.nodes[frozen].node.incarnation
    pair.nodes[frozen].signal(signal.SIGSTOP)
    os.kill(pair.nodes[frozen].workers()[0], signal.SIGSTOP)
    alone = pair.trains(other)
    step = pair.step()
    pair.trains(other, beyond=step + 10)
    stale, newest, written = pair.nodes[frozen].workers(), pair.newest(), pair.stored(before.epoch)
    os.kill(stale[0], signal.SIGCONT)
    pair.nodes[frozen].signal(signal.SIGCONT)
    wait_until(lambda: stale[0] not in pair.nodes[frozen].workers(), "the old worker is gone")
    both = pair.trains("a", "b", beyond=step + 10)
    member = both.member(frozen)
    assert member is not None and both.number > alone.number
    assert member.incarnation != was or both.parent, "it did not go on in its old round"
    assert both.resume.step >= step, "what it had missed was not thrown away"
    assert pair.stored(before.epoch) <= written, "it wrote nothing for its old round"
    assert pair.newest().epoch >= newest.epoch, "nor did the newest commit go back"


def test_a_killed_agent_takes_its_workers_along(pair: Run) -> None:
    workers = pair.nodes["a"].workers()
    pair.nodes["a"].kill()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "no orphan")
    after = pair.trains("b")
    assert after.resume.kind == "memory"
    assert lost(pair, after.number) <= saves_every(pair, after.number)


@pytest.mark.soak
def test_no_member_of_a_cluster_is_a_single_point_of_failure(
    etcd_cluster: EtcdCluster, tmp_path: Path
) -> None:
    dead = etcd_cluster.followers()[0]
    etcd_cluster.kill(dead)
    endpoints = ",".join(etcd_cluster.endpoints)
    with running(endpoints, uuid.uuid4().hex, tmp_path, nnodes="1:2") as run:
        run.add("a")
        alone = run.trains("a", beyond=5)
        etcd_cluster.start(dead)
        etcd_cluster.kill(etcd_cluster.leader())
        run.add("b")
        both = run.trains("a", "b", beyond=run.step())
        assert (both.parent, both.cause) == (alone.incarnation, "arrival")


@pytest.mark.soak
def test_a_frozen_worker_is_found_and_charged(etcd: EtcdMember, tmp_path: Path) -> None:
    flags = ("--stall-timeout", "5", "--max-restarts", "1")
    with running(etcd.endpoint, uuid.uuid4().hex, tmp_path, nnodes="2", flags=flags) as run:
        run.add("a")
        run.add("b")
        before = run.trains("a", "b", beyond=15)
        os.kill(run.nodes["b"].workers()[0], signal.SIGSTOP)
        run.wait(lambda s: s.round and s.round.number > before.number, "a new round")
        after = run.trains("a", "b", beyond=before.resume.step + 30)
        assert (after.cause, len(after.charged)) == ("stall", 1)
        assert after.resume.kind == "memory"


@pytest.mark.soak
def test_a_daemon_that_dies_or_freezes_is_replaced_and_keeps_its_slots(pair: Run) -> None:
    before = pair.trains("a", "b")
    os.kill(process(pair, "b", "se-daemon"), signal.SIGKILL)
    pair.trains("a", "b", beyond=pair.step() + 30)
    os.kill(pair.nodes["a"].workers()[0], signal.SIGKILL)
    pair.wait(lambda s: s.round and s.round.number > before.number, "a new round")
    after = pair.trains("a", "b")
    assert after.resume.kind == "memory"
    frozen = process(pair, "b", "se-daemon")
    os.kill(frozen, signal.SIGSTOP)
    committed = pair.newest().step
    pair.trains("a", "b", beyond=pair.step() + 50)
    wait_until(lambda: not Path(f"/proc/{frozen}").exists(), "it is given up")
    pair.commits(beyond=committed + 50)
    os.kill(pair.nodes["b"].workers()[0], signal.SIGKILL)
    pair.wait(lambda s: s.round and s.round.number > after.number, "a new round")
    assert pair.trains("a", "b").resume.kind == "memory"


@pytest.mark.soak
def test_a_node_whose_zygote_stays_frozen_is_left_behind_and_leaves(pair: Run) -> None:
    before = pair.trains("a", "b")
    os.kill(process(pair, "b", "se-zygote"), signal.SIGSTOP)
    os.kill(pair.nodes["a"].workers()[0], signal.SIGKILL)
    assert pair.trains("a").number == before.number + 1
    assert pair.nodes["b"].wait() == 2
