"""Memory and disks that are full: saves wait for room, training goes on, and nothing is lost."""

import resource
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from spotelastic_checkpoints.errors import ArenaFull, DaemonUnavailable
from spotelastic_checkpoints.messages import DaemonEvent, SaveFailed
from spotelastic_checkpoints.storage.open import open_storage
from spotelastic_checkpoints.types import Branch, Commit, Resume, Schedule
from support.processes.patience import PATIENT, eventually
from support.saving.daemons_and_workers import (
    Node,
    Worker,
    cluster,
    fetched,
    is_content_of,
    plan_of,
    round_info,
    started,
    under_agent,
)
from support.saving.small_disk import fill, small_disk
from support.saving.storage_rules import committed

import spotelastic as se

pytestmark = pytest.mark.faults


@contextmanager
def cramped(folder: Path, kib: int) -> Iterator[tuple[Node, Path]]:
    """A node that has no more shared memory than that, and where it is."""
    with small_disk(folder / "shm", kib) as shm, cluster(folder) as [node]:
        node.stop()
        node.arena = shm / "arena"
        node.start()
        yield node, shm


def test_a_full_disk_delays_commits_and_nothing_else(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "disk", 4 << 10) as disk,
        cluster(tmp_path, storage=str(disk)) as [node],
    ):
        epoch, worker = started(node)
        worker.save(1)
        assert worker.client.flush(PATIENT)
        ballast = fill(disk)
        for step in range(2, 6):
            worker.step(step)
        eventually(lambda: "No space left" in node.agent.status().error)
        assert committed(str(disk)) == Commit(epoch, 1)
        assert max(s.step for s in node.agent.status().snapshots) == 5
        ballast.unlink()
        eventually(lambda: node.agent.status().commit == Commit(epoch, 5))
        assert committed(str(disk)) == Commit(epoch, 5)
        assert open_storage(str(disk)).unfinished() == []
        worker.client.leave(clean=True)


def test_shared_memory_that_others_fill_up_takes_no_slot_away(tmp_path: Path) -> None:
    with cramped(tmp_path, 8 << 10) as (node, shm):
        epoch, worker = started(node)
        assert worker.client.ready.wait(PATIENT)
        fill(shm)
        for step in range(1, 6):
            worker.save(step)
        assert worker.client.flush(PATIENT)
        assert committed(node.storage) == Commit(epoch, 5)

        with pytest.raises(ArenaFull, match=r"two slots of 6 MiB .* SPOTELASTIC_SLOTS=1"):
            worker.client.prepare(6 << 20)
        # There is no room for a copy of what lies in the store; what is sealed here still serves.
        with pytest.raises(ArenaFull, match="are free"):
            fetched(worker.client, Resume("store", 5, epoch=epoch))
        [newest] = [s for s in node.agent.status().snapshots if s.step == 5]
        memory = Resume("memory", 5, "r1", newest.layout)
        assert is_content_of(fetched(worker.client, memory), 5)
        worker.client.leave(clean=True)


def _failures(events: list[DaemonEvent]) -> list[str]:
    return [event.message for event in events if isinstance(event, SaveFailed)]


def test_a_round_begins_where_others_have_filled_shared_memory(tmp_path: Path) -> None:
    with cramped(tmp_path, 8 << 10) as (node, shm):
        _, worker = started(node)
        assert worker.client.ready.wait(PATIENT)
        worker.save(1)
        assert worker.client.flush(PATIENT)
        worker.client.leave(clean=True)
        node.agent.end()
        fill(shm)

        events: list[DaemonEvent] = []
        node.agent.subscribe(events.append)
        epoch = node.agent.claim("test", timeout=PATIENT).epoch
        schedule, lineage = Schedule(1, 0), [Branch("r1", 1)]
        unclaimed = round_info("r2", 0, ["n0"], 1, 0, schedule=schedule, lineage=lineage)
        node.begin(unclaimed)
        worker = Worker(str(node.socket), "r2", 0, 0, plan_of(1, 1))
        claimed = structs.replace(unclaimed, epoch=epoch)
        node.begin(claimed)
        worker.step(2)
        assert node.agent.status().workers[0].step == 2
        eventually(lambda: len(_failures(events)) == 2)  # which a connection of their own brings
        [told, _] = _failures(events)
        assert "No space left on device: the round could not be written down" in told

        # The next daemon knows of the first round only, until it is told.
        node.kill()
        node.start()
        with pytest.raises(DaemonUnavailable, match="r2 is not the current one"):
            node.agent.set_target("r2", "p1", 3)
        node.begin(claimed)
        [found] = node.agent.status().workers
        assert (found.step, found.attached) == (2, True), "its page is still its own"
        worker.save(3, due=True)
        assert worker.client.flush(PATIENT)
        assert committed(node.storage) == Commit(epoch, 3)
        worker.client.leave(clean=True)


def test_slots_that_find_no_room_are_made_once_there_is(tmp_path: Path) -> None:
    with cluster(tmp_path) as [node]:
        events: list[DaemonEvent] = []
        node.agent.subscribe(events.append)
        assert node.process is not None
        resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (4 * 4096, -1))
        epoch, worker = started(node)
        eventually(lambda: any(isinstance(event, SaveFailed) for event in events))
        assert worker.client.open_slot(0.1) is None, "training goes on without"
        resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (-1, -1))
        worker.save(1)
        assert worker.client.flush(PATIENT)
        assert committed(node.storage) == Commit(epoch, 1)
        [told] = [event for event in events if isinstance(event, SaveFailed)]
        assert "no memory for a slot" in told.message
        worker.client.leave(clean=True)


def test_a_state_that_outgrows_shared_memory_trains_on_and_is_saved_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cramped(tmp_path, 16 << 10) as (node, shm):
        events: list[DaemonEvent] = []
        node.agent.subscribe(events.append)
        state: dict[str, Any] = {"rows": torch.zeros(1000)}
        with (
            under_agent(node, "r1", Resume(), monkeypatch, Schedule(1, 1)),
            se.Checkpointer(state) as checkpoint,
        ):
            checkpoint.step(1)
            assert checkpoint.save() and checkpoint.wait()
            ballast = fill(shm)
            state["rows"] = torch.ones(1 << 18)
            for step in range(2, 6):
                checkpoint.step(step)
            missing = "nothing is saved until there is room: two slots of 1 MiB"
            eventually(
                lambda: any(missing in e.message for e in events if isinstance(e, SaveFailed))
            )
            assert committed(node.storage) == Commit(1, 1)
            ballast.unlink()
            checkpoint.step(6)
            assert checkpoint.save() and checkpoint.wait()
            assert committed(node.storage) == Commit(1, 6)


def test_a_restore_waits_for_room_and_goes_back_to_nothing_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"rows": torch.zeros(1 << 18)}
    with small_disk(tmp_path / "shm", 8 << 10) as shm, cluster(tmp_path) as [node]:
        with (
            under_agent(node, "r1", Resume(), monkeypatch, Schedule(1, 1)),
            se.Checkpointer(state) as checkpoint,
        ):
            for step in (1, 2):
                state["rows"] += 1
                checkpoint.step(step)
                assert checkpoint.save() and checkpoint.wait()
        node.agent.close()
        node.stop()

        node.arena = shm / "arena"
        node.start()
        ballast = fill(shm)
        waits = threading.Event()

        def hear(event: DaemonEvent) -> None:
            if isinstance(event, SaveFailed) and "a restore is waiting for memory" in event.message:
                waits.set()

        node.agent.subscribe(hear)
        with (
            under_agent(node, "r2", Resume("store", 2, epoch=1), monkeypatch),
            se.Checkpointer(state) as checkpoint,
            ThreadPoolExecutor(1) as pool,
        ):
            state["rows"].zero_()
            restoring = pool.submit(checkpoint.restore)
            assert waits.wait(PATIENT)
            ballast.unlink()
            assert restoring.result(PATIENT) == 2
        assert torch.equal(state["rows"], torch.full((1 << 18,), 2.0))


def test_one_slot_is_enough_where_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTELASTIC_SLOTS", "1")
    with cluster(tmp_path) as [node]:
        epoch, worker = started(node)
        assert worker.client.ready.wait(PATIENT)
        for step in range(1, 5):
            worker.save(step)
        assert worker.client.flush(PATIENT)
        assert committed(node.storage) == Commit(epoch, 4)
        assert len(list(node.arena.glob("slot-*"))) == 1
        worker.client.leave(clean=True)
