"""Collections go one at a time, and what falls due meanwhile makes one more."""

import asyncio
import math
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from spotelastic_checkpoints.catalog.catalog import Catalog
from spotelastic_checkpoints.commit import retention
from spotelastic_checkpoints.commit.collector import Collector
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.commit.retention import Keep
from spotelastic_checkpoints.errors import StorageRefused, StorageUnavailable
from spotelastic_checkpoints.format import metadata
from spotelastic_checkpoints.storage.folder import FolderStorage
from spotelastic_checkpoints.storage.object_store import Blob
from spotelastic_checkpoints.types import Commit, StepPoint
from support.processes.patience import PATIENT, eventually
from support.saving.commit_protocol import put_all


class Held(FolderStorage):
    """Holds back each collection's listing until it is told to go on, and may be away then."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.listings = 0
        self.records: Counter[str] = Counter()
        """That collections have read."""
        self.away = False
        self.listed, self.go_on = threading.Event(), threading.Event()

    def keys(self, prefix: str = "") -> list[str]:
        if not prefix and is_a_collection():
            self.listings += 1
            self.listed.set()
            assert self.go_on.wait(PATIENT)
            if self.away:
                raise StorageUnavailable("away")
        return super().keys(prefix)

    def get(self, key: str) -> Blob | None:
        if key.endswith(metadata.NAME) and is_a_collection():
            self.records[key] += 1
        return super().get(key)


def is_a_collection() -> bool:
    """Whether it asks; otherwise it is the test that commits."""
    return threading.current_thread() is not threading.main_thread()


NEWEST = Keep(last=1)


def collecting(
    storage: Held,
    work: Callable[[Collector, Callable[[int], None]], Awaitable[None]],
    keep: Keep = NEWEST,
) -> list[str]:
    """What a collector tells while `work` is done, which may commit steps."""
    told: list[str] = []
    commits = Commits(storage, "test")
    epoch = commits.claim().epoch

    async def main() -> None:
        with ThreadPoolExecutor(1) as pool:
            collector = Collector(lambda: commits, told.append, pool, keep)
            collector.on = True
            running = asyncio.create_task(collector.run())

            def commit(step: int) -> None:
                put_all(commits, epoch, step)
                assert commits.commit(Commit(epoch, step), epoch)
                collector.committed(Commit(epoch, step), epoch)

            await work(collector, commit)
            running.cancel()

    asyncio.run(main())
    return told


async def idle(collector: Collector) -> None:
    await asyncio.to_thread(eventually, lambda: not collector.busy)


def steps(storage: Held) -> list[int]:
    return [entry.step for entry in Catalog(storage).entries()]


def test_commits_made_during_a_collection_are_collected_together_after_it(tmp_path: Path) -> None:
    storage = Held(tmp_path)

    async def work(collector: Collector, commit: Callable[[int], None]) -> None:
        commit(1)
        assert await asyncio.to_thread(storage.listed.wait, PATIENT)
        for step in (2, 3, 4):
            commit(step)
        assert storage.listings == 1
        storage.go_on.set()
        await idle(collector)
        assert (storage.listings, steps(storage)) == (2, [4])
        collector.on = False
        commit(5)
        await idle(collector)
        assert (storage.listings, steps(storage)) == (2, [4, 5])

    assert collecting(storage, work) == []


def test_what_could_not_be_collected_is_told_once_and_collected_later(tmp_path: Path) -> None:
    storage = Held(tmp_path)
    storage.away = True
    storage.go_on.set()

    async def work(collector: Collector, commit: Callable[[int], None]) -> None:
        for step in (1, 2):
            commit(step)
            await idle(collector)
            assert "away" in collector.problem
        storage.away = False
        commit(3)
        await idle(collector)
        assert (collector.problem, steps(storage)) == ("", [3])

    [told] = collecting(storage, work)
    assert told == "old checkpoints were not collected: away"


def points(first: int, *losses: float | None) -> tuple[StepPoint, ...]:
    return tuple(StepPoint(step, loss, 0.0) for step, loss in enumerate(losses, first))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_while_losses_are_not_finite_no_commit_is_deleted(tmp_path: Path, bad: float) -> None:
    storage = Held(tmp_path)
    storage.go_on.set()

    async def work(collector: Collector, commit: Callable[[int], None]) -> None:
        collector.seen(points(1, 1.0, None), 1)
        for step in (2, 4):
            commit(step)
            await idle(collector)
        collector.seen(points(5, bad, None, bad), 1)  # not of every step
        for step in (6, 8, 10):
            commit(step)
            await idle(collector)
        assert steps(storage) == [4, 6, 8, 10]

    told = collecting(storage, work)
    since = "the loss has not been finite since step 5"
    assert told == [f"{since}: no checkpoint is deleted until it is"]

    async def by_another(collector: Collector, commit: Callable[[int], None]) -> None:
        commit(12)  # it has seen no loss yet
        await idle(collector)
        assert steps(storage) == [4, 6, 8, 10, 12]
        collector.seen(points(13, None), 2)
        commit(14)
        await idle(collector)
        assert steps(storage) == [4, 6, 8, 10, 12, 14]
        collector.seen(points(15, 0.5), 2)
        commit(16)
        await idle(collector)
        assert steps(storage) == [16]

    assert collecting(storage, by_another) == []


def test_what_was_held_before_a_fresh_start_holds_nothing(tmp_path: Path) -> None:
    commits = Commits(FolderStorage(tmp_path), "test")
    retention.hold(commits, commits.claim().epoch, 5)
    assert retention.is_held(commits)
    commits.begin_afresh()
    assert not retention.is_held(commits)


class WithoutListing(Held):
    """Its credentials may not list unfinished uploads."""

    def unfinished(self) -> list[str]:
        raise StorageRefused("403: may not list uploads")


def test_records_of_all_steps_are_read_once_even_where_uploads_cannot_be_listed(
    tmp_path: Path,
) -> None:
    storage = WithoutListing(tmp_path)
    storage.go_on.set()

    async def work(collector: Collector, commit: Callable[[int], None]) -> None:
        for step in (1, 2, 3):
            commit(step)
            await idle(collector)
        assert list(storage.records.values()) == [1, 1, 1]

    told = collecting(storage, work, Keep(last=1, every=1))
    assert told == ["old checkpoints were not collected: 403: may not list uploads"]


class Record(bytes):
    """Counts those that are in memory."""

    alive = most = 0

    def __new__(cls, data: bytes) -> "Record":
        cls.alive += 1
        cls.most = max(cls.most, cls.alive)
        return super().__new__(cls, data)

    def __del__(self) -> None:
        Record.alive -= 1


class Remembering(FolderStorage):
    def get(self, key: str) -> Blob | None:
        blob = super().get(key)
        return Blob(Record(blob.data), blob.etag) if blob is not None else None


def test_a_thorough_collection_has_one_record_and_the_next_in_memory(tmp_path: Path) -> None:
    commits = Commits(FolderStorage(tmp_path), "test")
    epoch = commits.claim().epoch
    for step in range(1, 7):
        put_all(commits, epoch, step)
        assert commits.commit(Commit(epoch, step), epoch)
    reader = Commits(Remembering(tmp_path), "test")
    retention.collect(reader, Commit(epoch, 6), epoch, Keep(last=1, every=2))
    assert [entry.step for entry in Catalog(commits.storage).entries()] == [2, 4, 6]
    assert (Record.alive, Record.most) == (0, 2)
