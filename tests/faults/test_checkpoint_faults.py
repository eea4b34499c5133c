"""Whatever dies, wherever it dies: what was committed is complete, and nothing torn is restored."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from spotelastic_checkpoints import metadata
from spotelastic_checkpoints.client import DaemonClient
from spotelastic_checkpoints.commits import Commits, folder, step_folders
from spotelastic_checkpoints.errors import DaemonUnavailable, RestoreFailed, StorageRefused
from spotelastic_checkpoints.stages import DAEMON_STAGES, FETCH_STAGES, WORKER_STAGES
from spotelastic_checkpoints.storage.open import open_storage
from spotelastic_checkpoints.storage.port import Storage
from spotelastic_checkpoints.wire import (
    Branch,
    Commit,
    Committed,
    DaemonEvent,
    Holder,
    Resume,
    Schedule,
    Sealed,
)
from support.checkpoints import (
    Node,
    Worker,
    cluster,
    content,
    fetched,
    is_content_of,
    plan_of,
    round_info,
)
from support.patience import PATIENT, eventually

pytestmark = pytest.mark.faults


def commits_of(storage: str) -> list[Commit]:
    """Every committed step, after a check that each is complete and LATEST names the newest.

    A daemon may collect an old commit meanwhile: what is read then must be gone from the list.
    """
    store = open_storage(storage)
    reader = Commits(store, "test")
    found = []
    for commit in committed(store):
        try:
            reader.checkpoint(commit)
        except RestoreFailed:
            assert commit not in committed(store)
        else:
            found.append(commit)
    latest = reader.latest()
    assert latest is None or latest in found
    return found


def committed(store: Storage) -> list[Commit]:
    """The steps with a commit record that is no tombstone."""
    found = []
    for commit, listed in step_folders(store.keys()).items():
        record = store.get(f"{folder(commit)}/{metadata.NAME}") if listed.has_record else None
        if record is not None and not metadata.is_tombstone(record.data):
            found.append(commit)
    return found


def restored_from_store(node: Node, commit: Commit, step: int) -> bool:
    """Through a fresh round on the node, as a new worker would."""
    node.begin(round_info(f"look-{commit.epoch}-{commit.step}", 0, [node.name], 1, 0))
    worker = Worker(str(node.socket), f"look-{commit.epoch}-{commit.step}", 0, 0, plan_of(1, 1))
    try:
        resume = Resume("store", commit.step, epoch=commit.epoch)
        return is_content_of(fetched(worker.client, resume), step)
    finally:
        worker.client.leave(clean=True)


@pytest.mark.parametrize("stage", WORKER_STAGES)
def test_a_worker_that_dies_while_saving_leaves_its_last_whole_save(
    tmp_path: Path, stage: str
) -> None:
    with cluster(tmp_path) as [node]:
        epoch = node.agent.claim("test", timeout=10).epoch
        node.begin(round_info("r1", 0, ["n0"], 1, epoch))
        assert node.spawn("r1", 0, (1, 1), steps=2, die_at="") == 0
        node.agent.end()
        node.begin(
            round_info("r2", 0, ["n0"], 1, node.agent.claim("test", timeout=10).epoch,
                       lineage=[Branch("r1", 2)])
        )  # fmt: skip
        assert node.spawn("r2", 0, (1, 1), steps=1, die_at=stage) == -9
        node.agent.end()

        sealed = {(s.incarnation, s.step): s for s in node.agent.status().snapshots}
        assert ("r1", 2) in sealed
        assert (("r2", 1) in sealed) == (stage in ("slot-sealed", "slot-reported"))
        node.begin(round_info("r3", 0, ["n0"], 1, 0))
        worker = Worker(str(node.socket), "r3", 0, 0, plan_of(1, 1))
        for (incarnation, step), snapshot in sealed.items():
            resume = Resume("memory", step, incarnation, snapshot.layout)
            assert is_content_of(fetched(worker.client, resume), step)
        worker.client.leave(clean=True)


@pytest.mark.parametrize("stage", DAEMON_STAGES)
def test_a_daemon_that_dies_while_committing_is_made_good_by_the_next(
    tmp_path: Path, stage: str
) -> None:
    with cluster(tmp_path) as [node]:
        epoch = node.agent.claim("test", timeout=10).epoch
        node.begin(round_info("r1", 0, ["n0"], 1, epoch, schedule=Schedule(1, 0)))
        plan = plan_of(1, 1)
        worker = Worker(str(node.socket), "r1", 0, 0, plan)
        # Enough commits that the next one retires an old one.
        for step in range(1, 5):
            worker.save(step, due=True)
            assert worker.client.flush(PATIENT)
        before = commits_of(node.storage)
        node.kill()

        # It looks at what it finds in memory at once, and may die before anybody has asked.
        with suppress(DaemonUnavailable):
            node.start(die_at=stage)
            if stage == "epoch-claimed":
                node.agent.claim("test", timeout=10)
            worker.save(5, due=True)
        eventually(node.died)
        node.agent.close()
        between = commits_of(node.storage)
        assert max(between) >= max(before)

        node.start()
        epoch = node.agent.claim("test", timeout=10).epoch if stage == "epoch-claimed" else epoch
        node.begin(round_info("r1", 0, ["n0"], 1, epoch, schedule=Schedule(1, 0)))
        assert node.agent.flush(PATIENT)
        worker.save(6, due=True)
        assert worker.client.flush(PATIENT)
        worker.client.leave(clean=True)
        assert Commit(epoch, 6) == max(commits_of(node.storage))
        eventually(lambda: len(commits_of(node.storage)) == 3)
        assert restored_from_store(node, Commit(epoch, 6), 6)


@pytest.mark.parametrize("stage", FETCH_STAGES)
def test_a_daemon_that_dies_while_a_worker_restores_leaves_nothing_half_read(
    tmp_path: Path, stage: str
) -> None:
    with cluster(tmp_path) as [node]:
        epoch = node.agent.claim("test", timeout=10).epoch
        node.begin(round_info("r1", 0, ["n0"], 1, epoch))
        worker = Worker(str(node.socket), "r1", 0, 0, plan_of(1, 1))
        worker.save(1)
        assert worker.client.flush(PATIENT)
        worker.client.leave(clean=True)
        node.agent.end()
        node.agent.close()
        node.stop()

        node.start(die_at=stage)
        node.begin(round_info("r2", 0, ["n0"], 1, 0))
        worker = Worker(str(node.socket), "r2", 0, 0, plan_of(1, 1), prepare=False)
        resume = Resume("store", 1, epoch=epoch)
        with pytest.raises((DaemonUnavailable, TimeoutError)):
            fetched(worker.client, resume, within=1.0)
        eventually(node.died)
        assert len(list(node.arena.glob("restore-*"))) == 1
        node.agent.close()

        node.start()
        assert not list(node.arena.glob("restore-*"))
        assert restored_from_store(node, Commit(epoch, 1), 1)


def test_the_last_writer_died_and_the_next_round_adopts_what_was_complete(tmp_path: Path) -> None:
    with cluster(tmp_path) as [node]:
        epoch = node.agent.claim("test", timeout=10).epoch
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
        claim = node.agent.claim("test", timeout=10)
        assert claim.commit == Commit(epoch, 1)
        assert restored_from_store(node, claim.commit, 1)


def test_a_round_that_was_fenced_cannot_move_latest(tmp_path: Path) -> None:
    with cluster(tmp_path, count=2) as [old, new]:
        events: list[DaemonEvent] = []
        old.agent.subscribe(events.append)
        first = old.agent.claim("test", timeout=10).epoch
        old.begin(round_info("old", 0, ["n0"], 1, first))
        stale = Worker(str(old.socket), "old", 0, 0, plan_of(1, 1))
        stale.save(1)
        assert stale.client.flush(PATIENT)

        second = new.agent.claim("test", timeout=10).epoch
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


def test_latest_that_is_lost_is_made_again_from_what_is_there(tmp_path: Path) -> None:
    with cluster(tmp_path) as [node]:
        epoch = node.agent.claim("test", timeout=10).epoch
        node.begin(round_info("r1", 0, ["n0"], 1, epoch))
        worker = Worker(str(node.socket), "r1", 0, 0, plan_of(1, 1))
        worker.save(1)
        assert worker.client.flush(PATIENT)
        (Path(node.storage) / "LATEST").unlink()
        worker.save(2)
        assert worker.client.flush(PATIENT)
        assert Commits(open_storage(node.storage), "test").latest() == Commit(epoch, 2)
        (Path(node.storage) / "LATEST").unlink()
        worker.client.leave(clean=True)
        claim = node.agent.claim("test", timeout=10)
        assert (claim.epoch, claim.commit) == (epoch + 1, Commit(epoch, 2))


def test_another_owner_is_refused_unless_it_takes_over(tmp_path: Path) -> None:
    with cluster(tmp_path) as [node]:
        node.agent.claim("one", timeout=10)
        with pytest.raises(StorageRefused, match="one"):
            node.agent.claim("two", timeout=10)
        assert node.agent.claim("two", timeout=10, take_over=True).epoch == 2


def test_a_flipped_byte_is_found_and_named(tmp_path: Path) -> None:
    with cluster(tmp_path) as [node]:
        epoch = node.agent.claim("test", timeout=10).epoch
        node.begin(round_info("r1", 0, ["n0"], 1, epoch))
        worker = Worker(str(node.socket), "r1", 0, 0, plan_of(1, 1))
        worker.save(1)
        assert worker.client.flush(PATIENT)
        shard = Path(node.storage) / folder(Commit(epoch, 1)) / "__0_0.distcp"
        data = bytearray(shard.read_bytes())
        where = data.index(content("w3", 1)[:64]) + 1000
        data[where] ^= 1
        shard.write_bytes(data)
        with pytest.raises(RestoreFailed, match="w3 does not match its checksum"):
            fetched(worker.client, Resume("store", 1, epoch=epoch))
        worker.client.leave(clean=True)
        assert not list(node.arena.glob("restore-*"))


def test_a_node_without_the_save_is_filled_by_two_peers(tmp_path: Path) -> None:
    with cluster(tmp_path, count=3, storage=str(tmp_path / "never")) as nodes:
        plan = plan_of(2, 1)
        for slot in range(2):
            nodes[slot].begin(round_info("r1", slot, ["n0", "n1"], 1, 0))
            worker = Worker(str(nodes[slot].socket), "r1", slot, 0, plan)
            worker.save(7)
            worker.client.leave(clean=True)
            nodes[slot].agent.end()
        holders = tuple(
            Holder(node.name, node.agent.status().listen, (rank,))
            for rank, node in enumerate(nodes[:2])
        )
        resume = Resume("memory", 7, "r1", plan.hash, holders)
        newcomer = nodes[2]
        newcomer.begin(round_info("r2", 2, ["n0", "n1", "n2"], 1, 0, lineage=[Branch("r1", 7)]))
        worker = Worker(str(newcomer.socket), "r2", 2, 0, plan_of(3, 1))
        restored = fetched(worker.client, resume)
        assert is_content_of(restored, 7)
        worker.client.restored(restored.id)
        assert not list(newcomer.arena.glob("restore-*"))

        # With one holder gone the other still has everything.
        nodes[0].kill()
        again = fetched(worker.client, resume)
        assert is_content_of(again, 7)
        worker.client.leave(clean=True)
        assert not (tmp_path / "never" / "LATEST").exists()


def test_what_is_fetched_takes_the_place_of_slots_that_are_overwritten_next(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path) as [node]:
        epoch = node.agent.claim("test", timeout=10).epoch
        node.begin(round_info("r1", 0, ["n0"], 1, epoch, schedule=Schedule(1, 0)))
        worker = Worker(str(node.socket), "r1", 0, 0, plan_of(1, 1))
        for step in (1, 2, 3):
            worker.save(step, due=step == 1)
            assert worker.client.flush(20.0)
        worker.client.leave(clean=True)
        node.agent.end()
        assert {s.step for s in node.agent.status().snapshots} == {1, 2, 3}

        node.begin(round_info("r2", 0, ["n0"], 1, 0, lineage=[Branch("r1", 3)]))
        worker = Worker(str(node.socket), "r2", 0, 0, plan_of(1, 1), prepare=False)
        assert is_content_of(fetched(worker.client, Resume("store", 1, epoch=epoch)), 1)
        [newest] = node.agent.status().snapshots
        assert newest.step == 3
        memory = Resume("memory", 3, "r1", newest.layout)
        assert is_content_of(fetched(worker.client, memory), 3)
        # Slots come back with the next saves.
        worker.prepare()
        for step in (4, 5):
            worker.save(step)
        eventually(lambda: {s.step for s in node.agent.status().snapshots} >= {4, 5})
        worker.client.leave(clean=True)


def test_a_peer_with_another_token_gets_nothing(tmp_path: Path) -> None:
    with cluster(tmp_path, count=2) as [holder, stranger]:
        plan = plan_of(1, 1)
        holder.begin(round_info("r1", 0, ["n0"], 1, 0))
        worker = Worker(str(holder.socket), "r1", 0, 0, plan)
        worker.save(1)
        worker.client.leave(clean=True)
        stranger.stop()
        stranger.token = "guessed"
        stranger.start()
        stranger.begin(round_info("r2", 0, ["n1"], 1, 0))
        newcomer = Worker(str(stranger.socket), "r2", 0, 0, plan)
        holders = (Holder("n0", holder.agent.status().listen, (0,)),)
        with pytest.raises(RestoreFailed, match="token"):
            fetched(newcomer.client, Resume("memory", 1, "r1", plan.hash, holders))
        newcomer.client.leave(clean=True)


def test_two_halves_at_the_same_step_are_never_mixed(tmp_path: Path) -> None:
    with cluster(tmp_path, count=2) as [one, other]:
        plan = plan_of(2, 1)
        for slot, (node, incarnation) in enumerate([(one, "half-a"), (other, "half-b")]):
            node.begin(round_info(incarnation, slot, ["n0", "n1"], 1, 0))
            worker = Worker(str(node.socket), incarnation, slot, 0, plan)
            worker.save(9)
            worker.client.leave(clean=True)
        one.begin(round_info("r2", 0, ["n0"], 1, 0, lineage=[Branch("half-a", 9)]))
        worker = Worker(str(one.socket), "r2", 0, 0, plan_of(1, 1))
        holders = (Holder("n1", other.agent.status().listen, (1,)),)
        with pytest.raises(RestoreFailed):
            fetched(worker.client, Resume("memory", 9, "half-c", plan.hash, holders))
        # The newest save off the lineage is the first to be overwritten, never the one on it.
        worker.client.leave(clean=True)


def test_training_goes_on_while_the_store_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with cluster(tmp_path, storage="s3://bucket/run") as [node]:
        events: list[DaemonEvent] = []
        node.agent.subscribe(events.append)
        node.begin(round_info("r1", 0, ["n0"], 1, 7))
        worker = Worker(str(node.socket), "r1", 0, 0, plan_of(1, 1))
        for step in range(1, 30):
            worker.step(step)
        eventually(lambda: node.agent.status().error != "")
        assert max(s.step for s in node.agent.status().snapshots) == 29
        assert not node.agent.flush(0.2)
        worker.client.leave(clean=True)


def test_workers_seal_and_wait_at_an_agreed_step(tmp_path: Path) -> None:
    with cluster(tmp_path) as [node]:
        events: list[DaemonEvent] = []
        node.agent.subscribe(events.append)
        node.begin(round_info("r1", 0, ["n0"], 1, 0))
        worker = Worker(str(node.socket), "r1", 0, 0, plan_of(1, 1))
        assert node.agent.set_target("r1", "p1", 3)[0].step == 0
        for step in (1, 2):
            worker.step(step)

        released: list[int] = []
        from threading import Thread

        thread = Thread(target=lambda: (worker.step(3), released.append(3)))
        thread.start()
        eventually(lambda: any(isinstance(e, Sealed) and e.waiting for e in events))
        assert not released
        node.agent.set_target("r1", "p1", 5)
        thread.join(PATIENT)
        assert released == [3]
        worker.step(4)
        thread = Thread(target=lambda: (worker.step(5), released.append(5)))
        thread.start()
        eventually(lambda: sum(isinstance(e, Sealed) and e.waiting for e in events) == 2)
        # A new daemon finds the worker waiting; withdrawing lets it go on.
        node.kill()
        node.start()
        node.begin(round_info("r1", 0, ["n0"], 1, 0))
        assert released == [3]
        node.agent.set_target("r1", "p1", 0)
        thread.join(PATIENT)
        assert released == [3, 5]
        worker.client.leave(clean=True)


def test_a_worker_that_starts_while_the_daemon_is_being_replaced_waits_for_it(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path) as [node]:
        node.begin(round_info("r1", 0, ["n0"], 1, 0))
        node.kill()
        with ThreadPoolExecutor(1) as pool:
            starting = pool.submit(Worker, str(node.socket), "r1", 0, 0, plan_of(1, 1))
            node.start()
            node.begin(round_info("r1", 0, ["n0"], 1, 0))
            worker = starting.result(PATIENT)
        worker.save(1)
        eventually(lambda: [s.step for s in node.agent.status().snapshots] == [1])
        worker.client.leave(clean=True)


def test_a_second_daemon_on_one_arena_is_refused(tmp_path: Path) -> None:
    with cluster(tmp_path) as [node]:
        twin = Node("twin", tmp_path, node.arena, node.storage, 1)
        with pytest.raises(Exception, match="another checkpoint daemon"):
            twin.start()
        DaemonClient(str(node.socket)).close()


def two_nodes(nodes: list[Node], incarnation: str, epoch: int) -> list[Worker]:
    """A round over two nodes that commits every save."""
    plan = plan_of(2, 1)
    for slot, node in enumerate(nodes):
        node.begin(round_info(incarnation, slot, ["n0", "n1"], 1, epoch))
    return [Worker(str(node.socket), incarnation, rank, 0, plan) for rank, node in enumerate(nodes)]


def test_a_step_is_committed_once_both_nodes_have_uploaded_it(tmp_path: Path) -> None:
    with cluster(tmp_path, count=2) as nodes:
        epoch = nodes[0].agent.claim("test", timeout=10).epoch
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
        epoch = survivor.agent.claim("test", timeout=10).epoch
        first, second = two_nodes(nodes, "r1", epoch)
        first.save(1, waiting=True, due=True)
        survivor.agent.end()
        # The drained node is slow: it uploads after the survivors' round has claimed its epoch.
        claim = survivor.agent.claim("test", timeout=10)
        assert claim.epoch == epoch + 1
        survivor.begin(round_info("r2", 0, ["n0"], 1, claim.epoch, lineage=[Branch("r1", 1)]))
        second.save(1, waiting=True, due=True)
        drained.agent.end()
        drained.agent.hurry(time.time() + 10)
        eventually(lambda: survivor.agent.status().commit == Commit(epoch, 1))
        assert commits_of(survivor.storage) == [Commit(epoch, 1)]
        first.client.leave(clean=True)
        second.client.leave(clean=True)


def test_a_step_that_the_next_claim_outran_is_committed_when_that_round_begins(
    tmp_path: Path,
) -> None:
    """A round claims its epoch when it is proposed; daemons hear of it only when it starts."""
    with cluster(tmp_path) as [node]:
        epoch = node.agent.claim("test", timeout=10).epoch
        node.begin(round_info("r1", 0, ["n0"], 1, epoch))
        worker = Worker(str(node.socket), "r1", 0, 0, plan_of(1, 1))
        claim = node.agent.claim("test", timeout=10)
        worker.save(1, waiting=True, due=True)
        assert not node.agent.flush(PATIENT), "not ours to move LATEST"
        assert Commits(open_storage(node.storage), "test").latest() is None
        assert commits_of(node.storage) == [Commit(epoch, 1)], "but all of it is there"
        node.agent.end()
        node.begin(round_info("r2", 0, ["n0"], 1, claim.epoch, lineage=[Branch("r1", 1)]))
        eventually(lambda: node.agent.status().commit == Commit(epoch, 1))
        assert Commits(open_storage(node.storage), "test").latest() == Commit(epoch, 1)
        worker.client.leave(clean=True)


def test_a_step_that_the_next_round_did_not_branch_from_stays_uncommitted(tmp_path: Path) -> None:
    with cluster(tmp_path) as [node]:
        epoch = node.agent.claim("test", timeout=10).epoch
        node.begin(round_info("r1", 0, ["n0"], 1, epoch))
        worker = Worker(str(node.socket), "r1", 0, 0, plan_of(1, 1))
        claim = node.agent.claim("test", timeout=10)
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


def test_a_daemon_whose_starter_is_gone_ends_with_the_last_worker(tmp_path: Path) -> None:
    """The starter is a rank of its own, and done before the others have asked for their commit."""
    with cluster(tmp_path) as [node]:
        node.stop()
        node.lifeline, starter = os.pipe()
        node.start()
        os.close(node.lifeline)
        epoch = node.agent.claim("test", timeout=PATIENT).epoch
        node.begin(round_info("r1", 0, [node.name], 1, epoch))
        worker = Worker(str(node.socket), "r1", 0, 0, plan_of(1, 1))
        worker.save(1, due=True)
        os.close(starter)
        for _ in range(200):
            assert node.agent.status().error == ""
        assert worker.client.flush(PATIENT)
        assert node.agent.status().commit == Commit(epoch, 1)
        worker.client.leave(clean=True)
        assert node.process is not None and node.process.wait(PATIENT) == 0
