"""What is collected, and in which order (docs/explanation/protocols.md, Commit).

A commit record is never deleted: a tombstone takes its place before the shards go, so that a late
or repeated write cannot bring the step back. A pin is a mark at the record's end: whoever swaps the
record first, to pin the step or to bury it, makes the other's swap fail. Uncommitted steps go by
epoch, never by age, and only once a newer commit makes them useless.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from spotelastic_checkpoints import crash_points
from spotelastic_checkpoints.commit import verification
from spotelastic_checkpoints.commit.commit_protocol import Commits, StepFolder, folder, step_folders
from spotelastic_checkpoints.crash_points import Stage
from spotelastic_checkpoints.errors import RestoreFailed, StorageRefused, StorageUnavailable
from spotelastic_checkpoints.format import manifest, metadata
from spotelastic_checkpoints.storage.port import Blob
from spotelastic_checkpoints.types import Commit


@dataclass(frozen=True, slots=True)
class Keep:
    """What stays besides pinned commits."""

    last: int = 3
    """The newest so many, at least 1."""
    every: int = 0
    """And all whose step is a multiple of this; 0: none."""

    def always(self, step: int) -> bool:
        return self.every > 0 and step % self.every == 0


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
    pinned: Set[Commit],
    latest: Commit,
    epoch: int,
    keep: Keep,
) -> Collection:
    """`buried` have a tombstone, `latest` is what LATEST names, `epoch` our own.

    A folder that holds its record alone has been collected.
    """
    full = [found for found in folders.values() if found.has_record and len(found.names) > 1]
    alive = [found for found in full if found.commit <= latest and found.commit not in buried]
    uncommitted = [found for found in folders.values() if not found.has_record]
    return Collection(
        retire=tuple(
            found
            for found in alive[: -keep.last]
            if found.commit not in pinned and not keep.always(found.commit.step)
        ),
        sweep=tuple(
            found for found in uncommitted if found.commit.epoch < epoch and found.commit < latest
        ),
        finish=tuple(found for found in full if found.commit in buried),
    )


def collect(
    commits: Commits, latest: Commit, epoch: int, keep: Keep, thorough: bool = True
) -> None:
    """Carries out `decide`. May die anywhere: what is left is found again next time, unless it is
    of a step that would always be kept and is older than the newest: then when it is `thorough`."""
    storage = commits.storage
    begins = commits.begins()  # what a run that began afresh left there is nobody's to collect
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
            crash_points.reached(Stage.TOMBSTONE_PUT)
            _delete(commits, found)


@dataclass(frozen=True, slots=True)
class _Records:
    """What commit records say, without the records: each may have MiBs."""

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
    """Those that `decide` depends on. Of steps that are always kept there may be very many, and
    what matters of them is which are alive among the newest."""
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


def sweep_uploads(commits: Commits, epoch: int) -> int:
    """End what uploads of earlier epochs left unfinished: it costs money and is listed nowhere.

    Once the epoch has a commit of its own, nothing of theirs can count any more.
    """
    storage = commits.storage
    # Of our own steps alone: the place of another run may be below ours, at .../2, say.
    left = [commit for commit in step_folders(storage.unfinished()) if commit.epoch < epoch]
    return sum(storage.abort_uploads(f"{folder(commit)}/") for commit in left)


def end_uploads(commits: Commits, epoch: int, ranks: Iterable[int]) -> None:
    """End what was begun of these ranks' shards: by whoever writes them, before it writes any.

    A daemon that was killed leaves such, and no later epoch may come to sweep them.
    """
    ours = tuple(manifest.shard_prefix(rank) for rank in ranks)
    for found in step_folders(commits.storage.unfinished()).values():
        if found.commit.epoch == epoch:
            for name in found.names:
                if name.startswith(ours):
                    commits.storage.abort_uploads(f"{folder(found.commit)}/{name}")


def pin(commits: Commits, commit: Commit) -> None:
    """The commit stays until it is unpinned. Raises `RestoreFailed` where there is none."""
    record = _alive(commits, commit)
    if not metadata.is_pinned(record.data):
        _swap(commits, commit, metadata.pinned(record.data), record)


def unpin(commits: Commits, commit: Commit) -> None:
    """Back to what the policy says. Raises `RestoreFailed` where there is no such commit."""
    record = _alive(commits, commit)
    if metadata.is_pinned(record.data):
        _swap(commits, commit, metadata.unpinned(record.data), record)


def remove(commits: Commits, commit: Commit) -> None:
    """Raises `StorageRefused` for what LATEST names, and for what is pinned."""
    place = f"{commits.storage.url}/{folder(commit)}"
    if commits.latest() == commit:
        raise StorageRefused(f"{place} is what LATEST names: a resume would find nothing")
    found = step_folders(commits.storage.keys(folder(commit) + "/")).get(commit)
    record = commits.storage.get(_record_key(commit))
    if found is None or record is None:
        raise RestoreFailed(f"{place} is not a committed checkpoint")
    if metadata.is_pinned(record.data):
        raise StorageRefused(f"{place} is pinned: unpin it first")
    if not metadata.is_tombstone(record.data) and not _bury(commits, commit, record.etag):
        raise StorageUnavailable(f"{place} changed meanwhile: try again")
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
            raise StorageUnavailable(f"{place} changed meanwhile: try again")


def _bury(commits: Commits, commit: Commit, etag: str) -> bool:
    if not commits.storage.swap(_record_key(commit), metadata.TOMBSTONE, etag):
        return False
    crash_points.reached(Stage.TOMBSTONE_PUT)
    return True


def _record_key(commit: Commit) -> str:
    return f"{folder(commit)}/{metadata.NAME}"


def _delete(commits: Commits, found: StepFolder) -> None:
    # A note may have been left since the folder was listed.
    commits.storage.delete(sorted({*found.keys, verification.key(found.commit)}))
    crash_points.reached(Stage.SHARDS_DELETED)
