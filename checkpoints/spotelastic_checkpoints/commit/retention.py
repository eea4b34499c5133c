"""Decides which old checkpoints are deleted, deletes them safely, and pins and unpins commits.

A commit record is never deleted. A tombstone replaces it before the shards go, so that a late or
repeated write cannot bring the step back. A pin is a mark at the end of the record. Pinning and
retiring both swap the record, so that the second of the two fails. Steps without a commit are
removed by epoch, never by age, and only once a newer commit has made them useless
(docs/explanation/protocols.md, Commits).

Must never happen: the last good commit is retired because newer ones were made of a model that is
NaN. While losses are not finite nothing is collected. That is on record in the storage: a daemon
that comes later has seen no loss yet.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

import msgspec

from spotelastic_checkpoints import checksummed_json, crash_points
from spotelastic_checkpoints.commit import verification
from spotelastic_checkpoints.commit.commit_protocol import Commits, StepFolder, folder, step_folders
from spotelastic_checkpoints.errors import RestoreFailed, StorageRefused, StorageUnavailable
from spotelastic_checkpoints.format import manifest, metadata
from spotelastic_checkpoints.storage.object_store import Blob
from spotelastic_checkpoints.types import Commit

HOLD = "not-finite"
"""Key of the object that keeps all commits."""


class Hold(msgspec.Struct):
    """The losses are not finite: no commit is to be retired."""

    epoch: int
    step: int
    """Since when."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Which commits stay besides pinned ones."""

    last: int = 3
    """Number of newest commits that stay, at least 1."""
    every: int = 0
    """Commits whose step is a multiple of this stay as well; 0 means none."""
    good: int = 0
    """The newest step that an audit has found right: the newest commit up to it stays as well."""

    def always(self, step: int) -> bool:
        """Return whether a commit of this step stays whatever its age."""
        return self.every > 0 and step % self.every == 0


@dataclass(frozen=True, slots=True)
class Collection:
    """What a collection has to remove."""

    retire: tuple[StepFolder, ...]
    """Commits that the retention rules do not keep."""
    sweep: tuple[StepFolder, ...]
    """Steps that must never be committed any more."""
    finish: tuple[StepFolder, ...]
    """Steps that have a tombstone and still have shards: an earlier collection died in the middle.
    """


def decide(
    folders: Mapping[Commit, StepFolder],
    buried: Set[Commit],
    pinned: Set[Commit],
    latest: Commit,
    epoch: int,
    keep: Keep,
) -> Collection:
    """Decide what to remove.

    `buried` are the commits that have a tombstone, `latest` is the one that LATEST names, and
    `epoch` is this run's own. A folder that holds only its record has been collected already.
    """
    full = [found for found in folders.values() if found.has_record and len(found.names) > 1]
    alive = [found for found in full if found.commit <= latest and found.commit not in buried]
    uncommitted = [found for found in folders.values() if not found.has_record]
    good = [found for found in alive if found.commit.step <= keep.good][-1:]
    return Collection(
        retire=tuple(
            found
            for found in alive[: -keep.last]
            if not (found.commit in pinned or keep.always(found.commit.step) or found in good)
        ),
        sweep=tuple(
            found for found in uncommitted if found.commit.epoch < epoch and found.commit < latest
        ),
        finish=tuple(found for found in full if found.commit in buried),
    )


def collect(
    commits: Commits, latest: Commit, epoch: int, keep: Keep, thorough: bool = True
) -> None:
    """Remove what `decide` says.

    The process may die anywhere in it: the next collection finds the rest. Commits that
    `keep.every` keeps are only looked at beyond the newest ones when `thorough`.
    """
    storage = commits.storage
    begins = commits.begins()  # Commits from before a fresh start are left alone.
    folders = {
        commit: found
        for commit, found in step_folders(storage.keys()).items()
        if commit.epoch >= begins
    }
    records = _records(commits, folders, latest, keep, thorough)
    collection = decide(folders, records.buried, records.pinned, latest, epoch, keep)
    for found in collection.finish:
        _delete(commits, found)
    for found in collection.retire:
        etag = records.etags.get(found.commit)
        if etag is not None and _bury(commits, found.commit, etag):
            _delete(commits, found)
    for found in collection.sweep:
        if storage.create(_record_key(found.commit), metadata.TOMBSTONE):
            crash_points.reached("tombstone-put")
            _delete(commits, found)


@dataclass(frozen=True, slots=True)
class _Records:
    """What the commit records say, without the records, each of which may have many MiB."""

    etags: dict[Commit, str] = field(default_factory=dict)
    buried: set[Commit] = field(default_factory=set)
    pinned: set[Commit] = field(default_factory=set)


def _records(
    commits: Commits,
    folders: Mapping[Commit, StepFolder],
    latest: Commit,
    keep: Keep,
    thorough: bool,
) -> _Records:
    """Read the commit records that `decide` depends on.

    There may be very many commits that are always kept. Unless `thorough`, they are only read while
    the newest `keep.last` living commits are not all found.
    """
    records = _Records()
    alive = 0
    for commit, found in sorted(folders.items(), reverse=True):
        if not found.has_record or len(found.names) == 1:
            continue
        if keep.always(commit.step) and alive >= keep.last and not thorough:
            continue
        record = commits.storage.get(_record_key(commit))
        if record is None:
            continue
        records.etags[commit] = record.etag
        if metadata.is_tombstone(record.data):
            records.buried.add(commit)
            continue
        alive += commit <= latest
        if metadata.is_pinned(record.data):
            records.pinned.add(commit)
    return records


def hold(commits: Commits, epoch: int, step: int) -> None:
    """Keep all commits from now on, because no loss is finite since that step."""
    commits.storage.put(HOLD, memoryview(checksummed_json.encode(Hold(epoch, step))))


def let_go(commits: Commits) -> None:
    """Let the retention rules apply again. Who may not delete is asked to only where it is held."""
    if commits.storage.get(HOLD) is not None:
        commits.storage.delete([HOLD])


def is_held(commits: Commits) -> bool:
    """Return whether all commits are kept. What a run has left before a fresh start keeps none."""
    found = commits.storage.get(HOLD)
    if found is None:
        return False
    try:
        return checksummed_json.decode(found.data, Hold).epoch >= commits.begins()
    except msgspec.DecodeError:
        return True


def sweep_uploads(commits: Commits, epoch: int) -> int:
    """Abort unfinished uploads of earlier epochs and return their number.

    They cost money and appear in no listing. Nothing of them can count once `epoch` has a commit.
    """
    storage = commits.storage
    # Only objects named as a step's: another run may have its storage below this one, at .../2,
    # say.
    left = [commit for commit in step_folders(storage.unfinished()) if commit.epoch < epoch]
    return sum(storage.abort_uploads(f"{folder(commit)}/") for commit in left)


def end_uploads(commits: Commits, epoch: int, ranks: Iterable[int]) -> None:
    """Abort unfinished uploads of these ranks' shards in this epoch.

    The daemon that will write these shards calls this before it writes any. A daemon that was
    killed leaves unfinished uploads, and no later epoch may come to sweep them.
    """
    ours = tuple(manifest.shard_prefix(rank) for rank in ranks)
    for found in step_folders(commits.storage.unfinished()).values():
        if found.commit.epoch == epoch:
            for name in found.names:
                if name.startswith(ours):
                    commits.storage.abort_uploads(f"{folder(found.commit)}/{name}")


def pin(commits: Commits, commit: Commit) -> None:
    """Keep the commit until it is unpinned. Raises `RestoreFailed` where it does not exist."""
    record = _alive(commits, commit)
    if not metadata.is_pinned(record.data):
        _swap(commits, commit, metadata.pinned(record.data), record)


def unpin(commits: Commits, commit: Commit) -> None:
    """Let the retention rules apply to the commit again.

    Raises `RestoreFailed` where it does not exist.
    """
    record = _alive(commits, commit)
    if metadata.is_pinned(record.data):
        _swap(commits, commit, metadata.unpinned(record.data), record)


def remove(commits: Commits, commit: Commit) -> None:
    """Delete one commit.

    Raises `StorageRefused` for the one that LATEST names and for pinned ones.
    """
    place = f"{commits.storage.url}/{folder(commit)}"
    if commits.latest() == commit:
        raise StorageRefused(
            f"{place} is the newest checkpoint (LATEST names it): a restart resumes from it"
        )
    found = step_folders(commits.storage.keys(folder(commit) + "/")).get(commit)
    record = commits.storage.get(_record_key(commit))
    if found is None or record is None:
        raise RestoreFailed(f"{place} is not a committed checkpoint")
    if metadata.is_pinned(record.data):
        raise StorageRefused(f"{place} is pinned: unpin it first")
    if not metadata.is_tombstone(record.data) and not _bury(commits, commit, record.etag):
        raise StorageUnavailable(f"{place} was changed by another process meanwhile: try again")
    _delete(commits, found)


def _alive(commits: Commits, commit: Commit) -> Blob:
    record = commits.storage.get(_record_key(commit))
    if record is None or metadata.is_tombstone(record.data):
        place = f"{commits.storage.url}/{folder(commit)}"
        raise RestoreFailed(f"{place} is not a committed checkpoint")
    return record


def _swap(commits: Commits, commit: Commit, data: bytes, record: Blob) -> None:
    if not commits.storage.swap(_record_key(commit), data, record.etag):
        now = commits.storage.get(_record_key(commit))
        if now is None or now.data != data:
            place = f"{commits.storage.url}/{folder(commit)}"
            raise StorageUnavailable(f"{place} was changed by another process meanwhile: try again")


def _bury(commits: Commits, commit: Commit, etag: str) -> bool:
    if not commits.storage.swap(_record_key(commit), metadata.TOMBSTONE, etag):
        return False
    crash_points.reached("tombstone-put")
    return True


def _record_key(commit: Commit) -> str:
    return f"{folder(commit)}/{metadata.NAME}"


def _delete(commits: Commits, found: StepFolder) -> None:
    # A verification note may have been written since the folder was listed.
    commits.storage.delete(sorted({*found.keys, verification.key(found.commit)}))
    crash_points.reached("shards-deleted")
