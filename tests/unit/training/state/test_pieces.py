"""Tensors are cut into pieces of bounded size, wherever in the whole they lie."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.saving.one_slot import OneSlot, load
from torch.distributed.tensor import DTensor, Shard, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from spotelastic.training.state.chunks import chunks_of

WHOLE = torch.arange(10.0 * 6).view(10, 6)


PIECE = 2 * WHOLE[0].nbytes
"""Two rows."""


@pytest.fixture(params=[0, 1])
def part(request: pytest.FixtureRequest) -> Iterator[DTensor]:
    """The second rank's half of the whole, along either axis."""
    axis = request.param
    dist.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    mesh = init_device_mesh("cpu", (2,))
    local = WHOLE.chunk(2, axis)[1].contiguous()
    yield DTensor.from_local(local, mesh, [Shard(axis)], run_check=False)
    dist.destroy_process_group()


def test_a_rank_s_part_of_a_sharded_tensor_is_cut_like_any_other(part: DTensor) -> None:
    chunks = list(chunks_of("w", ("w",), part, PIECE))
    assert len(chunks) == 3 and len({chunk.key for chunk in chunks}) == 3
    for chunk in chunks:
        assert chunk.shape == (10, 6)
        assert chunk.tensor.nbytes <= PIECE
        (row, column), (rows, columns) = chunk.offsets, chunk.sizes
        found = WHOLE[row : row + rows, column : column + columns]
        assert torch.equal(chunk.tensor, found)
    assert sum(chunk.tensor.numel() for chunk in chunks) == WHOLE.numel() // 2


def test_a_sharded_tensor_saved_in_pieces_comes_back_in_place(
    part: DTensor, tmp_path: Path
) -> None:
    saved = part.to_local().clone()
    OneSlot(tmp_path / "slot", {"w": part}, piece=PIECE).save(1)
    for piece in (PIECE, 1 << 20, 100):
        part.to_local().zero_()
        load(tmp_path / "slot", 1, {"w": part}, piece=piece)
        assert torch.equal(part.to_local(), saved)


@pytest.mark.parametrize("shape", [(1, 10, 6), (2, 40, 3), (1, 100), (1, 1, 1, 50)])
def test_rows_that_are_long_themselves_are_cut_too(shape: tuple[int, ...], tmp_path: Path) -> None:
    whole = torch.rand(shape)
    chunks = list(chunks_of("w", ("w",), whole, PIECE))
    assert len(chunks) > 1
    for chunk in chunks:
        assert chunk.tensor.nbytes <= PIECE
        place = tuple(slice(at, at + n) for at, n in zip(chunk.offsets, chunk.sizes, strict=True))
        assert torch.equal(chunk.tensor, whole[place])
    assert sum(chunk.tensor.numel() for chunk in chunks) == whole.numel()
    saved = whole.clone()
    OneSlot(tmp_path / "slot", {"w": whole}, piece=PIECE).save(1)
    load(tmp_path / "slot", 1, {"w": whole.zero_()}, piece=PIECE)
    assert torch.equal(whole, saved)


def test_what_has_no_rows_is_one_piece() -> None:
    for tensor in (torch.tensor(1.0), torch.empty(0, 3), torch.ones(1)):
        [chunk] = chunks_of("w", ("w",), tensor, PIECE)
        assert (chunk.shape, chunk.sizes) == (tensor.shape, tensor.shape)
        assert chunk.offsets == (0,) * tensor.dim()
