"""Rounds and owners that follow one another on one store: what is committed, and by whom."""

import time
from pathlib import Path

import pytest
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.errors import StorageRefused
from spotelastic_checkpoints.messages import Committed, DaemonEvent
from spotelastic_checkpoints.storage.open import open_storage
from spotelastic_checkpoints.types import Branch, Commit
from support.processes.patience import PATIENT, eventually
from support.saving.daemons_and_workers import (
    Node,
    Worker,
    cluster,
    plan_of,
    round_info,
    started,
)
from support.saving.stored_commits import commits_of, restored_from_store

pytestmark = pytest.mark.faults


def test_the_last_writer_died_and_the_next_round_adopts_what_was_complete(tmp_path: Path) -> None:
    with cluster(tmp_path) as [node]:
        epoch = node.agent.claim("test", timeout=PATIENT).epoch
        node.agent.close()
        node.stop()
        node.start(die_at="step-complete")
        node.begin(round_info("r1", 0, ["n0"], 1, epoch))
        worker = Worker(str(node.socket), "r1", 0, 0, plan_of(1, 1))
        worker.save(1)
        eventually(node.died)
        node.agent.close()
        assert commits_of(node.storage) == []

        # Another machine: the memory is gone, the shards are not.
        node.arena = node.arena.with_name("another")
        node.start()
        claim = node.agent.claim("test", timeout=PATIENT)
        assert claim.commit == Commit(epoch, 1)
        assert restored_from_store(node, claim.commit, 1)


def test_a_round_that_was_fenced_cannot_move_latest(tmp_path: Path) -> None:
    with cluster(tmp_path, count=2) as [old, new]:
        events: list[DaemonEvent] = []
        old.agent.subscribe(events.append)
        first = old.agent.claim("test", timeout=PATIENT).epoch
        old.begin(round_info("old", 0, ["n0"], 1, first))
        stale = Worker(str(old.socket), "old", 0, 0, plan_of(1, 1))
        stale.save(1)
        assert stale.client.flush(PATIENT)

        second = new.agent.claim("test", timeout=PATIENT).epoch
        assert second > first
        new.begin(round_info("new", 0, ["n1"], 1, second))
        fresh = Worker(str(new.socket), "new", 0, 0, plan_of(1, 1))
        # Both halves reach the same step, and the stale one goes further.
        stale.save(2)
        fresh.save(2)
        assert fresh.client.flush(PATIENT)
        stale.save(3)
        assert not stale.client.flush(PATIENT)

        latest = Commits(open_storage(old.storage), "test").latest()
        assert latest == Commit(second, 2)
        assert Committed not in {type(e) for e in events if getattr(e, "step", 0) > 1}
        stale.client.leave(clean=True)
        fresh.client.leave(clean=True)


def test_a_save_that_a_node_of_no_later_round_completes_is_adopted_by_the_next_claim(
    tmp_path: Path,
) -> None:
    """Its other writer has left it for a later save, which the next round has begun to upload."""
    with cluster(tmp_path, count=2) as [stays, goes]:
        first = stays.agent.claim("test", timeout=PATIENT).epoch
        kept, late = two_nodes([stays, goes], "r1", first)
        kept.save(1)
        storage = Path(stays.storage)
        eventually(lambda: list(storage.glob(f"{first}/*/manifests/0.json")))
        kept.client.leave(clean=True)
        second = stays.agent.claim("test", timeout=PATIENT, rounds=("r2", "r1")).epoch
        lineage = [Branch("r1", 1)]
        stays.begin(round_info("r2", 0, ["n0", "n2"], 1, second, lineage=lineage))
        again = Worker(str(stays.socket), "r2", 0, 0, plan_of(2, 1))
        again.save(2)
        eventually(lambda: list(storage.glob(f"{second}/*/manifests/0.json")))
        late.save(1)
        eventually(lambda: list(storage.glob(f"{first}/*/manifests/1.json")))
        assert not late.client.flush(PATIENT), "its daemon is fenced"
        assert stays.agent.claim("test", timeout=PATIENT, rounds=("r9", "r8")).commit is None
        claim = stays.agent.claim("test", timeout=PATIENT, rounds=("r3", "r2"))
        assert claim.commit == Commit(first, 1)
        again.client.leave(clean=True)
        late.client.leave(clean=True)


def test_latest_that_is_lost_is_made_again_from_what_is_there(tmp_path: Path) -> None:
    with cluster(tmp_path) as [node]:
        epoch, worker = started(node)
        worker.save(1)
        assert worker.client.flush(PATIENT)
        (Path(node.storage) / "LATEST").unlink()
        worker.save(2)
        assert worker.client.flush(PATIENT)
        assert Commits(open_storage(node.storage), "test").latest() == Commit(epoch, 2)
        (Path(node.storage) / "LATEST").unlink()
        worker.client.leave(clean=True)
        claim = node.agent.claim("test", timeout=PATIENT)
        assert (claim.epoch, claim.commit) == (epoch + 1, Commit(epoch, 2))


def test_another_owner_is_refused_unless_it_takes_over(tmp_path: Path) -> None:
    with cluster(tmp_path) as [node]:
        node.agent.claim("one", timeout=PATIENT)
        with pytest.raises(StorageRefused, match="one"):
            node.agent.claim("two", timeout=PATIENT)
        assert node.agent.claim("two", timeout=PATIENT, take_over=True).epoch == 2


def two_nodes(nodes: list[Node], incarnation: str, epoch: int) -> list[Worker]:
    """A round over two nodes that commits every save."""
    plan = plan_of(2, 1)
    for slot, node in enumerate(nodes):
        node.begin(round_info(incarnation, slot, ["n0", "n1"], 1, epoch))
    return [Worker(str(node.socket), incarnation, rank, 0, plan) for rank, node in enumerate(nodes)]


def test_a_step_is_committed_once_both_nodes_have_uploaded_it(tmp_path: Path) -> None:
    with cluster(tmp_path, count=2) as nodes:
        epoch = nodes[0].agent.claim("test", timeout=PATIENT).epoch
        first, second = two_nodes(nodes, "r1", epoch)
        first.save(1)
        assert not first.client.flush(0.3)
        assert commits_of(nodes[0].storage) == []
        second.save(1)
        assert first.client.flush(PATIENT)
        assert second.client.flush(PATIENT)
        assert commits_of(nodes[0].storage) == [Commit(epoch, 1)]
        for worker in (first, second):
            worker.client.leave(clean=True)


def test_an_upload_in_flight_is_committed_although_the_next_round_has_begun(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path, count=2) as nodes:
        survivor, drained = nodes
        epoch = survivor.agent.claim("test", timeout=PATIENT).epoch
        first, second = two_nodes(nodes, "r1", epoch)
        first.save(1, waiting=True, due=True)
        survivor.agent.end()
        # The drained node is slow: it uploads after the survivors' round has claimed its epoch.
        claim = survivor.agent.claim("test", timeout=PATIENT)
        assert claim.epoch == epoch + 1
        survivor.begin(round_info("r2", 0, ["n0"], 1, claim.epoch, lineage=[Branch("r1", 1)]))
        second.save(1, waiting=True, due=True)
        drained.agent.end()
        drained.agent.hurry(time.time() + PATIENT)
        eventually(lambda: survivor.agent.status().commit == Commit(epoch, 1))
        assert commits_of(survivor.storage) == [Commit(epoch, 1)]
        first.client.leave(clean=True)
        second.client.leave(clean=True)


def test_a_step_that_the_next_claim_outran_is_committed_when_that_round_begins(
    tmp_path: Path,
) -> None:
    """A round claims its epoch when it is proposed; daemons hear of it only when it starts."""
    with cluster(tmp_path) as [node]:
        epoch, worker = started(node)
        claim = node.agent.claim("test", timeout=PATIENT)
        worker.save(1, waiting=True, due=True)
        assert not node.agent.flush(PATIENT), "not ours to move LATEST"
        assert Commits(open_storage(node.storage), "test").latest() is None
        assert commits_of(node.storage) == [Commit(epoch, 1)], "but all of it is there"
        node.agent.end()
        node.begin(round_info("r2", 0, ["n0"], 1, claim.epoch, lineage=[Branch("r1", 1)]))
        eventually(lambda: node.agent.status().commit == Commit(epoch, 1))
        assert Commits(open_storage(node.storage), "test").latest() == Commit(epoch, 1)
        worker.client.leave(clean=True)


def test_a_step_that_a_round_outran_which_never_began_is_adopted_by_the_one_after(
    tmp_path: Path,
) -> None:
    """All nodes go at once, while a round without the first of them is proposed."""
    with cluster(tmp_path) as [node]:
        epoch, worker = started(node)
        worker.save(1)
        assert worker.client.flush(PATIENT)
        assert node.agent.claim("test", timeout=PATIENT).commit == Commit(epoch, 1)
        worker.save(2, waiting=True, due=True)
        assert not node.agent.flush(PATIENT), "outrun"
        worker.client.leave(clean=True)
        node.stop()

        # Other machines: the memory is gone.
        node.arena = node.arena.with_name("another")
        node.start()
        claim = node.agent.claim("test", timeout=PATIENT)
        assert (claim.epoch, claim.commit) == (epoch + 2, Commit(epoch, 2))
        assert restored_from_store(node, Commit(epoch, 2), 2)


def test_a_step_that_the_next_round_did_not_branch_from_stays_uncommitted(tmp_path: Path) -> None:
    with cluster(tmp_path) as [node]:
        _, worker = started(node)
        claim = node.agent.claim("test", timeout=PATIENT)
        worker.save(5, waiting=True, due=True)
        node.agent.flush(PATIENT)
        node.agent.end()
        node.begin(round_info("r2", 0, ["n0"], 1, claim.epoch, lineage=[Branch("r1", 4)]))
        after = Worker(str(node.socket), "r2", 0, 0, plan_of(1, 1))
        after.save(5)
        assert after.client.flush(PATIENT)
        assert Commits(open_storage(node.storage), "test").latest() == Commit(claim.epoch, 5)
        for each in (worker, after):
            each.client.leave(clean=True)
