"""The note that a checkpoint was verified: shown, taken back, and gone with the checkpoint."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from spotelastic_checkpoints.catalog.catalog import Catalog
from spotelastic_checkpoints.commit import retention, verification
from spotelastic_checkpoints.commit.commit_protocol import Commits, folder
from spotelastic_checkpoints.commit.retention import Keep
from spotelastic_checkpoints.errors import StorageRefused
from spotelastic_checkpoints.format import metadata
from spotelastic_checkpoints.storage.folder import FolderStorage
from spotelastic_checkpoints.types import Commit
from support.saving.commit_protocol import put_all

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.fixture
def commits(tmp_path: Path) -> Commits:
    """Steps 10, 20 and 30 are committed."""
    commits = Commits(FolderStorage(tmp_path), "me")
    epoch = commits.claim().epoch
    for step in (10, 20, 30):
        put_all(commits, epoch, step)
        assert commits.commit(Commit(epoch, step), epoch)
    return commits


def noted(commits: Commits) -> dict[int, datetime | None]:
    return {entry.step: entry.verified for entry in Catalog(commits.storage).entries()}


def names(commits: Commits, step: int) -> list[str]:
    prefix = folder(Commit(1, step)) + "/"
    return [key.removeprefix(prefix) for key in commits.storage.keys(prefix)]


def test_what_was_verified_is_listed_until_it_is_found_damaged(commits: Commits) -> None:
    catalog = Catalog(commits.storage)
    ages = {entry.step: entry.written for entry in catalog.entries()}
    checkpoint = catalog.find(20)
    catalog.note(checkpoint, [], datetime(2026, 4, 1, tzinfo=UTC))
    catalog.note(checkpoint, [], NOW)
    assert noted(commits) == {10: None, 20: NOW, 30: None}
    assert {entry.step: entry.written for entry in catalog.entries()} == ages
    catalog.note(checkpoint, ["a shard is damaged"], NOW)
    assert noted(commits) == {10: None, 20: None, 30: None}
    commits.storage.put(verification.key(Commit(1, 20)), memoryview(b"not ours"))
    assert noted(commits)[20] is None


def test_a_note_goes_with_its_checkpoint(commits: Commits) -> None:
    for step in (10, 20):
        verification.leave(commits.storage, Commit(1, step), NOW)
    retention.remove(commits, Commit(1, 10))
    retention.collect(commits, Commit(1, 30), 1, Keep(last=1))
    assert names(commits, 10) == names(commits, 20) == [metadata.NAME]


class Overtaken(FolderStorage):
    """Something happens just before each note is written."""

    def put(self, key: str, data: memoryview, progress: object = None) -> None:
        if key.endswith(verification.NAME):
            retention.remove(Commits(self, ""), Commit(1, 10))
        super().put(key, data)


def test_a_note_that_comes_after_the_removal_takes_itself_back(
    commits: Commits, tmp_path: Path
) -> None:
    verification.leave(Overtaken(tmp_path), Commit(1, 10), NOW)
    assert names(commits, 10) == [metadata.NAME]


class Listed(FolderStorage):
    """A note comes between a collection's look and its burial."""

    def swap(self, key: str, data: bytes, etag: str) -> bool:
        verification.leave(self, Commit(1, 10), NOW)
        return super().swap(key, data, etag)


def test_a_note_that_was_left_since_the_listing_goes_too(commits: Commits, tmp_path: Path) -> None:
    retention.collect(Commits(Listed(tmp_path), ""), Commit(1, 30), 1, Keep(last=2))
    assert names(commits, 10) == [metadata.NAME]


def test_a_note_whose_verifier_died_is_swept_and_not_listed(commits: Commits) -> None:
    retention.remove(commits, Commit(1, 10))
    commits.storage.put(verification.key(Commit(1, 10)), memoryview(b"{}"))
    assert list(noted(commits)) == [20, 30]
    retention.collect(commits, Commit(1, 30), 1, Keep())
    assert names(commits, 10) == [metadata.NAME]


class ReadOnly(FolderStorage):
    def put(self, key: str, data: memoryview, progress: object = None) -> None:
        raise StorageRefused(f"{key}: read only")


def test_a_note_that_may_not_be_written_is_refused(commits: Commits, tmp_path: Path) -> None:
    catalog = Catalog(ReadOnly(tmp_path))
    with pytest.raises(StorageRefused, match="read only"):
        catalog.note(catalog.find(10), [], NOW)
    assert noted(commits)[10] is None
