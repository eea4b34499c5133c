"""Tensors that a class makes of others are saved by those, and filled where they are."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from spotelastic_checkpoints.catalog.catalog import Catalog
from spotelastic_checkpoints.storage.folder import FolderStorage
from support.saving.one_slot import OneSlot, load, stream
from torch import nn
from torch.distributed.tensor import DeviceMesh, DTensor, Shard, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.testing._internal.two_tensor import TwoTensor

import spotelastic as se
from spotelastic.errors import UsageError
from spotelastic.training.dcp import convert
from spotelastic.training.state.state import State


@pytest.fixture(autouse=True)
def allowed() -> Iterator[None]:
    with torch.serialization.safe_globals([TwoTensor]):
        yield


def two(value: float, *shape: int) -> TwoTensor:
    return TwoTensor(torch.full(shape, value), torch.full(shape, -value))


class Weights(nn.Module):
    weight: Any
    scale: Any

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(two(value, 3, 2))
        self.nested = nn.Parameter(TwoTensor(two(value, 2), two(value + 1, 2)))
        self.register_buffer("scale", two(value + 2, 2))


def inner(tensor: Any) -> list[torch.Tensor]:
    if not isinstance(tensor, TwoTensor):
        return [tensor]
    return [*inner(tensor.a), *inner(tensor.b)]


def same(left: Any, right: Any) -> bool:
    pairs = zip(inner(left), inner(right), strict=True)
    return type(left) is type(right) and all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize("restore", [load, stream])
def test_the_inner_tensors_of_a_module_are_filled_where_they_are(
    tmp_path: Path, restore: Any
) -> None:
    saved, again = Weights(1.0), Weights(5.0)
    state = {"model": nn.Sequential(saved)}
    names = {chunk.fqn for chunk in State(state).view().chunks}
    assert {"model.0.weight.[a]", "model.0.nested.[b.a]", "model.0.scale.[b]"} <= names
    OneSlot(tmp_path / "slot", state).save(1)
    known = [inner(each) for each in (again.weight, again.nested, again.scale)]
    restore(tmp_path / "slot", 1, {"model": nn.Sequential(again)})
    for name, before in zip(("weight", "nested", "scale"), known, strict=True):
        found = getattr(again, name)
        assert same(found, getattr(saved, name)), name
        assert all(map(lambda a, b: a is b, inner(found), before))
    assert again.weight.requires_grad and isinstance(again.weight, nn.Parameter)


def test_inner_tensors_that_were_replaced_are_seen(tmp_path: Path) -> None:
    saved, alone = Weights(1.0), two(7.0, 2)
    state: dict[str, Any] = {"model": saved, "alone": alone, "held": {"each": two(9.0, 2)}}
    slot = OneSlot(tmp_path / "slot", state)
    slot.save(1)
    saved.weight.a = torch.full((3, 2), 4.0)
    saved.scale.a.add_(1)
    alone.b = torch.full((2,), 8.0)
    state["held"]["each"].a = torch.full((2,), 6.0)
    slot.save(2)
    again: dict[str, Any] = {
        "model": Weights(0.0), "alone": two(0.0, 2), "held": {"each": two(0.0, 2)}
    }  # fmt: skip
    living = again["alone"], again["held"]["each"]
    load(tmp_path / "slot", 2, again)
    assert same(again["model"].weight, saved.weight) and same(again["model"].scale, saved.scale)
    assert same(again["alone"], alone) and same(again["held"]["each"], state["held"]["each"])
    assert again["alone"] is living[0] and again["held"]["each"] is living[1]


class Quantized(torch.optim.SGD):
    """Keeps its moments as torchao's optimizers do."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            own = self.state[p]
            own.setdefault("moment", two(0.0, *p.shape))
            own["moment"].a.add_(p.grad)
            p.data.sub_(own["moment"].a)


@pytest.mark.parametrize("restore", [load, stream])
def test_an_optimizer_s_state_is_made_of_what_was_saved(tmp_path: Path, restore: Any) -> None:
    def made(value: float, steps: int) -> dict[str, Any]:
        model = nn.Linear(2, 2)
        nn.init.constant_(model.weight, value)
        optimizer = Quantized(model.parameters(), lr=0.1)
        for _ in range(steps):
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, value)
            optimizer.step()
        return {"model": model, "optimizer": optimizer}

    state = made(1.0, 3)
    OneSlot(tmp_path / "slot", state).save(1, overlaps=True)
    for steps in 0, 1:
        again = made(3.0, steps)
        restore(tmp_path / "slot", 1, again)
        left, right = (each["optimizer"].state.values() for each in (state, again))
        for expected, found in zip(left, right, strict=True):
            assert same(found["moment"], expected["moment"])


def test_a_sharded_one_is_refused_by_name(two_ranks: DeviceMesh) -> None:
    tensor = DTensor.from_local(two(1.0, 4), two_ranks, [Shard(0)], run_check=False)
    for state in {"x": tensor}, {"x": [tensor]}:
        with pytest.raises(UsageError, match=r"^x.* is a DTensor of TwoTensor.* fully_shard"):
            State(state).view()


@pytest.fixture
def two_ranks() -> Iterator[DeviceMesh]:
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


def test_a_file_for_torch_has_them_whole(tmp_path: Path) -> None:
    state = {"model": Weights(2.0)}
    with se.Checkpointer(state, storage=str(tmp_path / "run")) as checkpoint:
        checkpoint.step(1)
    catalog = Catalog(FolderStorage(tmp_path / "run"))
    convert.to_torch(catalog, catalog.find(1), tmp_path / "x.pt", lambda _: None, "model")
    found = torch.load(tmp_path / "x.pt")
    assert {*found} == {"weight", "nested", "scale"}
    assert same(found["scale"], state["model"].scale)
    assert same(found["nested"].detach(), state["model"].nested.detach())
