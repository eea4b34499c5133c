"""Writes checkpoints of torch.distributed.checkpoint to any storage, for `dcp.save`.

Each rank packs its items into files of about 64 MiB, in buffers that are kept from save to save,
and uploads several at a time. Tensors are encoded so that their bytes lie in the file unchanged,
which every reader of DCP loads. `.metadata` is removed first and written last: a save that was cut
off is no checkpoint.
"""

import io
import os
import pickle
import queue
import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
from spotelastic_checkpoints.format import encoding
from spotelastic_checkpoints.format.layout import aligned
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, SerializationFormat
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import (
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
)
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from spotelastic import torch_names
from spotelastic.errors import UsageError
from spotelastic.training.dcp.reader import METADATA, open_checkpoint, patient
from spotelastic.training.save.saver import raw_tensor

FILE = 64 << 20
"""Bytes beyond which a file takes no further items."""
AT_ONCE = 4
"""Files, and buffers, of one rank at the same time."""
_OWN = {"_buffers", "_staged", "_lock", "_under_way", "_storage"}
"""Attributes of a writer that mean nothing in another process."""


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """A file, and the items that go into it."""

    name: str
    items: tuple[WriteItem, ...]


def shards(prefix: str, items: Sequence[WriteItem], most: int) -> list[ShardPlan]:
    """Distribute items over as few files as `most` bytes each allow. A larger item has its own."""
    groups: list[list[WriteItem]] = []
    room = 0
    for item in items:
        size = _nbytes(item)
        if not groups or size > room:
            groups.append([])
            room = most
        groups[-1].append(item)
        room -= size
    return [
        ShardPlan(f"{prefix}{number}.distcp", tuple(group)) for number, group in enumerate(groups)
    ]


class CheckpointWriter(StorageWriter, AsyncStager):
    """Writes checkpoints of `torch.distributed.checkpoint`: `dcp.save(state, storage_writer=...)`.

    It takes the place of `FileSystemWriter` and `FsspecWriter`, with their arguments. `path` is the
    checkpoint's own folder, or a URL such as `s3://bucket/prefix`.

    - A rank's items share files of about 64 MiB. With `single_file_per_rank=False` each item has
      a file of its own.
    - `thread_count` files are uploaded at a time, at least four.
    - `overwrite=False` refuses a path that already holds a checkpoint.
    - `storage_options` are fsspec's for that URL, and apply to every later `checkpoint_id`.
    - `sync_files` and `per_thread_copy_ahead` have no effect: files are always synced.

    Keep one writer for all saves and pass `checkpoint_id` to each save. The memory that
    `dcp.async_save` copies the state to is then used again.

    Raises `UsageError` if it may not write, and `Unavailable` if the store stays away.
    """

    _synchronize_after_execute = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        single_file_per_rank: bool = True,
        sync_files: bool = True,
        thread_count: int = 1,
        per_thread_copy_ahead: int = 10_000_000,
        cache_staged_state_dict: bool = True,
        overwrite: bool = True,
        _extensions: Sequence[Any] | None = None,
        serialization_format: SerializationFormat = SerializationFormat.TORCH_SAVE,
        **storage_options: Any,
    ) -> None:
        if serialization_format is not SerializationFormat.TORCH_SAVE:
            raise UsageError(
                f"dcp.load cannot read {serialization_format}; use `spotelastic ckpt export` for "
                "safetensors"
            )
        if _extensions:
            raise UsageError("files with extensions are written by torch's FileSystemWriter alone")
        self._file = FILE if single_file_per_rank else 0
        self._at_once = max(thread_count, AT_ONCE)
        self._keep = cache_staged_state_dict
        self._overwrite = overwrite
        self._options = storage_options
        self._prefix = ""
        self._begin()
        self.reset(path)

    def _begin(self) -> None:
        """Create what belongs to this process alone."""
        self._buffers: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
        for _ in range(self._at_once):
            self._buffers.put(bytearray())
        self._staged: dict[str, Any] | None = None
        self._lock = threading.Lock()
        self._under_way = 0
        """Number of copies that were made and are not written yet."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave memory and connections out, for the process that dcp.async_save may save in."""
        return {name: value for name, value in vars(self).items() if name not in _OWN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    @property
    def checkpoint_id(self) -> str | os.PathLike[str]:
        """The path of the checkpoint."""
        return self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether this can be the path of a checkpoint."""
        return bool(os.fspath(checkpoint_id))

    def storage_meta(self) -> StorageMeta:
        """Return the ids of this save."""
        return StorageMeta(checkpoint_id=os.fspath(self.path), save_id=self._save_id)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Prepare for another save, to `checkpoint_id` if it is given."""
        if checkpoint_id:
            self.path = checkpoint_id
        self._save_id = str(uuid.uuid4())

    # -- the copy of dcp.async_save ---------------------------------------------------------------

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Copy the state to the CPU.

        The memory of the last copy is used again, unless that is still being written. What another
        process writes counts as being written from then on, because it does not tell.
        """
        pinned = torch.cuda.is_available()
        with self._lock:
            idle, self._under_way = self._under_way == 0, self._under_way + 1
        kept = idle and self._keep
        copy: dict[str, Any]
        copy, memory = torch_names.copied_to_memory(
            state_dict, self._staged if kept else None, pinned=pinned
        )
        self._staged = memory if kept else self._staged
        return copy

    def synchronize_staging(self) -> None:
        """Do nothing: `stage` has copied when it returns."""

    def close(self) -> None:
        """Free the memory of the last copy."""
        self._staged = None

    # -- writing ----------------------------------------------------------------------------------

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Open the storage. `rank` and `use_collectives` are passed by DCP."""
        rank = kwargs.get("rank")
        self._rank = None if kwargs.get("use_collectives", True) else rank
        self._storage = open_checkpoint(self.path, self._options)
        self._prefix = ""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Check that the checkpoint may be written."""
        if not self._overwrite and patient(lambda: self._storage.get(self._record)) is not None:
            raise UsageError(f"{self.path} has a checkpoint already, and overwrite is False")
        if self._rank is not None:
            self._clear()
            return replace(plan, storage_data=f"__{self._rank}_")
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Remove the old record, and give each rank the prefix of its files."""
        self._clear()
        return [replace(plan, storage_data=f"__{rank}_") for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write everything in the plan."""
        files = shards(plan.storage_data, plan.items, self._file)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            # The threads that copy have streams of their own, which do not wait for the caller's.
            torch.cuda.current_stream().synchronize()
        try:
            with ThreadPoolExecutor(self._at_once, thread_name_prefix="write") as pool:
                written = list(pool.map(lambda file: self._write(file, planner), files))
        finally:
            with self._lock:
                self._under_way = max(0, self._under_way - 1)
        done: Future[list[WriteResult]] = Future()
        done.set_result([result for results in written for result in results])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the record, which makes the checkpoint valid."""
        places = {result.index: result.storage_data for each in results for result in each}
        complete = replace(
            metadata,
            storage_data=places,
            storage_meta=self.storage_meta(),
            version=CURRENT_DCP_VERSION,
        )
        record = memoryview(pickle.dumps(complete))
        patient(lambda: self._storage.put(self._record, record))

    @property
    def _record(self) -> str:
        return METADATA if self._rank is None else f"__{self._rank}{METADATA}"

    def _clear(self) -> None:
        """Remove the record: what is there is no checkpoint from here on."""
        patient(lambda: self._storage.delete([self._record]))

    def _write(self, file: ShardPlan, planner: SavePlanner) -> list[WriteResult]:
        buffer = self._buffers.get()
        try:
            data, results = self._assemble(file, planner, buffer)
            patient(lambda: self._storage.put(file.name, data))
            data.release()
            return results
        finally:
            self._buffers.put(buffer if len(buffer) <= FILE else bytearray())

    def _assemble(
        self, file: ShardPlan, planner: SavePlanner, buffer: bytearray
    ) -> tuple[memoryview, list[WriteResult]]:
        blobs = {
            number: _saved(planner.resolve_data(item))
            for number, item in enumerate(file.items)
            if not _is_plain(item)
        }
        size = sum(map(_nbytes, file.items)) + sum(map(len, blobs.values()))
        if len(buffer) < size:
            buffer.extend(bytes(size - len(buffer)))
        memory, info = memoryview(buffer), torch_names.storage_info()
        results, end = [], 0
        for number, item in enumerate(file.items):
            if number in blobs:
                start, stop = end, end + len(blobs[number])
                memory[start:stop] = blobs[number]
            else:
                tensor = planner.resolve_data(item)
                assert isinstance(tensor, torch.Tensor)
                start, stop = _put(memory, end, tensor.detach())
            place = info(file.name, start, stop - start)
            results.append(WriteResult(item.index, stop - start, place))
            end = stop
        return memory[:end], results


def _put(memory: memoryview, end: int, tensor: torch.Tensor) -> tuple[int, int]:
    """Encode a tensor behind `end`, with aligned elements.

    Returns where the item begins and ends.
    """
    dtype, sizes = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    prefix = encoding.tensor_prefix(dtype, sizes)
    at = aligned(end + len(prefix))
    memory[at - len(prefix) : at] = prefix
    raw_tensor(memory, at, dtype, sizes).copy_(tensor)
    return at - len(prefix), at + encoding.nbytes(dtype, sizes)


def _saved(data: torch.Tensor | io.BytesIO) -> memoryview:
    """Return the bytes of a value, or of a tensor of a type that only torch itself can write."""
    if not isinstance(data, torch.Tensor):
        return data.getbuffer()
    data = data.detach().cpu()
    # Of a view torch would save the whole tensor that it is a view of.
    if data.untyped_storage().size() != data.numel() * data.element_size():
        data = data.clone()
    stream = io.BytesIO()
    torch.save(data, stream)
    return stream.getbuffer()


def _dtype(data: TensorWriteData) -> str:
    return str(data.properties.dtype).removeprefix("torch.")


def _is_plain(item: WriteItem) -> bool:
    return item.tensor_data is not None and _dtype(item.tensor_data) in encoding.ITEM_SIZES


def _nbytes(item: WriteItem) -> int:
    """Return the most bytes that a tensor takes. A value's are not known yet, and few."""
    if item.tensor_data is None:
        return 0
    data = item.tensor_data
    sizes = tuple(data.chunk.sizes)
    dtype = _dtype(data)
    if dtype not in encoding.ITEM_SIZES:
        return data.chunk.sizes.numel() * data.properties.dtype.itemsize
    return aligned(len(encoding.tensor_prefix(dtype, sizes))) + aligned(
        encoding.nbytes(dtype, sizes) + 64
    )
