"""Converts checkpoints to single `torch.save` files, and such files to checkpoints.

Neither direction holds the whole state in memory: its tensors are mapped files.
"""

import functools
import math
import mmap
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch
from spotelastic_checkpoints.catalog.catalog import Catalog, Checkpoint, Progress, assemble, shared
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.format import encoding, layout, manifest, shards
from spotelastic_checkpoints.format.layout import Declaration
from spotelastic_checkpoints.format.manifest import Manifest, Shard
from spotelastic_checkpoints.memory.free_memory import mib
from spotelastic_checkpoints.memory.reserve import reserve
from spotelastic_checkpoints.protocol_version import FORMAT
from spotelastic_checkpoints.storage.object_store import Storage
from spotelastic_checkpoints.types import Commit, Item

from spotelastic.errors import EnvironmentFailure, UsageError
from spotelastic.training.restore.restored import IMPORTED
from spotelastic.training.save.saver import declare, tensor_at
from spotelastic.training.state import derived, tensors, values
from spotelastic.training.state.chunks import Chunk, chunks_of
from spotelastic.training.state.composite_tensors import inner_name, is_description, made
from spotelastic.training.state.state import StateView
from spotelastic.training.state.value_entries import OWN, STRUCTURE, ValueEntry, own_entry

ALONE = "import"
"""Name of the only node of an imported checkpoint."""
_NOTHING = memoryview(bytearray())

Shown = Callable[[int], AbstractContextManager[Progress]]
"""Given the number of bytes to come, returns a context whose value is called with the bytes
done.
"""
Leaves = dict[str, tuple[tuple[str | int, ...], Any]]
"""Tensors and values by name, with their paths."""


def tensor_bytes(checkpoint: Checkpoint, part: str = "") -> int:
    """Return the number of bytes that `to_torch` assembles."""
    wanted = (p.item for p in shared(checkpoint) if p.item.is_tensor)
    return sum(_payload(item) for item in wanted if _is_of(item.path[0], part))


def to_torch(
    catalog: Catalog, checkpoint: Checkpoint, path: Path, done: Progress, part: str = ""
) -> int:
    """Write a nested state dict to `path`, as `torch.save` does.

    Returns the number of tensors in it. `part` picks one key of the state ("model"), whose content
    then is the whole file. Raises `OSError` where the file cannot be written, and at once where
    there is no room beside `path` for twice the tensors.
    """
    leaves: Leaves = {}
    structures: dict[str, Any] = {}
    tensors: dict[str, torch.Tensor] = {}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as folder:
        for placed in shared(checkpoint):
            item = placed.item
            of_structure = item.path[:2] == (OWN, "structure")
            name = item.path[2] if of_structure else item.path[0]
            if not _is_of(name, part) or item.fqn in tensors:
                continue
            if of_structure:
                structures[str(name)] = values.decode(item.fqn, catalog.read(placed))
            elif item.is_tensor:
                tensors[item.fqn] = _backed(item, Path(folder) / str(len(tensors)))
                leaves[item.fqn] = item.path, tensors[item.fqn]
            else:
                leaves[item.fqn] = item.path, values.decode(item.fqn, catalog.read(placed))
        _put_together(leaves)
        nested = _nested(structures, leaves)
        if not nested:
            raise UsageError(f"step {checkpoint.commit.step} has no {part or 'state'}")
        targets = {name: _bytes(tensor) for name, tensor in tensors.items()}
        complete = Path(folder) / "complete"
        with complete.open("wb") as file:
            reserve(file.fileno(), sum(map(len, targets.values())))
        assemble(catalog, checkpoint, targets, done)
        _save(nested[part] if part else nested, complete)
        complete.rename(path)
    return len(tensors)


def from_torch(path: Path, storage: Storage, step: int, shown: Shown, part: str = "") -> Checkpoint:
    """Commit the content of a `torch.save` file as `step` of a new run at `storage`.

    `part` is the key that the content is put under ("model" for the state dict of a module alone).
    Only tensors count as progress, because the size of a value is known only once it is encoded.
    The new run has no owner: the first run that resumes it becomes that. Raises `UsageError` when
    torch cannot read the file or the storage has commits, and `EnvironmentFailure` where the
    temporary folder has no room.
    """
    return commit_view(_view(path, _load(path), part), path, storage, step, shown)


def commit_view(
    view: StateView, path: Path, storage: Storage, step: int, shown: Shown
) -> Checkpoint:
    """Commit a state that was read from `path`, as `from_torch` does."""
    commits = Commits(storage, "")
    if commits.latest() is not None:
        raise UsageError(f"{storage.url} has checkpoints already: give a new storage")
    plan = layout.plan([Declaration(0, ALONE, declare(view))])
    slot = plan.slots[0]
    epoch = commits.claim().epoch
    with _scratch(max(slot.nbytes, mmap.PAGESIZE), path) as memory:
        total = sum(_payload(item) for item in slot.items if item.is_tensor)
        with shown(total) as done:
            items = _fill_slot(view, slot.items, memory, done)
        commit = Commit(epoch, step)
        files = []
        for number, cut in enumerate(shards.cut(items, slot.owned_bytes)):
            name = manifest.shard_name(0, number)
            commits.put_shard(commit, name, memory[cut.start : cut.end])
            files.append(Shard(name, cut.end - cut.start, cut.placed()))
    content = Manifest(FORMAT, epoch, step, ALONE, plan.hash, 0, 1, plan.chunks, tuple(files))
    commits.put_manifest(content)
    commits.commit(commit, epoch)
    return Checkpoint(commit, [content])


def _is_of(name: Any, part: str) -> bool:
    """Return whether an entry belongs to the part. Entries added by spotelastic belong to none."""
    return name != OWN and part in ("", name)


def _payload(item: Item) -> int:
    """Return the bytes of a tensor's elements."""
    return encoding.nbytes(item.dtype, item.sizes)


# -- to torch -------------------------------------------------------------------------------------


def _nested(structures: Mapping[str, Any], leaves: Leaves) -> dict[str, Any]:
    """Return the state with the containers and types of keys that it had, which paths do not tell.

    They were saved for objects with a state_dict() of their own, and for some entries of a module.
    """
    nested = {
        name: derived.filled(structure, lambda fqn: leaves.pop(fqn)[1])
        for name, structure in structures.items()
    }
    for path, value in leaves.values():
        derived.set_element(nested, path, value)
    return nested


def _put_together(leaves: Leaves) -> None:
    """Build the tensors that a class makes of others; they are filled later."""
    for fqn, (path, value) in [*leaves.items()]:
        if is_description(value):
            leaves[fqn] = path, made(value, functools.partial(_taken, leaves, fqn))


def _taken(leaves: Leaves, fqn: str, name: str) -> torch.Tensor:
    tensor: torch.Tensor = leaves.pop(f"{fqn}.{inner_name(name)}")[1]
    return tensor


def _backed(item: Item, file: Path) -> torch.Tensor:
    """Return a tensor whose memory is a file, which vanishes with it."""
    dtype = getattr(torch, item.dtype)
    count = math.prod(item.shape)
    if not count:
        return torch.empty(item.shape, dtype=dtype)
    with file.open("wb") as made:
        reserve(made.fileno(), count * dtype.itemsize)
    try:
        tensor = torch.from_file(str(file), shared=True, size=count, dtype=dtype)
    except RuntimeError as error:
        raise EnvironmentFailure(f"{file.parent} has no room for {item.fqn}: {error}") from error
    file.unlink()
    return tensor.view(item.shape)


def _save(state: Any, path: Path) -> None:
    with path.open("wb") as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:
            # torch's error about its own archive, which could not be closed, hides the reason.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def _bytes(tensor: torch.Tensor) -> memoryview:
    if not tensor.numel():
        return _NOTHING
    array: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)


# -- from torch -----------------------------------------------------------------------------------


def _load(path: Path) -> dict[str, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with values.allowed():
                loaded = torch.load(path, map_location="cpu", mmap=_is_zip(path), weights_only=True)
    except FileNotFoundError:
        raise UsageError(f"no such file: {path}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:
        first = str(error).partition("\n")[0]
        raise UsageError(
            f"{path} is not a torch.save file that is safe to load: {first}"
        ) from error
    if not isinstance(loaded, dict):
        raise UsageError(f"{path} contains a {type(loaded).__name__}, not a state dict")
    return loaded


def _is_zip(path: Path) -> bool:
    """Return whether it has the one of torch's two formats that can be mapped."""
    return path.is_file() and zipfile.is_zipfile(path)


@contextmanager
def _scratch(nbytes: int, path: Path) -> Iterator[memoryview]:
    """Yield memory that is a file without a name in the temporary folder."""
    folder = "the temporary folder"
    with ExitStack() as stack:
        try:
            folder = tempfile.gettempdir()
            file = stack.enter_context(tempfile.TemporaryFile(dir=folder))
            reserve(file.fileno(), nbytes)
        except OSError as error:
            raise EnvironmentFailure(
                f"{folder} has no room for {mib(nbytes)}, which are needed to import {path}: "
                f"{error.strerror or error}; set TMPDIR to a folder that has"
            ) from error
        yield memoryview(mmap.mmap(file.fileno(), 0))


def _view(path: Path, loaded: dict[str, Any], part: str) -> StateView:
    state = {part: loaded} if part else loaded
    flat, paths = _flat(path, state)
    chunks: list[Chunk] = []
    entries: list[ValueEntry] = []
    if part:
        # A restore then knows that whatever else is missing was not meant to be there.
        note = OWN, IMPORTED, part
        entries.append(ValueEntry(".".join(note), note, lambda: True))
    for fqn, value in flat.items():
        key = tuple(paths[fqn])
        if isinstance(value, torch.Tensor) and not tensors.is_value(value):
            if problem := tensors.has_nothing(value):
                raise UsageError(f"{path}: {fqn} {problem}")
            chunks += chunks_of(fqn, key, value)
        else:
            entries.append(ValueEntry(fqn, key, functools.partial(flat.get, fqn)))
    entries += [entry for name, value in state.items() for entry in _structures(name, value)]
    return StateView(tuple(chunks), tuple(entries), {}, lambda: True)


def _flat(
    path: Path, state: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, tuple[str | int, ...]]]:
    """Return tensors and values by name, and their paths.

    Raises `UsageError` for keys that would not come back as they are.
    """
    advice = "import it with --part NAME, which it is put under"
    for name in state:
        if not isinstance(name, str):
            raise UsageError(f"{path}: the key {name!r} is not a string: {advice}")
        if name == OWN:
            raise UsageError(f"{path}: the key {OWN!r} is reserved for spotelastic: {advice}")
    flat: dict[str, Any] = {}
    paths: dict[str, tuple[str | int, ...]] = {}
    try:
        for name, value in state.items():
            for key, leaf in derived.flat_state(name, value).items():
                flat[derived.named(key, paths)] = leaf
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    return flat, paths


def _structures(name: str, value: Any) -> Iterator[ValueEntry]:
    """Yield the structure of a container where paths alone do not tell it.

    There is none for a module's state. That is loaded by names, and the module decides about
    values.
    """
    if not isinstance(value, dict | list):
        return
    if any(isinstance(key, str) and key.endswith(derived.EXTRA_STATE) for key in value):
        return
    followed = derived.Followed(name, lambda: value)
    plain: dict[str, Any] = {}
    for path in followed.flat:
        derived.set_element(plain, path, ".".join(map(str, path)))
    if plain.get(name) != followed.structure():
        yield own_entry(followed.structure, STRUCTURE, name)


@torch.no_grad()
def _fill_slot(
    view: StateView, items: Sequence[Item], memory: memoryview, done: Progress
) -> tuple[Item, ...]:
    """Encode the state into memory, and return the items with their checksums."""
    chunks = {chunk.key: chunk for chunk in view.chunks}
    entries = {entry.key: entry for entry in view.entries}
    filled = []
    for item in items:
        if item.is_tensor:
            prefix = encoding.tensor_prefix(item.dtype, item.sizes)
            memory[item.offset : item.offset + len(prefix)] = prefix
            tensor_at(memory, item).copy_(chunks[item.key].tensor)
        else:
            data = values.encode(item.fqn, entries[item.key].get())
            memory[item.offset : item.offset + len(data)] = data
            item = msgspec.structs.replace(item, length=len(data))  # noqa: PLW2901
        raw = memory[item.offset : item.offset + item.length]
        filled.append(manifest.checksummed(item, raw))
        if item.is_tensor:
            done(_payload(item))
    return tuple(filled)
