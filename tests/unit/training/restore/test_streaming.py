"""Tensors filled from a window, wherever its parts have come to, and however they lie here."""

from pathlib import Path

import pytest
import torch
from spotelastic_checkpoints.restore.contents import Piece
from spotelastic_checkpoints.types import Item

from spotelastic.training.restore import shm_copy, streaming
from spotelastic.training.restore.streaming import Copy

ELEMENTS = 600


def copy_of(number: int, tensor: torch.Tensor, at: int) -> Copy:
    sizes, name = tuple(tensor.shape), f"t{number}"
    item = Item(name, (name,), "int64", sizes, (), sizes, -1, at, tensor.nbytes)
    return Copy(Piece("", item), tensor)


@pytest.mark.parametrize("window", [8, 1000, streaming.WINDOW])
def test_tensors_that_cannot_be_read_into_are_filled_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    numbers = torch.arange(3 * ELEMENTS)
    data = numbers.numpy().tobytes()
    size = ELEMENTS * 8
    # The second half of what is there comes first in the file.
    (tmp_path / "file").write_bytes(data[2 * size - 80 :] + data[: 2 * size - 80])
    moved = [(0, 2 * size - 80, size + 80), (2 * size - 80, 3 * size, 0)]
    plain, turned, late = (
        torch.zeros(ELEMENTS, dtype=torch.int64),
        torch.zeros((20, 30), dtype=torch.int64).T,
        torch.zeros(ELEMENTS, dtype=torch.int64),
    )
    copies = [copy_of(0, plain, 0), copy_of(1, turned, size), copy_of(2, late, 2 * size)]
    # As where a tensor is on a GPU.
    monkeypatch.setattr(shm_copy, "can_fill", lambda tensor: tensor is plain)
    streaming.fill(str(tmp_path / "file"), copies, moved, window)
    assert torch.equal(plain, numbers[:ELEMENTS])
    assert torch.equal(turned, numbers[ELEMENTS : 2 * ELEMENTS].view(30, 20))
    assert torch.equal(late, numbers[2 * ELEMENTS :])
