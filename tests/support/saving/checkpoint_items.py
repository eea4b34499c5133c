"""Checkpoint items that are neither tensors nor per-rank values."""

from spotelastic_checkpoints.types import Item


def item(name: str, offset: int, length: int, checksum: str = "", blocks: str = "") -> Item:
    return Item(name, (name,), "", (), (), (), -1, offset, length, checksum, blocks)
