"""The commit protocol when the store fails at any call, before or after the work was done."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import pytest
from spotelastic_checkpoints import layout, manifest, metadata, retention
from spotelastic_checkpoints.catalog import Catalog
from spotelastic_checkpoints.commits import Commits, step_folders
from spotelastic_checkpoints.errors import Fenced, RestoreFailed, StorageRefused, StorageUnavailable
from spotelastic_checkpoints.layout import Declaration, Declared
from spotelastic_checkpoints.retention import Keep
from spotelastic_checkpoints.storage.folder import FolderStorage
from spotelastic_checkpoints.storage.port import Blob, unseen
from spotelastic_checkpoints.wire import Claim, Commit

T = TypeVar("T")


class Unreliable:
    """Answers 503 at the nth call: before it is carried out, or after, as a lost answer does."""

    def __init__(self, storage: FolderStorage, fail_at: int, *, carried_out: bool) -> None:
        self.url, self.weaker = storage.url, storage.weaker
        self._storage = storage
        self._fail_at = fail_at
        self._carried_out = carried_out
        self.calls = 0

    def _call(self, work: Callable[[], T]) -> T:
        self.calls += 1
        if self.calls != self._fail_at:
            return work()
        if self._carried_out:
            work()
        raise StorageUnavailable("503")

    def get(self, key: str) -> Blob | None:
        return self._call(lambda: self._storage.get(key))

    def read(self, key: str, offset: int, target: memoryview) -> int:
        return self._call(lambda: self._storage.read(key, offset, target))

    def put(self, key: str, data: memoryview, progress: Callable[[int], None] = unseen) -> None:
        self._call(lambda: self._storage.put(key, data, progress))

    def create(self, key: str, data: bytes) -> bool:
        return self._call(lambda: self._storage.create(key, data))

    def swap(self, key: str, data: bytes, etag: str) -> bool:
        return self._call(lambda: self._storage.swap(key, data, etag))

    def keys(self, prefix: str = "") -> list[str]:
        return self._call(lambda: self._storage.keys(prefix))

    def delete(self, keys: Iterable[str]) -> None:
        self._call(lambda: self._storage.delete(keys))

    def unfinished(self) -> list[str]:
        return self._call(self._storage.unfinished)

    def abort_uploads(self, prefix: str) -> int:
        return self._call(lambda: self._storage.abort_uploads(prefix))

    def close(self) -> None:
        self._storage.close()


def retried(work: Callable[[], T]) -> T:
    try:
        return work()
    except StorageUnavailable:
        return work()


def put_all(commits: Commits, epoch: int, step: int, ranks: Iterable[int] = (0, 1)) -> None:
    plan = layout.plan(
        [Declaration(rank, "n", (Declared(f"v{rank}", ("v",), room=64),)) for rank in (0, 1)]
    )
    for rank in ranks:
        slot = plan.slots[rank]
        data = memoryview(bytes(slot.owned_bytes))
        retried(lambda rank=rank, data=data: commits.put_shard(Commit(epoch, step), rank, data))
        content = manifest.Manifest(
            version=1,
            epoch=epoch,
            step=step,
            incarnation=f"round-{epoch}",
            layout=plan.hash,
            rank=rank,
            world_size=2,
            chunks=plan.chunks,
            file=manifest.shard_name(rank),
            nbytes=len(data),
            items=slot.items[: slot.owned],
        )
        retried(lambda content=content: commits.put_manifest(content))


def scenario(commits: Commits) -> int:
    """Two rounds, commits that retire others; the epoch of the second round."""
    first = retried(commits.claim).epoch
    for step in (1, 2, 3):
        put_all(commits, first, step)
        assert retried(lambda step=step: commits.commit(Commit(first, step), first))
    retried(lambda: retention.pin(commits, Commit(first, 1)))
    put_all(commits, first, 4, ranks=[0])
    claim = retried(commits.claim)
    assert claim == Claim(first + 1, Commit(first, 3))
    put_all(commits, claim.epoch, 4)
    latest = Commit(claim.epoch, 4)
    assert retried(lambda: commits.commit(latest, claim.epoch))
    retried(lambda: retention.collect(commits, latest, claim.epoch, Keep(2)))
    return claim.epoch


def calls_of_the_scenario(folder: Path) -> int:
    counted = Unreliable(FolderStorage(folder), 0, carried_out=False)
    scenario(Commits(counted, "me"))
    return counted.calls


@pytest.mark.parametrize("carried_out", [False, True])
def test_a_failure_at_any_call_leaves_the_same_commits(tmp_path: Path, carried_out: bool) -> None:
    calls = calls_of_the_scenario(tmp_path / "count")
    assert calls > 40
    for fail_at in range(1, calls + 1):
        folder = FolderStorage(tmp_path / str(fail_at))
        storage = Unreliable(folder, fail_at, carried_out=carried_out)
        epoch = scenario(Commits(storage, "me"))
        reader = Commits(folder, "me")
        assert reader.latest() == Commit(epoch, 4), fail_at
        kept = [c for c, found in step_folders(folder.keys()).items() if len(found.names) > 1]
        # A failure in the middle of collecting may leave more than is wanted, never less.
        assert {Commit(epoch - 1, 3), Commit(epoch, 4)} <= set(kept), fail_at
        reader.checkpoint(Commit(epoch - 1, 3))
        reader.checkpoint(Commit(epoch, 4))
        retention.collect(reader, Commit(epoch, 4), epoch, Keep(2))
        kept = [c for c, found in step_folders(folder.keys()).items() if len(found.names) > 1]
        assert kept == [Commit(epoch - 1, 1), Commit(epoch - 1, 3), Commit(epoch, 4)], fail_at
        reader.checkpoint(Commit(epoch - 1, 1))


def test_a_step_that_was_swept_can_no_longer_be_committed(tmp_path: Path) -> None:
    commits = Commits(FolderStorage(tmp_path), "me")
    old = commits.claim().epoch
    put_all(commits, old, 5, ranks=[0])
    new = commits.claim().epoch
    put_all(commits, new, 5)
    assert commits.commit(Commit(new, 5), new)
    retention.collect(commits, Commit(new, 5), new, Keep())
    # The missing rank of the old round comes late.
    put_all(commits, old, 5, ranks=[0, 1])
    with pytest.raises(Fenced, match="retired"):
        commits.commit(Commit(old, 5), old)
    assert commits.latest() == Commit(new, 5)


def committed(commits: Commits, epoch: int, *steps: int) -> None:
    for step in steps:
        put_all(commits, epoch, step)
        assert commits.commit(Commit(epoch, step), epoch)


def test_pinned_commits_and_multiples_stay_until_they_are_let_go(tmp_path: Path) -> None:
    commits = Commits(FolderStorage(tmp_path), "me")
    epoch = commits.claim().epoch
    committed(commits, epoch, 10, 15, 20, 25, 30)
    retention.pin(commits, Commit(epoch, 15))
    retention.pin(commits, Commit(epoch, 15))
    latest = Commit(epoch, 30)
    retention.collect(commits, latest, epoch, Keep(last=1, every=20))
    entries = Catalog(commits.storage).entries()
    assert [(e.step, e.pinned) for e in entries] == [(15, True), (20, False), (30, False)]
    commits.checkpoint(Commit(epoch, 15))
    # Writing it again is still a no-op.
    assert commits.commit(Commit(epoch, 15), epoch)

    with pytest.raises(StorageRefused, match="pinned"):
        retention.remove(commits, Commit(epoch, 15))
    with pytest.raises(StorageRefused, match="LATEST"):
        retention.remove(commits, latest)
    retention.unpin(commits, Commit(epoch, 15))
    retention.collect(commits, latest, epoch, Keep(last=1, every=20))
    retention.remove(commits, Commit(epoch, 20))
    assert [e.step for e in Catalog(commits.storage).entries()] == [30]
    with pytest.raises(RestoreFailed):
        retention.pin(commits, Commit(epoch, 15))


def test_of_a_pin_and_a_burial_that_race_the_first_wins(tmp_path: Path) -> None:
    commits = Commits(FolderStorage(tmp_path), "me")
    epoch = commits.claim().epoch
    committed(commits, epoch, 1, 2)

    class PinsMeanwhile(FolderStorage):
        """Between the collector's look at a record and its swap."""

        def swap(self, key: str, data: bytes, etag: str) -> bool:
            if metadata.is_tombstone(data):
                retention.pin(commits, Commit(epoch, 1))
            return super().swap(key, data, etag)

    late = Commits(PinsMeanwhile(tmp_path), "me")
    retention.collect(late, Commit(epoch, 2), epoch, Keep(last=1))
    commits.checkpoint(Commit(epoch, 1))


def test_uploads_that_earlier_epochs_left_are_ended(tmp_path: Path) -> None:
    folder = FolderStorage(tmp_path)
    commits = Commits(folder, "me")
    left = [tmp_path / f"{epoch}/step-00000001/.writing-x" for epoch in (1, 2, 3)]
    for path in left:
        path.parent.mkdir(parents=True)
        path.write_bytes(b"half")
    assert retention.sweep_uploads(commits, 3) == 2
    assert [path.exists() for path in left] == [False, False, True]


def test_latest_never_goes_back(tmp_path: Path) -> None:
    commits = Commits(FolderStorage(tmp_path), "me")
    epoch = commits.claim().epoch
    for step in (2, 1):
        put_all(commits, epoch, step)
        assert commits.commit(Commit(epoch, step), epoch)
        assert commits.latest() == Commit(epoch, 2)


def test_a_step_without_all_manifests_is_not_committed(tmp_path: Path) -> None:
    commits = Commits(FolderStorage(tmp_path), "me")
    epoch = commits.claim().epoch
    put_all(commits, epoch, 1, ranks=[0])
    assert not commits.commit(Commit(epoch, 1), epoch)
    assert commits.claim().commit is None


def test_what_the_last_round_completed_is_adopted_by_the_next(tmp_path: Path) -> None:
    commits = Commits(FolderStorage(tmp_path), "me")
    epoch = commits.claim().epoch
    put_all(commits, epoch, 1)
    assert commits.claim().commit == Commit(epoch, 1)
    # But not what an older round completed after it was fenced: it may be another history.
    put_all(commits, epoch, 2)
    assert commits.claim().commit == Commit(epoch, 1)
