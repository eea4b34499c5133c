"""Saves and loads with the functions of `torch.distributed.checkpoint`, in any store.

As a writer and a reader of that package's: `save(state, storage_writer=CheckpointWriter(url))`.
"""

from spotelastic.training.dcp.reader import CheckpointReader
from spotelastic.training.dcp.writer import CheckpointWriter

__all__ = ["CheckpointReader", "CheckpointWriter"]
