"""A worker script that trains a state of every kind, saved and restored by 4, 2, 3 and 1 ranks in
turn.

Every world checks what it restored against what the previous one wrote down, and has stock DCP read
the same. It trains a step, saves, and has stock DCP read that, too. It also writes with stock DCP
what the next world reads with spotelastic's reader.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import support.training.forked
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import spotelastic as se

ROWS = 12
KINDS = ("plain", "ddp", "fsdp", "hybrid", "tensor", "grid")


class Wrapped:
    """What trainers put around a sharded model: state in, state out."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def state_dict(self) -> dict[str, Any]:
        return get_model_state_dict(self.model)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_model_state_dict(self.model, state)


def build(seed: int, world: int) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for number, kind in enumerate(KINDS):
        torch.manual_seed(seed + number)
        # 4 rows over 3 ranks and 3 over 4 leave the last rank without any.
        hidden = 12 if kind in {"tensor", "grid"} else 4
        model: nn.Module = nn.Sequential(nn.Linear(6, hidden), nn.Tanh(), nn.Linear(hidden, 3))
        state[kind] = model = distribute(model.double(), kind, world)
        state[f"{kind}_optimizer"] = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(seed)
    state["wrapped"] = Wrapped(distribute(nn.Linear(4, 3), "fsdp", world))
    state["schedule"] = torch.optim.lr_scheduler.StepLR(state["ddp_optimizer"], 1, 0.5)
    state["seen"] = 0
    for kind in KINDS:
        state[f"{kind}_bank"] = distribute(Bank(), kind, world)
    state["sums"] = torch.zeros(0)
    return state


class Bank(nn.Sequential):
    """Has buffers that grow and appear while it is trained."""

    queue: torch.Tensor
    last: torch.Tensor | None

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 12).double(), nn.Tanh(), nn.Linear(12, 6).double())
        self.register_buffer("queue", torch.zeros(0, 2))
        self.register_buffer("last", None)


def grow(state: dict[str, Any], step: int) -> None:
    for bank in banks(state):
        bank.queue = torch.cat([bank.queue, torch.full((1, 2), float(step))])
        bank.last = torch.tensor([float(step)])
    state["sums"] = torch.cat([state["sums"], torch.tensor([float(step)])])
    state[f"noted {step}"] = torch.tensor(step)


def check_grown(state: dict[str, Any], steps: int) -> None:
    numbers = torch.arange(1.0, steps + 1)
    for bank in banks(state):
        assert torch.equal(bank.queue, numbers.unsqueeze(1).expand(steps, 2))
        assert (None if bank.last is None else bank.last.item()) == (steps or None)
    assert torch.equal(state["sums"], numbers)
    assert [state[f"noted {step}"].item() for step in range(1, steps + 1)] == numbers.tolist()


def banks(state: dict[str, Any]) -> list[Bank]:
    found = [part for kind in KINDS for part in state[f"{kind}_bank"].modules()]
    return [part for part in found if isinstance(part, Bank)]


def distribute(model: nn.Module, kind: str, world: int) -> nn.Module:
    tensor_plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    match kind:
        case "ddp":
            return DistributedDataParallel(model)
        case "fsdp":
            return sharded(model, init_device_mesh("cpu", (world,)))
        case "hybrid":
            across = 2 if world % 2 == 0 else 1
            names = "replica", "shard"
            mesh = init_device_mesh("cpu", (across, world // across), mesh_dim_names=names)
            return sharded(model, mesh)
        case "tensor":
            return parallelize_module(model, init_device_mesh("cpu", (world,)), tensor_plan)
        case "grid":
            across = 2 if world % 2 == 0 else 1
            shape, names = (world // across, across), ("data", "tensor")
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
            model = parallelize_module(model, mesh["tensor"], tensor_plan)
            return sharded(model, mesh["data"])
    return model


def sharded(model: nn.Module, mesh: Any) -> nn.Module:
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def train(state: dict[str, Any]) -> None:
    """One step on the same rows on all ranks, so that every sharding computes the same."""
    rows = torch.randn(
        ROWS, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(state["seen"])
    )
    for kind in KINDS:
        optimizer = state[f"{kind}_optimizer"]
        state[kind](rows).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    state["schedule"].step()
    state["seen"] += ROWS


def stock(state: dict[str, Any]) -> dict[str, Any]:
    """As a user of torch.distributed.checkpoint has it."""
    for_dcp: dict[str, Any] = {}
    for kind in KINDS:
        for_dcp[kind] = get_model_state_dict(state[kind])
        optimizer = state[f"{kind}_optimizer"]
        for_dcp[f"{kind}_optimizer"] = get_optimizer_state_dict(state[kind], optimizer)
    for_dcp["wrapped"] = state["wrapped"].state_dict()
    for_dcp["schedule"] = state["schedule"].state_dict()
    for_dcp["seen"] = state["seen"]
    return for_dcp


def whole(for_dcp: dict[str, Any]) -> dict[str, Any]:
    """Everything, gathered, by name."""
    flat, _ = flatten_state_dict(for_dcp)
    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value.clone())
        if isinstance(value, Tensor)
        else value
        for name, value in flat.items()
    }


def check_equal(for_dcp: dict[str, Any], expected: dict[str, Any], what: str) -> None:
    """This rank's part of everything, against the whole of it; without a word between ranks."""
    found, _ = flatten_state_dict(for_dcp)
    assert found.keys() == expected.keys(), (what, found.keys() ^ expected.keys())
    for name, value in expected.items():
        own, wanted = found[name], value
        if isinstance(own, DTensor):
            mesh, placements = own.device_mesh, own.placements
            wanted = distribute_tensor(value, mesh, placements, src_data_rank=None).to_local()
            own = own.to_local()
        same = torch.equal(own, wanted) if isinstance(own, Tensor) else own == wanted
        assert same, f"{what}: {name} is {own}, not {wanted}"


def live(rank: int, world: int, folder: Path, before: int, step: int) -> None:
    """Restore what `before` ranks saved at `step`, check it in every way, train, save."""
    written = folder / f"expected-{step}.pt"
    state = build(seed=1000 * world, world=world)
    with se.Checkpointer(state, storage=str(folder / "ours"), checkpoint_every=1) as checkpoint:
        assert checkpoint.restore() == step
        if before:
            expected = torch.load(written, weights_only=False)
            check_equal(stock(state), expected, f"ours, {before} to {world}")
            read(rank, world, se.dcp.CheckpointReader(folder / f"stock-{step}"), expected)
            read_by_stock(rank, world, saved_at(folder, step), expected)
            read_by_stock(rank, world, folder / f"switched-{step}", expected)
        check_grown(state, step)
        train(state)
        grow(state, step + 1)
        checkpoint.step(step + 1)
    result = stock(state)
    expected = whole(result)
    saved = saved_at(folder, step + 1)
    read_by_stock(rank, world, saved, expected)
    read(rank, world, se.dcp.CheckpointReader(saved), expected)
    dcp.save(result, storage_writer=FileSystemWriter(folder / f"stock-{step + 1}"))
    switched = folder / f"switched-{step + 1}"
    dcp.save(result, storage_writer=se.dcp.CheckpointWriter(switched))
    read(rank, world, FileSystemReader(switched), expected)
    if rank == 0:
        torch.save(expected, folder / f"expected-{step + 1}.pt")
    dist.barrier()


def saved_at(folder: Path, step: int) -> Path:
    """Each world makes one step, under an epoch of its own."""
    return folder / "ours" / str(step) / f"step-{step:08d}"


def read_by_stock(rank: int, world: int, saved: Path, expected: dict[str, Any]) -> None:
    read(rank, world, FileSystemReader(saved), expected)
    read(rank, world, FsspecReader(f"file://{saved}"), expected)


def read(rank: int, world: int, reader: Any, expected: dict[str, Any]) -> None:
    other = stock(build(seed=7, world=world))
    dcp.load(other, storage_reader=reader)
    check_equal(other, expected, f"{type(reader).__name__} on {world}")


def live_under_agents(rank: int, world: int, folder: Path, step: int) -> None:
    """Like `live`, each rank on a node of its own, whose daemon and round are set up already."""
    os.environ.update(json.loads((folder / f"environment-{rank}.json").read_text()))
    os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    state = build(seed=1000 * world, world=world)
    with se.Checkpointer(state) as checkpoint:
        assert checkpoint.restore() == step
        if step:
            expected = torch.load(folder / f"expected-{step}.pt", weights_only=False)
            check_equal(stock(state), expected, f"memory, to {world}")
        train(state)
        checkpoint.step(step + 1)
        expected = whole(stock(state))
    if rank == 0:
        torch.save(expected, folder / f"expected-{step + 1}.pt")


def main() -> None:
    """FOLDER store WORLD... runs worlds in turn; FOLDER memory STEP WORLD one under agents."""
    folder, source, *numbers = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
    if source == "memory":
        step, world = numbers
        support.training.forked.run(world, live_under_agents, folder, step)
        return
    before = 0
    for step, world in enumerate(numbers):
        support.training.forked.run(world, live, folder, before, step)
        before = world


if __name__ == "__main__":
    main()
