"""What is written without torch is what stock torch reads."""

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from msgspec.structs import replace
from spotelastic_checkpoints.format import encoding, layout, manifest, metadata
from spotelastic_checkpoints.format.layout import Declaration, Declared, SlotLayout
from spotelastic_checkpoints.format.opcodes import Emitter
from spotelastic_checkpoints.types import Item
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

DTYPES = {name: getattr(torch, name) for name in encoding.ITEM_SIZES}


def raw(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().flatten().view(torch.uint8).numpy())


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("sizes", [(), (3,), (2, 5), (0, 4)])
def test_stock_torch_loads_a_tensor_item_of_every_dtype(
    tmp_path: Path, name: str, sizes: tuple[int, ...]
) -> None:
    tensor = (torch.rand(sizes) * 10).to(DTYPES[name])
    data = raw(tensor.reshape(-1)) if tensor.numel() else b""
    path = tmp_path / "item"
    path.write_bytes(encoding.tensor_prefix(name, sizes) + data)
    with path.open("rb") as file:
        loaded = torch.load(file, weights_only=True)
    assert loaded.dtype == tensor.dtype
    assert torch.equal(loaded, tensor)


def written(folder: Path, state: dict[str, object], ranks: int) -> list[manifest.Manifest]:
    """Writes `state` as `ranks` ranks on one node each would; tensors of two rows are split."""
    items = []
    for fqn, value in state.items():
        path = tuple(fqn.split("."))
        if not isinstance(value, torch.Tensor):
            items.append(Declared(fqn, path, room=256))
        elif value.dim() == 2:
            for row in range(value.shape[0]):
                sizes = (1, value.shape[1])
                items.append(Declared(fqn, path, "float32", tuple(value.shape), (row, 0), sizes))
        else:
            shape = tuple(value.shape)
            items.append(Declared(fqn, path, "float32", shape, (0,) * value.dim(), shape))
    plan = layout.plan([Declaration(rank, f"n{rank}", tuple(items)) for rank in range(ranks)])
    manifests = []
    for rank, slot in plan.slots.items():
        data, stored = fill(slot, state)
        name = manifest.shard_name(rank, 0)
        (folder / name).write_bytes(data)
        manifests.append(
            manifest.Manifest(
                version=1,
                epoch=1,
                step=7,
                incarnation="r",
                layout=plan.hash,
                rank=rank,
                world_size=ranks,
                chunks=plan.chunks,
                shards=(manifest.Shard(name, len(data), stored),),
            )
        )
    return manifests


def fill(slot: SlotLayout, state: dict[str, object]) -> tuple[bytes, tuple[Item, ...]]:
    data = bytearray(slot.owned_bytes)
    stored = []
    for item in slot.items[: slot.owned]:
        value = state[item.fqn]
        if isinstance(value, torch.Tensor):
            chunk = value
            for axis, (offset, size) in enumerate(zip(item.offsets, item.sizes, strict=True)):
                chunk = chunk.narrow(axis, offset, size)
            content = encoding.tensor_prefix(item.dtype, item.sizes) + raw(chunk.reshape(-1))
        else:
            content = encoding.plain_value(value)
        data[item.offset : item.offset + len(content)] = content
        stored.append(replace(item, length=len(content)))
    return bytes(data), tuple(stored)


STATE: dict[str, object] = {
    "model.weight": torch.arange(12.0).reshape(3, 4),
    "model.bias": torch.arange(5.0),
    "model.scale": torch.tensor(2.5),
    "optimizer.lr": 0.1,
    "optimizer.betas": (0.9, 0.99),
    "big": 1 << 70,
}


@pytest.mark.parametrize("reader", [FileSystemReader, FsspecReader])
def test_stock_dcp_loads_what_three_ranks_wrote(tmp_path: Path, reader: type) -> None:
    manifests = written(tmp_path, STATE, 3)
    assert manifest.complaint(manifests) == ""
    (tmp_path / metadata.NAME).write_bytes(metadata.write(manifests))

    target = {
        name: torch.zeros_like(value) if isinstance(value, torch.Tensor) else None
        for name, value in STATE.items()
    }
    dcp.load(target, storage_reader=reader(str(tmp_path)), no_dist=True)
    for name, value in STATE.items():
        loaded = target[name]
        if isinstance(value, torch.Tensor):
            assert isinstance(loaded, torch.Tensor)
            assert torch.equal(loaded, value), name
        else:
            assert loaded == value, name


def test_stock_conversion_restores_the_nested_state(tmp_path: Path) -> None:
    manifests = written(tmp_path, STATE, 2)
    (tmp_path / metadata.NAME).write_bytes(metadata.write(manifests))
    dcp_to_torch_save(tmp_path, tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt", weights_only=False)
    assert torch.equal(whole["model"]["weight"], torch.arange(12.0).reshape(3, 4))
    assert whole["optimizer"]["betas"] == (0.9, 0.99)


def test_the_commit_record_is_the_same_whoever_writes_it(tmp_path: Path) -> None:
    manifests = written(tmp_path, STATE, 3)
    assert metadata.write(manifests) == metadata.write(manifests[::-1])
    assert not metadata.is_tombstone(metadata.write(manifests))
    assert metadata.is_tombstone(metadata.TOMBSTONE)


def test_what_is_made_once_is_what_would_have_been_written_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {f"{block}.{name}": value for block in "abcd" for name, value in STATE.items()}
    manifests = written(tmp_path, state, 3)
    record = metadata.write(manifests)
    monkeypatch.setattr(Emitter, "again", lambda self, write, *what: write(self, *what))
    assert metadata.write(manifests) == record


def test_manifests_that_do_not_cover_the_state_are_named(tmp_path: Path) -> None:
    first, second, third = written(tmp_path, STATE, 3)
    assert "rank 1 is missing" in manifest.complaint([first, third])
    [shard] = first.shards
    short = replace(first, shards=(replace(shard, items=shard.items[1:]),))
    assert "items were written" in manifest.complaint([short, second, third])
    other = replace(second, incarnation="another round")
    assert "different states" in manifest.complaint([first, other, third])
    row = next(item for item in shard.items if item.fqn == "model.weight")
    twice = replace(first, shards=(shard, replace(shard, items=(row,))))
    assert "twice" in manifest.complaint([twice, second, third])
