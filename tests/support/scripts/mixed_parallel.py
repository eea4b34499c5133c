"""A worker script with a 2 x 2 mesh of data and pipeline parallel ranks, restored by 2 x 2 and by 1
x 2.

Argument: FOLDER. Rank = 2 * (which copy) + (which stage). A stage's names are on two ranks, alike;
each rank also has a value of its own.
"""

import sys
from pathlib import Path
from typing import Any

import support.training.forked
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import spotelastic as se

LAYERS = 4


class Stage(nn.Module):
    """Names of its own, as pipeline stages have."""

    def __init__(self, stage: int) -> None:
        super().__init__()
        own = range(stage, LAYERS, 2)
        self.layers = nn.ModuleDict({f"l{number}": nn.Linear(8, 8) for number in own})

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values():
            given = layer(given)
        return given


def built(copies: int, seed: int) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (copies, 2), mesh_dim_names=("data", "stage"))
    stage = mesh.get_local_rank("stage")
    torch.manual_seed(10 * seed + stage)
    group = mesh.get_group("data")
    model = DistributedDataParallel(Stage(stage), process_group=group)
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=0.1),
        "seen": se.PerRank([0], lambda saved, rank, world: saved[rank]),
    }


def train(state: dict[str, Any]) -> None:
    rows = torch.randn(4, 8, generator=torch.Generator().manual_seed(dist.get_rank()))
    state["model"](rows).square().mean().backward()
    state["optimizer"].step()
    state["optimizer"].zero_grad()
    state["seen"].value[0] += 1 + dist.get_rank()


def content(state: dict[str, Any]) -> dict[str, Any]:
    model = state["model"].module
    found = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        for key, value in state["optimizer"].state[parameter].items():
            found[f"{name}.{key}"] = value.clone()
    return found


def live(rank: int, world: int, folder: Path, step: int) -> None:
    state = built(world // 2, step)
    with se.Checkpointer(state, storage=str(folder / "run"), checkpoint_every=1) as checkpoint:
        assert checkpoint.restore() == step
        if step:
            expected = torch.load(folder / f"{step}-{rank % 2}.pt")
            found = content(state)
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[name], value) for name, value in expected.items())
            assert state["seen"].value == [step * (1 + rank)]
        train(state)
        checkpoint.step(step + 1)
    if rank < 2:
        torch.save(content(state), folder / f"{step + 1}-{rank}.pt")


def main() -> None:
    for step, world in enumerate((4, 4, 2)):
        support.training.forked.run(world, live, Path(sys.argv[1]), step)


if __name__ == "__main__":
    main()
