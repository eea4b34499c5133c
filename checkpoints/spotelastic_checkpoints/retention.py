"""What is collected, and in which order (docs/protocols.md, Commit).

A commit record is never deleted: a tombstone takes its place before the shards go, so that a late
or repeated write cannot bring the step back. Uncommitted steps go by epoch, never by age, and only
once a newer commit makes them useless.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass

from spotelastic_checkpoints import metadata, stages
from spotelastic_checkpoints.commits import Commits, StepFolder, folder, step_folders
from spotelastic_checkpoints.stages import Stage
from spotelastic_checkpoints.wire import Commit

KEEP = 3
"""Commits that stay."""


@dataclass(frozen=True, slots=True)
class Collection:
    """What is to go."""

    retire: tuple[StepFolder, ...]
    """Commits beyond those that are kept."""
    sweep: tuple[StepFolder, ...]
    """Steps that must never be committed any more."""
    finish: tuple[StepFolder, ...]
    """Tombstones whose shards are still there: whoever was at it died."""


def decide(
    folders: Mapping[Commit, StepFolder],
    buried: Set[Commit],
    latest: Commit,
    epoch: int,
    keep: int = KEEP,
) -> Collection:
    """`buried` have a tombstone, `latest` is what LATEST names, `epoch` our own.

    A folder that holds its record alone has been collected.
    """
    full = [found for found in folders.values() if found.has_record and len(found.names) > 1]
    older = [found for found in full if found.commit < latest and found.commit not in buried]
    uncommitted = [found for found in folders.values() if not found.has_record]
    return Collection(
        retire=tuple(older[: max(0, len(older) - (keep - 1))]),
        sweep=tuple(
            found for found in uncommitted if found.commit.epoch < epoch and found.commit < latest
        ),
        finish=tuple(found for found in full if found.commit in buried),
    )


def collect(commits: Commits, latest: Commit, epoch: int, keep: int = KEEP) -> None:
    """Carries out `decide`. May die anywhere: what is left is found again next time."""
    storage = commits.storage
    folders = step_folders(storage.keys())
    records = {
        commit: storage.get(_record_key(found))
        for commit, found in folders.items()
        if found.has_record and len(found.names) > 1
    }
    buried = {
        commit
        for commit, record in records.items()
        if record is not None and metadata.is_tombstone(record.data)
    }
    collection = decide(folders, buried, latest, epoch, keep)
    for found in collection.finish:
        _delete(commits, found)
    for found in collection.retire:
        record = records[found.commit]
        if record is not None and storage.swap(_record_key(found), metadata.TOMBSTONE, record.etag):
            stages.reached(Stage.TOMBSTONE_PUT)
            _delete(commits, found)
    for found in collection.sweep:
        if storage.create(_record_key(found), metadata.TOMBSTONE):
            _delete(commits, found)
    for old in sorted({found.commit.epoch for found in collection.sweep}):
        storage.abort_uploads(f"{old}/")


def _record_key(found: StepFolder) -> str:
    return f"{folder(found.commit)}/{metadata.NAME}"


def _delete(commits: Commits, found: StepFolder) -> None:
    commits.storage.delete(found.keys)
    stages.reached(Stage.SHARDS_DELETED)
