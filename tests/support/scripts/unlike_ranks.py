"""A worker script with two ranks whose states differ, in several ways, one after the other.

Argument: FOLDER.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import support.training.forked
import torch
import torch.distributed as dist
from spotelastic_checkpoints.catalog.catalog import Catalog
from spotelastic_checkpoints.storage.folder import FolderStorage
from support.training.open_checkpointer import wait_for_slots
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import spotelastic as se
from spotelastic.errors import UsageError


class Momentum(torch.optim.Optimizer):
    """Keeps a slice of its own on each rank."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["slice"] = torch.full((3,), float(dist.get_rank()))


def checkpointer(state: dict[str, Any], folder: Path) -> se.Checkpointer:
    return se.Checkpointer(state, storage=str(folder), snapshot_every=1, checkpoint_every=1)


def refused(state: dict[str, Any], folder: Path, message: str) -> None:
    with pytest.raises(UsageError, match=message), checkpointer(state, folder) as checkpoint:
        checkpoint.restore()
        checkpoint.step(1)
    dist.barrier()


def what_differs_is_refused(rank: int, folder: Path) -> None:
    differs = r"rank 1 differs .* se.PerRank\(..., merge=function\) around the entry '{}'"
    refused({"data": {"pos": 100 + rank}}, folder / "value", "data is .*" + differs.format("data"))

    model = nn.Linear(2, 2)
    nn.init.ones_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = Momentum(model.parameters())
    optimizer.step()
    name = r"optimizer.state.bias.slice \(and 1 more\) is"
    state = {"model": model, "optimizer": optimizer}
    refused(state, folder / "slices", name + ".*" + differs.format("optimizer"))

    class Loader:
        def state_dict(self) -> dict[str, Any]:
            return {"seen": rank, "bits": torch.zeros(4)}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    refused({"loader": Loader()}, folder / "loader", "loader.seen is")
    refused({"ema": torch.full((1 << 18,), rank)}, folder / "large", "ema is")
    mistake = {"fine": 1} if rank else {"fine": print}
    refused(mistake, folder / "mistake", "fine is more than data" if rank == 0 else "rank 0: fine")


def equal_values_may_be_built_in_another_way(rank: int, folder: Path) -> None:
    keys = ["b", "a"] if rank else ["a", "b"]
    name = "x" * 20
    twice = [name, name] if rank else [name, "".join(["x"] * 20)]
    state = {"plain": dict.fromkeys(keys, 1), "twice": twice, "seen": set(keys)}
    with checkpointer(state, folder / "equal") as checkpoint:
        checkpoint.restore()
        torch.manual_seed(rank)
        for step in range(1, 4):
            checkpoint.step(step)
            dist.barrier()


def values_that_come_apart_later_are_refused(rank: int, folder: Path) -> None:
    state: dict[str, Any] = {"best": 0.0}
    with (
        pytest.raises(UsageError, match="best is not the same"),
        checkpointer(state, folder / "later") as checkpoint,
    ):
        checkpoint.restore()
        for step in range(1, 8):
            state["best"] = rank / 10 if step > 3 else 0.0
            checkpoint.step(step)
            dist.barrier()
            assert step < 6
    steps = [entry.step for entry in Catalog(FolderStorage(folder / "later")).entries()]
    assert max(steps) <= 3
    dist.barrier()


def buffers_are_those_of_the_first_rank(rank: int, folder: Path) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)))
    norm = model.module[1]
    with checkpointer({"model": model}, folder / "buffers") as checkpoint:
        checkpoint.restore()
        model(torch.randn(6, 4, generator=torch.Generator().manual_seed(rank)))
        checkpoint.step(1)
        first = [norm.running_mean.clone(), norm.running_var.clone()]
    dist.broadcast(first[0], 0)
    dist.broadcast(first[1], 0)
    nn.init.zeros_(norm.running_mean)
    nn.init.zeros_(norm.running_var)
    with checkpointer({"model": model}, folder / "buffers") as checkpoint:
        assert checkpoint.restore() == 1
        assert torch.equal(norm.running_mean, first[0])
        assert torch.equal(norm.running_var, first[1])


def stages(names: list[str], seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.ModuleDict({name: nn.Linear(3, 3) for name in names})
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters()), "seen": 0}


def content(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    found = {name: p.detach().clone() for name, p in state["model"].named_parameters()}
    for name, parameter in state["model"].named_parameters():
        for key, value in state["optimizer"].state[parameter].items():
            found[f"{name}.{key}"] = value.clone()
    return found


def pipeline_stages_come_back(rank: int, world: int, folder: Path) -> None:
    mine = ["l0", "l2"] if rank == 0 else ["l1", "l3"]
    state = stages(mine, rank)
    with checkpointer(state, folder / "stages") as checkpoint:
        checkpoint.restore()
        for layer in state["model"].values():
            layer(torch.ones(2, 3)).square().sum().backward()
        state["optimizer"].step()
        checkpoint.step(1)
    saved: list[Any] = [None] * world
    dist.all_gather_object(saved, content(state))
    everything = saved[0] | saved[1]
    for names in mine, ["l1"] if rank == 0 else ["l0", "l2", "l3"]:
        other = stages(names, 7)
        with checkpointer(other, folder / "stages") as checkpoint:
            assert checkpoint.restore() == 1
            for name, value in content(other).items():
                assert torch.equal(value, everything[name]), name
    for names, message in (
        (["l0"], "it also holds model.l1.bias"),
        (["l0", "l1", "l2", "l3", f"l{4 + rank}"], "model.l4.weight .* missing"),
    ):
        with (
            pytest.raises(UsageError, match=message),
            checkpointer(stages(names, 7), folder / "stages") as checkpoint,
        ):
            checkpoint.restore()
        dist.barrier()
    if rank == 0:
        torch.save(everything, folder / "stages.pt")


def all_stages_on_one_rank(rank: int, world: int, folder: Path) -> None:
    state = stages(["l0", "l1", "l2", "l3"], 7)
    with checkpointer(state, folder / "stages") as checkpoint:
        assert checkpoint.restore() == 1
        for name, value in torch.load(folder / "stages.pt").items():
            assert torch.equal(content(state)[name], value), name


class Loader:
    def __init__(self, position: int) -> None:
        self.position = position

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "order": torch.arange(self.position)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert torch.equal(state["order"], torch.arange(state["position"]))
        self.position = state["position"]


def own(position: int, merge: Any = None) -> dict[str, Any]:
    return {
        "loader": se.PerRank(Loader(position), merge),
        "generator": se.PerRank(torch.Generator().manual_seed(position), lambda s, r, w: s[-1]),
        "seen": se.PerRank(position, lambda saved, rank, world: sum(saved)),
        "kept": se.PerRank({"moment": torch.full((3,), float(position))}, lambda s, r, w: s[0]),
        "step": 0,
    }


def each_rank_gets_its_own_back(rank: int, folder: Path) -> None:
    state = own(10 + rank)
    with checkpointer(state, folder / "own") as checkpoint:
        checkpoint.restore()
        checkpoint.step(1)
    other = own(0)
    moment = other["kept"].value["moment"]
    with checkpointer(other, folder / "own") as checkpoint:
        assert checkpoint.restore() == 1
    assert other["loader"].value.position == other["seen"].value == 10 + rank
    assert moment.tolist() == [10.0 + rank] * 3
    expected = torch.Generator().manual_seed(10 + rank).get_state()
    assert torch.equal(other["generator"].value.get_state(), expected)


def another_number_of_ranks_needs_a_function(rank: int, world: int, folder: Path) -> None:
    message = "loader is kept per rank, and was saved by 2 ranks: to restore it on 1"
    with (
        pytest.raises(UsageError, match=message),
        checkpointer(own(0), folder / "own") as checkpoint,
    ):
        checkpoint.restore()
    state = own(0, lambda saved, rank, world: saved[1])
    with checkpointer(state, folder / "own") as checkpoint:
        assert checkpoint.restore() == 1
    assert (state["loader"].value.position, state["seen"].value) == (11, 21)
    assert state["kept"].value["moment"].tolist() == [10.0] * 3


def two_ranks(rank: int, world: int, folder: Path) -> None:
    wait_for_slots()
    alone: tuple[Callable[[int, Path], None], ...] = (
        what_differs_is_refused,
        equal_values_may_be_built_in_another_way,
        values_that_come_apart_later_are_refused,
        buffers_are_those_of_the_first_rank,
        each_rank_gets_its_own_back,
    )

    for case in alone:
        case(rank, folder)
    pipeline_stages_come_back(rank, world, folder)


def one_rank(rank: int, world: int, folder: Path) -> None:
    another_number_of_ranks_needs_a_function(rank, world, folder)
    all_stages_on_one_rank(rank, world, folder)


def main() -> None:
    folder = Path(sys.argv[1])
    support.training.forked.run(2, two_ranks, folder)
    support.training.forked.run(1, one_rank, folder)


if __name__ == "__main__":
    main()
