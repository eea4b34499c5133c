"""Prints the digests of what is stored, as stock torch reads it: for `spotelastic rehearse`.

    python -m spotelastic.training.rehearsal.stored PATH...

A folder is a checkpoint of torch.distributed.checkpoint, and a file one of `torch.save`. Nothing of
spotelastic's own readers is used.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from spotelastic.training.state.rank_agreement import digest_of_tensor, digest_of_value


def of_checkpoint(folder: Path) -> dict[str, str]:
    """Return the digests of all tensors of a checkpoint, by name."""
    reader = FileSystemReader(folder)
    known = reader.read_metadata().state_dict_metadata
    names = [name for name, each in known.items() if isinstance(each, TensorStorageMetadata)]
    held: dict[str, Any] = {
        name: torch.empty(each.size, dtype=each.properties.dtype)
        if isinstance(each, TensorStorageMetadata)
        else None
        for name, each in known.items()
    }
    load(held, storage_reader=reader, no_dist=True)
    return {name: digest_of_tensor(held[name]).hex() for name in names}


def of_file(path: Path) -> str:
    """Return a digest of what `torch.save` has written."""
    held = torch.load(path, map_location="cpu", weights_only=False)
    return (digest_of_value(held) or b"").hex()


def main() -> None:
    """Entry point."""
    told: dict[str, Any] = {}
    for argument in sys.argv[1:]:
        path = Path(argument)
        try:
            told[argument] = of_checkpoint(path) if path.is_dir() else of_file(path)
        except Exception as error:  # whatever reading it raises is the answer
            told[argument] = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
