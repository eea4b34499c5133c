"""What is collected, and in which order (docs/protocols.md, Commit).

A commit record is never deleted: a tombstone takes its place before the shards go, so that a late
or repeated write cannot bring the step back. Uncommitted steps go by epoch, never by age, and only
once a newer commit makes them useless.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from spotelastic_checkpoints import metadata, stages
from spotelastic_checkpoints.commits import Commits, StepFolder, folder, step_folders
from spotelastic_checkpoints.stages import Stage
from spotelastic_checkpoints.wire import Commit

KEEP = 3
"""Commits that stay."""


@dataclass(frozen=True, slots=True)
class Collection:
    """What is to go: commits to retire, and steps that must never be committed any more."""

    retire: tuple[StepFolder, ...]
    sweep: tuple[StepFolder, ...]


def decide(
    folders: Mapping[Commit, StepFolder], latest: Commit, epoch: int, keep: int = KEEP
) -> Collection:
    """`latest` is what LATEST names, `epoch` our own; a folder with a record alone is done with."""
    commits = [found for found in folders.values() if found.has_record and len(found.names) > 1]
    older = [found for found in commits if found.commit < latest]
    uncommitted = [found for found in folders.values() if not found.has_record]
    return Collection(
        retire=tuple(older[: max(0, len(older) - (keep - 1))]),
        sweep=tuple(
            found for found in uncommitted if found.commit.epoch < epoch and found.commit < latest
        ),
    )


def collect(commits: Commits, latest: Commit, epoch: int, keep: int = KEEP) -> None:
    """Carries out `decide`. May die anywhere: what is left is found again next time."""
    storage = commits.storage
    collection = decide(step_folders(storage.keys()), latest, epoch, keep)
    for found in (*collection.retire, *collection.sweep):
        key = f"{folder(found.commit)}/{metadata.NAME}"
        record = storage.get(key)
        if record is None:
            buried = storage.create(key, metadata.TOMBSTONE)
        elif metadata.is_tombstone(record.data):
            buried = True
        else:
            buried = found.has_record and storage.swap(key, metadata.TOMBSTONE, record.etag)
        if buried:
            stages.reached(Stage.TOMBSTONE_PUT)
            storage.delete(found.keys)
            stages.reached(Stage.SHARDS_DELETED)
    for old in sorted({found.commit.epoch for found in collection.sweep}):
        storage.abort_uploads(f"{old}/")
