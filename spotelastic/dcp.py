"""Saves and loads with the functions of `torch.distributed.checkpoint`, in any store.

As a writer and a reader of that package's: `save(state, storage_writer=CheckpointWriter(url))`.
"""

from typing import TYPE_CHECKING

from spotelastic.public_names import on_first_use

if TYPE_CHECKING:
    from spotelastic.training.dcp.reader import CheckpointReader
    from spotelastic.training.dcp.writer import CheckpointWriter

__all__ = ["CheckpointReader", "CheckpointWriter"]
__getattr__ = on_first_use(
    "spotelastic.dcp",
    {
        "CheckpointReader": "spotelastic.training.dcp.reader",
        "CheckpointWriter": "spotelastic.training.dcp.writer",
    },
)
