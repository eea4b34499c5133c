"""What is away or missing during a restore is waited for, and never taken for damage."""

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import pytest
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.errors import ArenaFull, RestoreFailed, StorageUnavailable
from spotelastic_checkpoints.format import manifest
from spotelastic_checkpoints.format.manifest import Manifest, Shard
from spotelastic_checkpoints.memory.arena import Arena
from spotelastic_checkpoints.memory.free_memory import FreeMemory
from spotelastic_checkpoints.messages import Fetch
from spotelastic_checkpoints.peers.handshake import PeerCredentials
from spotelastic_checkpoints.restore import fetcher, sources
from spotelastic_checkpoints.restore.shared_restores import Restores
from spotelastic_checkpoints.restore.sources import SourceContext
from spotelastic_checkpoints.storage.folder import FolderStorage
from spotelastic_checkpoints.storage.object_store import Blob
from spotelastic_checkpoints.storage.outage_retry import OutagePatience, OutageRetry
from spotelastic_checkpoints.types import Commit, Item, Resume
from support.processes.patience import PATIENT

LENGTH = 64


class Absent(FolderStorage):
    """Away for so many requests."""

    away = 0

    def get(self, key: str) -> Blob | None:
        self._answer()
        return super().get(key)

    def read(self, key: str, offset: int, target: memoryview) -> int:
        self._answer()
        return super().read(key, offset, target)

    def keys(self, prefix: str = "") -> list[str]:
        self._answer()
        return super().keys(prefix)

    def _answer(self) -> None:
        if self.away:
            self.away -= 1
            raise StorageUnavailable("no answer")


HASTY = OutagePatience(first=0.001, most=0.002, worth_a_word=0.002)


@pytest.fixture
def storage(tmp_path: Path) -> Absent:
    """Two commits, of epoch 1."""
    storage = Absent(tmp_path / "store")
    commits = Commits(storage, "test")
    assert commits.claim().epoch == 1
    for step in (1, 2):
        item = Item("v", ("v",), "", (), (), (), -1, 0, LENGTH)
        name, data = manifest.shard_name(0, 0), memoryview(bytes(LENGTH))
        commits.put_shard(Commit(1, step), name, data)
        shards = (Shard(name, LENGTH, (item,)),)
        commits.put_manifest(Manifest(1, 1, step, "r1", "layout", 0, 1, 1, shards))
        assert commits.commit(Commit(1, step), 1)
    return storage


def around(
    storage: Absent, tell: Callable[[str], None], patience: OutagePatience = HASTY
) -> SourceContext:
    arena = Arena(Path(storage.url).parent / "arena", 1)
    commits = Commits(storage, "test")
    retry = OutageRetry(tell, patience=patience)
    return SourceContext(arena, lambda: commits, "n0", PeerCredentials(""), tell, retry)


def test_an_outage_in_each_phase_is_waited_for_and_told_once(storage: Absent) -> None:
    told: list[str] = []

    async def main() -> None:
        restores = Restores(1, lambda: around(storage, told.append))
        storage.away = 5
        newest = await restores.find(None, None)
        assert newest == Commit(1, 2)
        storage.away = 5
        opened = await restores.open(Resume("store", 2, epoch=1), 0)
        storage.away = 5
        await restores.fetch(Fetch(opened.id, ((0, LENGTH),)), 0)
        assert storage.away == 0

    asyncio.run(main())
    assert told == ["a restore is waiting for the object store: no answer"]


def test_a_request_that_fails_once_is_not_worth_a_word(storage: Absent) -> None:
    told: list[str] = []
    storage.away = 1
    sources.open_source(1, Resume("store", 2, epoch=1), around(storage, told.append))
    assert told == []


def test_a_store_that_stays_away_is_not_a_checkpoint_that_is_damaged(
    storage: Absent,
) -> None:
    surroundings = around(storage, lambda _: None, OutagePatience(within=0.0))
    resume = Resume("store", 2, epoch=1)
    opened = sources.open_source(1, resume, surroundings)
    storage.away = 1 << 30
    with pytest.raises(StorageUnavailable, match="no answer"):
        opened.fetcher.fetch([(0, LENGTH)])
    with pytest.raises(StorageUnavailable, match="no answer"):
        sources.open_source(2, resume, surroundings)
    with pytest.raises(StorageUnavailable, match="no answer"):
        sources.find_commit(None, None, surroundings)


def test_nobody_waits_for_a_store_once_the_round_is_over(storage: Absent) -> None:
    async def main() -> None:
        waits = asyncio.Event()
        loop = asyncio.get_running_loop()

        def tell(_: str) -> None:
            loop.call_soon_threadsafe(waits.set)

        restores = Restores(1, lambda: around(storage, tell))
        storage.away = 1 << 30
        looking = asyncio.create_task(restores.find(None, None))
        await asyncio.wait_for(waits.wait(), PATIENT)
        restores.forget()
        with pytest.raises(StorageUnavailable):
            await asyncio.wait_for(looking, PATIENT)
        storage.away = 0
        assert await restores.find(None, None) == Commit(1, 2), "the next round's"

    asyncio.run(main())


def test_room_that_is_missing_is_looked_for_anew_by_all_local_ranks(
    storage: Absent, monkeypatch: pytest.MonkeyPatch
) -> None:
    resume = Resume("store", 2, epoch=1)

    async def main() -> None:
        restores = Restores(2, lambda: around(storage, lambda _: None))
        first = [await restores.open(resume, local) for local in range(2)]
        assert first[0] == first[1]
        wanted = ((0, LENGTH),)
        with monkeypatch.context() as full:
            full.setattr(fetcher, "room", lambda _: FreeMemory(0, "here", "make room"))
            with pytest.raises(ArenaFull, match="0 MiB are free here"):
                await restores.fetch(Fetch(first[0].id, wanted), 0)
        again = await restores.open(resume, 0)
        await restores.fetch(Fetch(again.id, wanted), 0)
        with pytest.raises(ArenaFull, match="0 MiB are free here"):
            await restores.fetch(Fetch(first[1].id, wanted), 1)
        assert await restores.open(resume, 1) == again
        await restores.fetch(Fetch(again.id, wanted), 1)
        for local in range(2):
            restores.done(again.id, local)
        assert not Path(again.file).exists()
        restores.forget()
        with pytest.raises(RestoreFailed, match="another round has begun"):
            await restores.fetch(Fetch(first[1].id, wanted), 1)

    asyncio.run(main())


def test_a_file_that_cannot_be_made_is_no_fault_of_the_checkpoint(
    storage: Absent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "touch", full)
    with pytest.raises(ArenaFull, match="restore-1: No space left on device"):
        sources.open_source(1, Resume("store", 2, epoch=1), around(storage, lambda _: None))


def test_an_end_is_noticed_within_a_wait() -> None:
    patience = OutagePatience(first=PATIENT, most=PATIENT)
    patient, asked, ended = OutageRetry(lambda _: None, patience=patience), Event(), Event()

    def away() -> None:
        asked.set()
        raise StorageUnavailable("no answer")

    def wait() -> None:
        with pytest.raises(StorageUnavailable):
            patient.ask(away)
        ended.set()

    Thread(target=wait, daemon=True).start()
    assert asked.wait(PATIENT)
    patient.end()
    assert ended.wait(PATIENT / 2)
