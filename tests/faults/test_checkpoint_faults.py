"""Whatever dies, wherever it dies: what was committed is complete, and nothing torn is restored."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from spotelastic_checkpoints.commit.commit_protocol import folder
from spotelastic_checkpoints.errors import DaemonUnavailable, RestoreFailed
from spotelastic_checkpoints.messages import DaemonEvent, Sealed
from spotelastic_checkpoints.protocol.agent_client import DaemonClient
from spotelastic_checkpoints.storage.open import open_storage
from spotelastic_checkpoints.types import Branch, Commit, Resume, Schedule
from support.draws import every_other
from support.processes.kill_points import (
    COMMIT_STAGES,
    FETCH_STAGES,
    FURNISH_STAGES,
    RESTORE_STAGES,
    WORKER_STAGES,
    Stage,
)
from support.processes.patience import PATIENT, eventually
from support.saving.daemons_and_workers import (
    Node,
    Worker,
    cluster,
    content,
    fetched,
    is_content_of,
    plan_of,
    round_info,
    started,
    under_agent,
)
from support.saving.stored_commits import commits_of, restored_from_store

import spotelastic as se

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("stage", every_other(WORKER_STAGES))
def test_a_worker_that_dies_while_saving_leaves_its_last_whole_save(
    tmp_path: Path, stage: str
) -> None:
    with cluster(tmp_path) as [node]:
        epoch = node.agent.claim("test", timeout=PATIENT).epoch
        node.begin(round_info("r1", 0, ["n0"], 1, epoch))
        assert node.spawn("r1", 0, (1, 1), steps=2, die_at="") == 0
        node.agent.end()
        node.begin(
            round_info("r2", 0, ["n0"], 1, node.agent.claim("test", timeout=PATIENT).epoch,
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


@pytest.mark.parametrize("stage", every_other(COMMIT_STAGES))
def test_a_daemon_that_dies_while_committing_is_made_good_by_the_next(
    tmp_path: Path, stage: str
) -> None:
    with cluster(tmp_path) as [node]:
        epoch = node.agent.claim("test", timeout=PATIENT).epoch
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
                node.agent.claim("test", timeout=PATIENT)
            worker.save(5, due=True)
        eventually(node.died)
        node.agent.close()
        between = commits_of(node.storage)
        assert max(between) >= max(before)

        node.start()
        epoch = (
            node.agent.claim("test", timeout=PATIENT).epoch if stage == "epoch-claimed" else epoch
        )
        node.begin(round_info("r1", 0, ["n0"], 1, epoch, schedule=Schedule(1, 0)))
        assert node.agent.flush(PATIENT)
        worker.save(6, due=True)
        assert worker.client.flush(PATIENT)
        worker.client.leave(clean=True)
        assert Commit(epoch, 6) == max(commits_of(node.storage))
        eventually(lambda: len(commits_of(node.storage)) == 3)
        assert restored_from_store(node, Commit(epoch, 6), 6)
        node.agent.end()
        # What is left half-written goes with the first commit of a later epoch.
        _, worker = started(node, "r2")
        worker.save(7, due=True)
        assert worker.client.flush(PATIENT)
        worker.client.leave(clean=True)
        eventually(lambda: open_storage(node.storage).unfinished() == [])


def one_step_is_saved(node: Node) -> int:
    """By a round that has ended since; its storage epoch."""
    epoch, worker = started(node)
    worker.save(1)
    assert worker.client.flush(PATIENT)
    worker.client.leave(clean=True)
    node.agent.end()
    return epoch


@pytest.mark.parametrize("stage", every_other(FETCH_STAGES))
def test_a_daemon_that_dies_while_a_worker_restores_leaves_nothing_half_read(
    tmp_path: Path, stage: str
) -> None:
    with cluster(tmp_path) as [node]:
        epoch = one_step_is_saved(node)
        node.agent.close()
        node.stop()

        node.start(die_at=stage)
        node.begin(round_info("r2", 0, ["n0"], 1, 0))
        worker = Worker(str(node.socket), "r2", 0, 0, plan_of(1, 1), prepare=False)
        resume = Resume("store", 1, epoch=epoch)
        with pytest.raises((DaemonUnavailable, TimeoutError)):
            # Where it dies while it opens the source, nobody will answer that any more.
            within = 1.0 if stage == Stage.FETCH_OPENED else PATIENT
            fetched(worker.client, resume, within=within)
        eventually(node.died)
        assert len(list(node.arena.glob("restore-*"))) == 1
        node.agent.close()

        node.start()
        assert not list(node.arena.glob("restore-*"))
        assert restored_from_store(node, Commit(epoch, 1), 1)


@pytest.mark.parametrize("stage", every_other(RESTORE_STAGES))
@pytest.mark.parametrize("source", ["memory", "store"])
def test_a_worker_that_dies_while_it_restores_takes_nothing_from_the_next(
    tmp_path: Path, stage: str, source: str
) -> None:
    with cluster(tmp_path) as [node]:
        epoch = one_step_is_saved(node)
        [saved] = node.agent.status().snapshots
        resume = {
            "memory": Resume("memory", 1, "r1", saved.layout),
            "store": Resume("store", 1, epoch=epoch),
        }[source]

        lineage = [Branch("r1", 1)]
        node.begin(round_info("r2", 0, ["n0"], 1, 0, lineage=lineage))
        assert node.spawn("r2", 0, (1, 1), steps=1, die_at=stage, resume=resume) == -9
        node.agent.end()
        assert not list(node.arena.glob("restore-*"))

        node.begin(round_info("r3", 0, ["n0"], 1, 0, lineage=lineage))
        assert node.spawn("r3", 0, (1, 1), steps=0, die_at="", resume=resume) == 0


@pytest.mark.parametrize("stage", every_other(FURNISH_STAGES))
def test_a_daemon_that_dies_while_it_makes_slots_leaves_some_that_the_next_can_use(
    tmp_path: Path, stage: str
) -> None:
    with cluster(tmp_path) as [node]:
        node.stop()
        node.start(die_at=stage)
        epoch = node.agent.claim("test", timeout=PATIENT).epoch
        begun = round_info("r1", 0, ["n0"], 1, epoch)
        node.begin(begun)
        with ThreadPoolExecutor(1) as pool:
            starting = pool.submit(Worker, str(node.socket), "r1", 0, 0, plan_of(1, 1))
            eventually(node.died)
            node.agent.close()
            node.start()
            node.begin(begun)
            worker = starting.result(PATIENT)
        for step in range(1, 5):
            worker.save(step)
        assert worker.client.flush(PATIENT)
        worker.client.leave(clean=True)
        assert restored_from_store(node, Commit(epoch, 4), 4)


def test_a_restore_outlives_the_daemon_that_was_bringing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"rows": torch.arange(100_000)}
    with cluster(tmp_path) as [node]:
        with (
            under_agent(node, "r1", Resume(), monkeypatch, Schedule(1, 1)),
            se.Checkpointer(state) as checkpoint,
        ):
            for step in (1, 2):
                checkpoint.step(step)
                assert checkpoint.save() and checkpoint.wait()
        newest = node.agent.status().commit
        assert newest is not None and newest.step == 2, "and there is one to go back to"
        node.agent.close()
        node.stop()

        node.start(die_at=Stage.FETCH_WROTE)
        state["rows"] = torch.zeros(100_000, dtype=torch.long)
        resume = Resume("store", newest.step, epoch=newest.epoch)
        with (
            under_agent(node, "r2", resume, monkeypatch),
            se.Checkpointer(state) as checkpoint,
            ThreadPoolExecutor(1) as pool,
        ):
            restoring = pool.submit(checkpoint.restore)
            eventually(node.died)
            node.agent.close()
            node.start()
            assert restoring.result(PATIENT) == 2
        assert torch.equal(state["rows"], torch.arange(100_000))


def test_a_flipped_byte_is_found_and_named(tmp_path: Path) -> None:
    with cluster(tmp_path) as [node]:
        epoch, worker = started(node)
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


def test_what_is_fetched_takes_the_place_of_slots_that_are_overwritten_next(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path) as [node]:
        epoch = node.agent.claim("test", timeout=PATIENT).epoch
        node.begin(round_info("r1", 0, ["n0"], 1, epoch, schedule=Schedule(1, 0)))
        worker = Worker(str(node.socket), "r1", 0, 0, plan_of(1, 1))
        assert worker.client.ready.wait(PATIENT), "three slots"
        for step in (1, 2, 3):
            worker.save(step, due=step == 1)
            assert worker.client.flush(PATIENT)
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

        def goes_to(number: int) -> None:
            worker.step(number)
            released.append(number)

        thread = Thread(target=goes_to, args=(3,))
        thread.start()
        eventually(lambda: any(isinstance(e, Sealed) and e.waiting for e in events))
        assert not released
        node.agent.set_target("r1", "p1", 5)
        thread.join(PATIENT)
        assert released == [3]
        worker.step(4)
        thread = Thread(target=goes_to, args=(5,))
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
