"""Reads checkpoints of torch.distributed.checkpoint from any storage, for `dcp.load`.

Neighbouring ranges are fetched together, several at a time, into a bounded amount of memory. Items
for which spotelastic has stored checksums are verified. `.metadata` is unpickled with the classes
that belong in one, and no others.
"""

import io
import os
import pickle
import re
import time
import uuid
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future as Promise
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import xxhash
from spotelastic_checkpoints.backoff import Backoff
from spotelastic_checkpoints.errors import CheckpointsError, StorageRefused, StorageUnavailable
from spotelastic_checkpoints.format import encoding, manifest
from spotelastic_checkpoints.format import metadata as record
from spotelastic_checkpoints.storage.object_store import Storage, get_checked
from spotelastic_checkpoints.storage.open import folder_of, open_storage
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from spotelastic import torch_names
from spotelastic.errors import SpotelasticError, Unavailable, UsageError

METADATA = ".metadata"
"""Name of a checkpoint's record."""
_SHARD = re.compile(r"__(\d+)_\d+\.distcp")
AT_ONCE = 8
"""Ranges in flight at the same time."""
RANGE = 16 << 20
"""Bytes of one range."""
BUDGET = 256 << 20
"""Bytes that may be in memory before they are in their tensors; a single item may be larger."""
GAP = 4096
"""Bytes between two items that are read along."""
PATIENCE = 60.0
"""Seconds for which the store may not answer."""

T = TypeVar("T")


def open_checkpoint(path: str | os.PathLike[str], options: Mapping[str, Any]) -> Storage:
    """Open the storage of a checkpoint. `options` are fsspec's storage options."""

    def opened() -> Storage:
        try:
            return open_storage(os.fspath(path), options)
        except StorageRefused as error:
            raise UsageError(str(error)) from error

    return patient(opened)


def patient(call: Callable[[], T]) -> T:
    """Repeat a call until the store answers. Raises `Unavailable` after a minute."""
    deadline, backoff = time.monotonic() + PATIENCE, Backoff(0.2, 5.0)
    while True:
        try:
            return call()
        except StorageUnavailable as error:
            backoff = backoff.failed()
            if time.monotonic() + backoff.bound > deadline:
                raise Unavailable(str(error)) from error
        except CheckpointsError as error:
            raise SpotelasticError(str(error)) from error
        time.sleep(backoff.bound)


@dataclass(frozen=True, slots=True)
class ReadSpan:
    """Items of one file that are fetched together."""

    file: str
    offset: int
    length: int
    items: tuple[ReadItem, ...]

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield offset and length of each range to fetch."""
        for offset in range(self.offset, self.offset + self.length, RANGE):
            yield offset, min(RANGE, self.offset + self.length - offset)


def stretches(items: Iterable[ReadItem], places: Mapping[MetadataIndex, Any]) -> list[ReadSpan]:
    """Group items into spans, neighbours together."""
    by_file: dict[str, list[ReadItem]] = defaultdict(list)
    for item in items:
        by_file[places[item.storage_index].relative_path].append(item)
    found = []
    for file, wanted in by_file.items():
        wanted.sort(key=lambda item: places[item.storage_index].offset)
        group: list[ReadItem] = []
        start = end = 0
        for item in wanted:
            place = places[item.storage_index]
            stop = place.offset + place.length
            if group and (place.offset > end + GAP or stop - start > RANGE):
                found.append(ReadSpan(file, start, end - start, tuple(group)))
                group = []
            if not group:
                start = end = place.offset
            group.append(item)
            end = max(end, stop)
        found.append(ReadSpan(file, start, end - start, tuple(group)))
    return found


@dataclass(frozen=True, slots=True)
class Fetching:
    """A span that is being fetched into `data`."""

    stretch: ReadSpan
    data: memoryview
    parts: tuple[Promise[None], ...]


class CheckpointReader(StorageReader):
    """Reads checkpoints of `torch.distributed.checkpoint`: `dcp.load(state, storage_reader=...)`.

    It takes the place of `FileSystemReader` and `FsspecReader`, with their arguments. `path` is a
    checkpoint's own folder, or a URL such as `s3://bucket/prefix`. `storage_options` are fsspec's
    for that URL, and apply to every later `checkpoint_id`.

    Raises `UsageError` if there is no checkpoint, `SpotelasticError` if one is damaged, and
    `Unavailable` if the store stays away.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        _extension_registry: Any = None,
        **storage_options: Any,
    ) -> None:
        self._options = storage_options
        self._places: dict[MetadataIndex, Any] = {}
        self._metadata: Metadata | None = None
        self.reset(path)

    @property
    def checkpoint_id(self) -> str | os.PathLike[str]:
        """The path of the checkpoint."""
        return self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether this can be the path of a checkpoint."""
        return bool(os.fspath(checkpoint_id))

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Prepare for another load, from `checkpoint_id` if it is given."""
        self._places = {}
        self._load_id = str(uuid.uuid4())
        if checkpoint_id:
            self.path = checkpoint_id

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Read the record.

        `rank` (optional) is for a checkpoint that was saved without collectives.
        """
        rank = kwargs.get("rank")
        name = METADATA if rank is None else f"__{rank}{METADATA}"
        path = os.fspath(self.path)
        folder = folder_of(path)
        if folder is not None and not folder.is_dir():
            raise UsageError(f"{path}: no such folder")
        self._storage = open_checkpoint(path, self._options)
        blob = patient(lambda: get_checked(self._storage, name, record.is_whole))
        if blob is None:
            raise UsageError(f"{path} is not a checkpoint: it has no {name}")
        if not record.is_whole(blob.data):
            raise SpotelasticError(f"{path}/{name} cannot be read: it is damaged")
        metadata = _unpickled(blob.data, f"{path}/{name}")
        told = getattr(metadata, "storage_meta", None) or StorageMeta()
        told.load_id = self._load_id
        metadata.storage_meta = told
        return metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Take the record that was read."""
        if metadata.storage_data is None:
            raise SpotelasticError(
                f"{self.path}: its {METADATA} has no storage data, so that nothing can be found"
            )
        self._metadata = metadata
        self._places = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read everything in the plan."""
        fetching: deque[Fetching] = deque()
        held = 0
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="read") as pool:
            self._checksums = self._known_checksums(plan, pool)
            try:
                for stretch in stretches(plan.items, self._places):
                    while fetching and held + stretch.length > BUDGET:
                        held -= fetching[0].stretch.length
                        self._deliver(fetching.popleft(), planner)
                    fetching.append(self._begin(stretch, pool))
                    held += stretch.length
                while fetching:
                    self._deliver(fetching.popleft(), planner)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _begin(self, stretch: ReadSpan, pool: ThreadPoolExecutor) -> Fetching:
        data = memoryview(bytearray(stretch.length))

        def fetch(offset: int, length: int) -> None:
            part = data[offset - stretch.offset :][:length]
            if patient(lambda: self._storage.read(stretch.file, offset, part)) != length:
                place = f"{self.path}/{stretch.file}"
                raise SpotelasticError(f"{place} is shorter than its {METADATA} says")

        parts = tuple(pool.submit(fetch, *span) for span in stretch.ranges())
        return Fetching(stretch, data, parts)

    def _deliver(self, fetching: Fetching, planner: LoadPlanner) -> None:
        for part in fetching.parts:
            part.result()
        for item in fetching.stretch.items:
            place = self._places[item.storage_index]
            start = place.offset - fetching.stretch.offset
            self._load(item, place, fetching.data[start : start + place.length], planner)

    def _load(self, item: ReadItem, place: Any, data: memoryview, planner: LoadPlanner) -> None:
        name = item.storage_index.fqn
        checksum = self._checksums.get((place.relative_path, place.offset))
        if checksum and xxhash.xxh3_64_hexdigest(data) != checksum:
            raise SpotelasticError(
                f"{self.path}/{place.relative_path}: {name} does not match its checksum"
            )
        if place.transform_descriptors:
            raise SpotelasticError(
                f"{self.path}: {name} was written through {place.transform_descriptors}: read it "
                "with torch's FileSystemReader"
            )
        if item.type == LoadItemType.BYTE_IO:
            planner.load_bytes(item, io.BytesIO(data))
            return
        tensor = self._tensor(item, data)
        for axis, (offset, length) in enumerate(
            zip(item.storage_offsets, item.lengths, strict=True)
        ):
            tensor = tensor.narrow(axis, offset, length)
        target = planner.resolve_tensor(item).detach()
        if target.size() != tensor.size():
            raise SpotelasticError(
                f"{name} was saved with shape {list(tensor.size())}, "
                f"but {list(target.size())} is needed"
            )
        target.copy_(tensor)
        planner.commit_tensor(item, target)

    def _tensor(self, item: ReadItem, data: memoryview) -> torch.Tensor:
        """Return the stored tensor, in place where it is encoded as spotelastic does."""
        assert self._metadata is not None
        stored = self._metadata.state_dict_metadata[item.storage_index.fqn]
        assert isinstance(stored, TensorStorageMetadata)
        chunk = _chunk(stored, item.storage_index)
        dtype = str(stored.properties.dtype).removeprefix("torch.")
        if chunk is not None and dtype in encoding.ITEM_SIZES:
            sizes = tuple(chunk.sizes)
            prefix = encoding.tensor_prefix(dtype, sizes)
            if data[: len(prefix)] == prefix and chunk.sizes.numel():
                flat = torch.frombuffer(data[len(prefix) :], dtype=stored.properties.dtype)
                return flat.view(sizes)
        loaded: torch.Tensor = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        return loaded

    def _known_checksums(self, plan: LoadPlan, pool: ThreadPoolExecutor) -> dict[Any, str]:
        """Return checksums by file and offset, from manifests that spotelastic has stored."""
        files = {self._places[item.storage_index].relative_path for item in plan.items}
        ranks = {int(match[1]) for file in files if (match := _SHARD.fullmatch(file))}
        checksums: dict[Any, str] = {}
        for found in pool.map(self._manifest, sorted(ranks)):
            for shard in found.shards if found is not None else ():
                for item in shard.items:
                    checksums[shard.name, item.offset] = item.checksum
        return checksums

    def _manifest(self, rank: int) -> manifest.Manifest | None:
        name = manifest.manifest_name(rank)
        blob = patient(lambda: get_checked(self._storage, name, manifest.is_readable))
        return manifest.decode(blob.data, f"{self.path}/{name}") if blob is not None else None


def _chunk(stored: TensorStorageMetadata, index: MetadataIndex) -> ChunkStorageMetadata | None:
    if index.index is not None and index.index < len(stored.chunks):
        chunk = stored.chunks[index.index]
        if index.offset is None or chunk.offsets == index.offset:
            return chunk
    return next((chunk for chunk in stored.chunks if chunk.offsets == index.offset), None)


_DCP = "torch.distributed.checkpoint.metadata"
_FILES = "torch.distributed.checkpoint.filesystem"
_UNTIL_2_2 = "torch.distributed._shard.sharded_tensor.metadata"
"""Where torch had some of these classes when it wrote older checkpoints."""


class _Member:
    """Equals a member of an enum.

    The members themselves are shared by all of torch, and a pickle must not change them.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Enum) and bool(other.value == self._value)


def _blank(kind: type) -> Callable[..., Any]:
    """Make an instance without attributes, which come next in the pickle."""
    return partial(object.__new__, kind)


def _place() -> Any:
    return object.__new__(torch_names.storage_info())


def _layout(name: str) -> torch.layout:
    found = vars(torch).get(name.removeprefix("torch."))
    if not isinstance(found, torch.layout):
        raise pickle.UnpicklingError(f"it refers to the layout {name}, which torch does not know")
    return found


_MADE: Mapping[tuple[str, str], Callable[..., Any]] = {
    (_DCP, "BytesStorageMetadata"): _blank(BytesStorageMetadata),
    (_DCP, "ChunkStorageMetadata"): _blank(ChunkStorageMetadata),
    (_DCP, "Metadata"): _blank(Metadata),
    (_DCP, "MetadataIndex"): _blank(MetadataIndex),
    (_DCP, "StorageMeta"): _blank(StorageMeta),
    (_DCP, "TensorProperties"): _blank(TensorProperties),
    (_DCP, "TensorStorageMetadata"): _blank(TensorStorageMetadata),
    (_DCP, "_MEM_FORMAT_ENCODING"): _Member,
    (_UNTIL_2_2, "MEM_FORMAT_ENCODING"): _Member,
    (_UNTIL_2_2, "TensorProperties"): _blank(TensorProperties),
    (_FILES, "_StorageInfo"): _place,
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): _layout,
    ("collections", "OrderedDict"): OrderedDict,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "set"): set,
    ("builtins", "slice"): slice,
    **{
        (module, name): Path
        for module in ("pathlib", "pathlib._local")  # The second is Python 3.13's.
        for name in ("Path", "PosixPath", "PurePosixPath")
    },
}
"""What a `.metadata` may consist of, by exact names.

A pickle could also name what lies within a module or class that it imports ("io.FileIO"), so this
is the whole list.
"""


class _Unpickler(pickle.Unpickler):
    """Looks nothing up: what the pickle names is in the table, or is refused.

    It makes stand-ins of its own, because a pickle may set attributes of what it names.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._made = {name: _stand_in(make) for name, make in _MADE.items()}

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in or dtype with this name."""
        if made := self._made.get((module, name)):
            return made
        if module == "torch" and isinstance(dtype := vars(torch).get(name), torch.dtype):
            return dtype
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, which does not belong in it")


def _stand_in(make: Callable[..., Any]) -> type:
    """Return a class that makes something else; pickles need a class for that."""
    return type("StandIn", (), {"__new__": lambda _, *args: make(*args)})


def _unpickled(data: bytes, name: str) -> Metadata:
    try:
        metadata = _Unpickler(data).load()
    except Exception as error:
        raise SpotelasticError(f"{name} cannot be read: {error}") from error
    if not isinstance(metadata, Metadata):
        raise SpotelasticError(
            f"{name} is not a checkpoint's record: it contains a {type(metadata).__name__}"
        )
    return metadata
