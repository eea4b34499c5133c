"""A checkpoint's tensors as safetensors files, as Hugging Face lays them out; without torch.

The format: an unsigned 64-bit length, a JSON header with dtype, shape and offsets of every tensor,
then the tensors' bytes (https://github.com/huggingface/safetensors#format). Several files come
with an index of which tensor lies where.
"""

import json
import mmap
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from spotelastic_checkpoints.catalog.catalog import Catalog, Checkpoint, Progress, Tensor, assemble
from spotelastic_checkpoints.errors import CheckpointsError
from spotelastic_checkpoints.format import encoding

DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
INDEX = "model.safetensors.index.json"
_NAMED = re.compile(r"model(-\d{5,}-of-\d{5,})?\.safetensors|" + re.escape(INDEX))
"""All names that `plan` gives, and the index."""


@dataclass(frozen=True, slots=True)
class File:
    """`tensors`: by the name that they get, the tensor as the checkpoint has it."""

    name: str
    tensors: Mapping[str, Tensor]


def plan(tensors: Mapping[str, Tensor], most: int) -> list[File]:
    """Pure: which file each tensor goes to; none holds more than `most` bytes, but for a tensor
    that is larger."""
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
    """Write the files, one after the other; they get their names when all are complete. What an
    earlier export has left goes then: a loader would take it for a part of this one, or for all.

    Raises `OSError` before anything is read where there is no room for all of them.
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
    """Where each tensor begins, behind the header, by the name that it gets."""
    starts, end = {}, 0
    for name, tensor in file.tensors.items():
        starts[name], end = end, end + tensor.nbytes
    return starts


def _header(file: File) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    for name, start in _starts(file).items():
        tensor = file.tensors[name]
        if tensor.dtype not in DTYPES:
            raise CheckpointsError(f"{tensor.name}: safetensors has no dtype {tensor.dtype}")
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": tensor.shape,
            "data_offsets": [start, start + tensor.nbytes],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % encoding.ITEM_SIZES["float64"])
    return len(text).to_bytes(8, "little") + text


def _allocate(file: File, path: Path) -> int:
    """Writes the header, with room for the tensors behind it; its length.

    Room, and not only a size: a page of a mapped file that the disk has no room for is a signal
    that ends the process.
    """
    header = _header(file)
    total = len(header) + sum(tensor.nbytes for tensor in file.tensors.values())
    with path.open("wb") as out:
        os.posix_fallocate(out.fileno(), 0, total)
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
