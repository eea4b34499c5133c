"""Reads all commits of a checkpoint storage, and checks that each is complete and restorable."""

from spotelastic_checkpoints.commit.commit_protocol import Commits, folder, step_folders
from spotelastic_checkpoints.errors import RestoreFailed
from spotelastic_checkpoints.format import metadata
from spotelastic_checkpoints.storage.object_store import Storage
from spotelastic_checkpoints.storage.open import open_storage
from spotelastic_checkpoints.types import Commit, Resume
from support.saving.daemons_and_workers import (
    Node,
    Worker,
    fetched,
    is_content_of,
    plan_of,
    round_info,
)


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
