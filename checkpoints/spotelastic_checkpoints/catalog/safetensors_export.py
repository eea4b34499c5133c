"""Exports the tensors of a checkpoint as safetensors files in Hugging Face's layout, without torch.

A safetensors file is an unsigned 64-bit length, a JSON header with dtype, shape and offsets of each
tensor, and the tensors' bytes (https://github.com/huggingface/safetensors#format). Several files
come with an index that says which tensor is in which file.
"""

import json
import mmap
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from spotelastic_checkpoints.catalog.catalog import Catalog, Checkpoint, Progress, Tensor, assemble
from spotelastic_checkpoints.errors import CheckpointsError
from spotelastic_checkpoints.format import encoding
from spotelastic_checkpoints.memory.reserve import reserve

INDEX = "model.safetensors.index.json"
_NAMED = re.compile(r"model(-\d{5,}-of-\d{5,})?\.safetensors|" + re.escape(INDEX))
"""Matches every file name that an export can create, the index included."""


@dataclass(frozen=True, slots=True)
class File:
    """A file to write, with its tensors by the names that they get in it.

    A `Tensor` carries the name that it has in the checkpoint, which may be another.
    """

    name: str
    tensors: Mapping[str, Tensor]


def plan(tensors: Mapping[str, Tensor], most: int) -> list[File]:
    """Distribute tensors over files of at most `most` bytes each, in the given order.

    A tensor that is larger than `most` gets a file of its own.
    """
    groups: list[dict[str, Tensor]] = [{}]
    filled = 0
    for name, tensor in tensors.items():
        if groups[-1] and filled + tensor.nbytes > most:
            groups.append({})
            filled = 0
        groups[-1][name] = tensor
        filled += tensor.nbytes
    if len(groups) == 1:
        return [File("model.safetensors", groups[0])]
    return [
        File(f"model-{number:05d}-of-{len(groups):05d}.safetensors", group)
        for number, group in enumerate(groups, 1)
    ]


def export(
    catalog: Catalog, checkpoint: Checkpoint, files: Sequence[File], folder: Path, done: Progress
) -> None:
    """Write the files one after the other, and rename them when all are complete.

    Files of an earlier export are removed then, because a loader would take them for part of this
    one. `done` is called with the bytes written. Raises `OSError` before anything is read where the
    disk has no room for all files, and `CheckpointsError` for a dtype that safetensors does not
    have.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = [file.name for file in files]
    if len(files) > 1:
        names.append(INDEX)
    parts = {name: folder / f"{name}.part" for name in names}
    try:
        bases = [_allocate(file, parts[file.name]) for file in files]
        if INDEX in parts:
            parts[INDEX].write_text(_index(files))
        for file, base in zip(files, bases, strict=True):
            _fill(catalog, checkpoint, file, parts[file.name], base, done)
        for name, part in parts.items():
            part.rename(folder / name)
        for old in folder.iterdir():
            if _NAMED.fullmatch(old.name) and old.name not in parts:
                old.unlink()
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)


def _index(files: Sequence[File]) -> str:
    total = sum(tensor.nbytes for file in files for tensor in file.tensors.values())
    index = {
        "metadata": {"total_size": total},
        "weight_map": {name: file.name for file in files for name in file.tensors},
    }
    return json.dumps(index, indent=2) + "\n"


def _starts(file: File) -> dict[str, int]:
    """Return where each tensor begins, counted from the end of the header."""
    starts, end = {}, 0
    for name, tensor in file.tensors.items():
        starts[name], end = end, end + tensor.nbytes
    return starts


def _header(file: File) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    for name, start in _starts(file).items():
        tensor = file.tensors[name]
        dtype = encoding.DTYPES.get(tensor.dtype)
        if dtype is None or not dtype.safetensors:
            raise CheckpointsError(
                f"{tensor.name} has dtype {tensor.dtype}, which safetensors does not support"
            )
        header[name] = {
            "dtype": dtype.safetensors,
            "shape": tensor.shape,
            "data_offsets": [start, start + tensor.nbytes],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % encoding.ITEM_SIZES["float64"])
    return len(text).to_bytes(8, "little") + text


def _allocate(file: File, path: Path) -> int:
    """Write the header, reserve disk space for the tensors, and return the header's length."""
    header = _header(file)
    total = len(header) + sum(tensor.nbytes for tensor in file.tensors.values())
    with path.open("wb") as out:
        reserve(out.fileno(), total)
        out.write(header)
    return len(header)


def _fill(
    catalog: Catalog, checkpoint: Checkpoint, file: File, path: Path, base: int, done: Progress
) -> None:
    with ExitStack() as stack:
        out = stack.enter_context(path.open("rb+"))
        memory = stack.enter_context(mmap.mmap(out.fileno(), 0))
        view = stack.enter_context(memoryview(memory))
        targets = {
            tensor.name: view[base + start :][: tensor.nbytes]
            for start, tensor in zip(_starts(file).values(), file.tensors.values(), strict=True)
        }
        try:
            assemble(catalog, checkpoint, targets, done)
        finally:
            for target in targets.values():
                target.release()
