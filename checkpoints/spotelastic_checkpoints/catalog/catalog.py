"""Lists, describes, verifies and reads the checkpoints that are stored under one URL.

The `spotelastic checkpoints` commands work through this module. It only reads, except for the note
that a checkpoint was verified, so it can be used on the storage of a run that is training. A step
counts as complete when its commit record exists (docs/explanation/protocols.md, Commits).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import xxhash

from spotelastic_checkpoints import checksummed_json
from spotelastic_checkpoints.commit import verification
from spotelastic_checkpoints.commit.commit_protocol import (
    RUN_RECORD,
    Commits,
    StepFolder,
    folder,
    step_folders,
)
from spotelastic_checkpoints.commit.latest import LATEST
from spotelastic_checkpoints.commit.tenancy import KEY
from spotelastic_checkpoints.errors import CheckpointsError, RestoreFailed
from spotelastic_checkpoints.format import encoding, manifest, metadata
from spotelastic_checkpoints.format.layout import SHARED
from spotelastic_checkpoints.format.manifest import Manifest
from spotelastic_checkpoints.storage.object_store import Blob, Storage, get_checked
from spotelastic_checkpoints.types import Commit, Item

AT_ONCE = 8
"""Requests to the object store that are in flight at the same time."""

Progress = Callable[[int], None]
"""Called with the number of further bytes each time some have been processed."""


class StepEntry(msgspec.Struct, frozen=True):
    """One step of a run, as a listing shows it.

    `nbytes` and `world_size` are 0 where the step is not complete.
    """

    epoch: int
    step: int
    state: str
    """"committed", "incomplete" (no commit record), "retired" (a tombstone) or "damaged" (manifests
    that are missing or contradict each other).
    """
    latest: bool = False
    """Whether LATEST names this step."""
    pinned: bool = False
    """Whether the step is kept from being collected."""
    world_size: int = 0
    """Number of ranks that saved the step."""
    nbytes: int = 0
    """Total size of its shards."""
    written: datetime | None = None
    """When the last of its shards and manifests was written; None where the store does not say."""
    verified: datetime | None = None
    """When all its bytes were last read and matched their checksums; None if they never were."""


class Tensor(msgspec.Struct, frozen=True):
    """A tensor of a checkpoint, or a pickled value, whose `dtype` is "value"."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shards: int
    """Number of chunks that it was saved in."""
    nbytes: int
    """Bytes of its elements, or of the pickle."""


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item of a checkpoint, with the key of the object that it is stored in."""

    key: str
    item: Item


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A committed step with the manifests of all its ranks."""

    commit: Commit
    manifests: Sequence[Manifest]

    @property
    def nbytes(self) -> int:
        """Total size of the shards."""
        return sum(content.nbytes for content in self.manifests)

    @property
    def item_bytes(self) -> int:
        """Total size of the items, without the padding between them."""
        return sum(placed.item.length for placed in self.items)

    @property
    def items(self) -> Iterator[StoredItem]:
        """Every item of every shard, with the key of its object."""
        for content in self.manifests:
            for shard in content.shards:
                key = f"{folder(self.commit)}/{shard.name}"
                for item in shard.items:
                    yield StoredItem(key, item)

    def tensors(self) -> list[Tensor]:
        """Return tensors and pickled values, sorted by name."""
        shards: dict[str, list[Item]] = {}
        for placed in self.items:
            shards.setdefault(placed.item.fqn, []).append(placed.item)
        return [
            Tensor(
                name,
                items[0].dtype or "value",
                items[0].shape,
                len(items),
                sum(map(_payload, items)),
            )
            for name, items in sorted(shards.items())
        ]


class Catalog:
    """The checkpoints under one URL."""

    def __init__(self, storage: Storage, at_once: int = AT_ONCE) -> None:
        """`at_once` requests to the object store are in flight at the same time."""
        self.storage = storage
        self.at_once = at_once
        self._commits = Commits(storage, "")

    def entries(self) -> list[StepEntry]:
        """Return all steps, oldest first, without those whose shards were collected."""
        times = self.storage.times()
        latest = self._commits.latest()
        late = {metadata.NAME, verification.NAME}
        shown = [found for found in step_folders(times).values() if found.names - late]

        def entry(found: StepFolder) -> StepEntry:
            # Pinning and verifying write objects of their own later; neither changes when the step
            # was saved.
            place = folder(found.commit)
            at = max(times[f"{place}/{name}"] for name in found.names - late)
            written = datetime.fromtimestamp(at, UTC) if at else None
            return msgspec.structs.replace(self._entry(found, latest), written=written)

        with _several(self.at_once) as pool:
            return list(pool.map(entry, shown))

    def find(self, step: int | None, epoch: int | None = None) -> Checkpoint:
        """Return a committed step, of its newest epoch unless `epoch` is given.

        With `step=None` this is the step that LATEST names. Raises `RestoreFailed`, with the steps
        that exist, where there is no such commit.
        """
        if step is None:
            commit = self._commits.latest()
            if commit is None:
                raise RestoreFailed(f"{self.storage.url} has no committed checkpoint")
            return Checkpoint(commit, self._commits.checkpoint(commit))
        committed = [
            Commit(entry.epoch, entry.step)
            for entry in self.entries()
            if entry.state in ("committed", "damaged")
        ]
        wanted = [c for c in committed if c.step == step and epoch in (None, c.epoch)]
        if not wanted:
            there = ", ".join(str(commit.step) for commit in committed) or "none"
            raise RestoreFailed(
                f"{self.storage.url}: step {step} is not committed (committed: {there})"
            )
        return Checkpoint(wanted[-1], self._commits.checkpoint(wanted[-1]))

    def has(self, commit: Commit) -> bool:
        """Return whether the step is committed, and was not collected since."""
        return self._commits.is_alive(commit)

    def verify(self, checkpoint: Checkpoint, progress: Progress) -> list[str]:
        """Read every byte and return what is wrong, one message for each file or item.

        An empty list means that everything is as it was saved. The result is not recorded: see
        `note`.
        """
        found = self.check_records(checkpoint)
        with _several(self.at_once) as pool:
            jobs = [pool.submit(self._check, placed, progress) for placed in checkpoint.items]
            found += [complaint for job in jobs if (complaint := job.result())]
        return found

    def check_records(self, checkpoint: Checkpoint) -> list[str]:
        """Return what is wrong with the files of a checkpoint that are not shards."""
        found = []
        record, wanted = self._record(checkpoint.commit), metadata.write(checkpoint.manifests)
        if record is None or not metadata.agrees(record.data, wanted):
            found.append(f"{metadata.NAME} does not agree with the manifests")
        elif not metadata.is_whole(record.data):
            found.append(f"{metadata.NAME} does not match its checksum")
        notes = (LATEST, KEY, RUN_RECORD, verification.key(checkpoint.commit))
        damaged = (name for name in notes if not self._is_readable(name))
        return found + [f"{self.storage.url}/{name} is damaged" for name in damaged]

    def note(self, checkpoint: Checkpoint, found: Sequence[str], now: datetime) -> None:
        """Record the result of `verify`, so that `entries` shows it.

        Raises `CheckpointsError` where the storage cannot be written.
        """
        if found:
            verification.withdraw(self.storage, checkpoint.commit)
        else:
            verification.leave(self.storage, checkpoint.commit, now)

    def read(self, placed: StoredItem) -> memoryview:
        """Return the bytes of an item.

        Raises `RestoreFailed` where they do not match its checksum.
        """
        item = placed.item
        data = memoryview(bytearray(item.length))
        where = f"{self.storage.url}/{placed.key}: {item.fqn}"
        # A second read tells damage on the way from damage in the store.
        for _ in range(2):
            count = self.storage.read(placed.key, item.offset, data)
            if count == item.length and xxhash.xxh3_64_hexdigest(data) == item.checksum:
                return data
        if count != item.length:
            raise RestoreFailed(f"{where}: only {count} of {item.length} bytes are stored")
        raise RestoreFailed(f"{where} does not match its checksum")

    def _check(self, placed: StoredItem, progress: Progress) -> str:
        try:
            self.read(placed)
        except RestoreFailed as error:
            return str(error)
        finally:
            progress(placed.item.length)
        return ""

    def _entry(self, found: StepFolder, latest: Commit | None) -> StepEntry:
        epoch, step = found.commit.epoch, found.commit.step
        if not found.has_record:
            return StepEntry(epoch, step, "incomplete")
        record = self._record(found.commit)
        if record is None or metadata.is_tombstone(record.data):
            return StepEntry(epoch, step, "retired")
        try:
            manifests = self._commits.manifests(found.commit, found.ranks)
        except CheckpointsError:
            return StepEntry(epoch, step, "damaged", latest=found.commit == latest)
        return StepEntry(
            epoch,
            step,
            "damaged" if manifest.complaint(manifests) else "committed",
            latest=found.commit == latest,
            pinned=metadata.is_pinned(record.data),
            world_size=len(manifests),
            nbytes=sum(content.nbytes for content in manifests),
            verified=self._verified(found),
        )

    def _record(self, commit: Commit) -> Blob | None:
        return get_checked(self.storage, f"{folder(commit)}/{metadata.NAME}", metadata.is_whole)

    def _is_readable(self, name: str) -> bool:
        note = get_checked(self.storage, name, checksummed_json.is_readable)
        return note is None or checksummed_json.is_readable(note.data)

    def _verified(self, found: StepFolder) -> datetime | None:
        is_noted = verification.NAME in found.names
        return verification.since(self.storage, found.commit) if is_noted else None


def assemble(
    catalog: Catalog,
    checkpoint: Checkpoint,
    targets: Mapping[str, memoryview],
    progress: Progress,
) -> None:
    """Copy all chunks of each named tensor into its target, which holds the tensor in C order.

    At most `catalog.at_once` chunks are in memory at a time. `progress` is called with as many
    bytes in total as the targets have.
    """

    def copy(placed: StoredItem) -> None:
        item = placed.item
        raw = catalog.read(placed)[item.length - _payload(item) :]
        place(targets[item.fqn], raw, item)
        progress(_payload(item))

    with _several(catalog.at_once) as pool:
        wanted = (p for p in checkpoint.items if p.item.is_tensor and p.item.fqn in targets)
        for done in [pool.submit(copy, placed) for placed in wanted]:
            done.result()


def place(target: memoryview, raw: memoryview, item: Item) -> None:
    """Copy one chunk, `raw`, to its place in the whole tensor, `target`.

    Both are in C order. No file or storage is touched.
    """
    axis, run = len(item.shape), encoding.ITEM_SIZES[item.dtype]
    while axis and item.sizes[axis - 1] == item.shape[axis - 1]:
        axis -= 1
        run *= item.shape[axis]
    stride, strides = run, [0] * axis
    for number in reversed(range(axis)):
        strides[number] = stride
        stride *= item.shape[number]
    # The last axis that is cut: consecutive rows of the chunk along it are one contiguous run.
    if axis:
        run *= item.sizes[axis - 1]
        axis -= 1
    start = sum(o * s for o, s in zip(item.offsets, strides, strict=False))
    for number, at in enumerate(_starts(item.sizes[:axis], strides[:axis])):
        target[start + at : start + at + run] = raw[number * run : (number + 1) * run]


def _starts(sizes: Sequence[int], strides: Sequence[int]) -> Iterator[int]:
    """Yield the byte offset at which each run begins, in C order."""
    if not sizes:
        yield 0
        return
    for index in range(sizes[0]):
        for inner in _starts(sizes[1:], strides[1:]):
            yield index * strides[0] + inner


def shared(checkpoint: Checkpoint) -> Iterator[StoredItem]:
    """Yield the items that do not belong to a single rank."""
    return (placed for placed in checkpoint.items if placed.item.rank == SHARED)


@contextmanager
def _several(at_once: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of threads. On an error, cancel what has not begun and wait for nothing."""
    pool = ThreadPoolExecutor(at_once)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def _payload(item: Item) -> int:
    """Return the bytes of the tensor itself, without its prefix, or of the whole pickled value."""
    return encoding.nbytes(item.dtype, item.sizes) if item.is_tensor else item.length
