"""A worker script whose ranks agree on a new layout, or on other random numbers.

Arguments: FOLDER, and which of the two. Every rank writes what it has seen to its own file in
FOLDER.
"""

import json
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import support.training.forked
import torch
import torch.distributed as dist
from support.training.open_checkpointer import wait_for_slots
from torch import nn

import spotelastic as se

WAKES, STEPS = 4, 7
"""From which step on the second layer is trained."""
COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather_object",
    "scatter_object_list",
)
SAVED_AT, SEED = 4, 10


@contextmanager
def counted() -> Iterator[list[str]]:
    """The collectives that are called meanwhile. One that is made of another counts twice."""
    called: list[str] = []

    def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **more: Any) -> Any:
            called.append(name)
            return call(*args, **more)

        return wrapper

    with ExitStack() as patched:
        for name in COLLECTIVES:
            patched.enter_context(patch.object(dist, name, noted(name, getattr(dist, name))))
        yield called


def wake_up(rank: int, world: int, folder: Path) -> None:
    """Trains a layer more from a step on; tells the collectives of each `checkpoint.step`."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), last := nn.Linear(8, 2))
    last.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    state = {"model": model, "optimizer": optimizer}
    collectives = []
    with se.Checkpointer(
        state, storage=str(folder / "store"), snapshot_every=1, checkpoint_every=1
    ) as checkpoint:
        assert checkpoint.restore() == 0
        for step in range(1, STEPS + 1):
            last.requires_grad_(step >= WAKES)
            model(torch.full((3, 4), float(rank + step))).square().mean().backward()
            for parameter in model.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()
            with counted() as called:
                checkpoint.step(step)
            collectives.append(called)
            assert checkpoint.wait()
            if rank == 0:
                torch.save(optimizer.state.get(last.weight), folder / f"moments-{step}.pt")
    (folder / f"collectives-{rank}.json").write_text(json.dumps(collectives))


def save_randomness(rank: int, world: int, folder: Path) -> None:
    """The same seed on all ranks, and then another place in its numbers."""
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    with se.Checkpointer({"epoch": 1}, storage=str(folder / "store")) as checkpoint:
        checkpoint.restore()
        draw(rank)
        checkpoint.step(SAVED_AT)
    tell(folder / f"saved-{rank}.json")


def restore_randomness(rank: int, world: int, folder: Path, turn: str) -> None:
    torch.manual_seed(99 + rank)
    with se.Checkpointer({"epoch": 0}, storage=str(folder / "store")) as checkpoint:
        assert checkpoint.restore() == SAVED_AT
        tell(folder / f"{turn}-{rank}.json")


def draw(count: int) -> list[list[float]]:
    return [[random.random(), np.random.rand(), torch.rand(()).item()] for _ in range(count)]


def tell(file: Path) -> None:
    file.write_text(json.dumps([torch.initial_seed(), *draw(3)]))


def main() -> None:
    wait_for_slots()
    folder = Path(sys.argv[1])
    if sys.argv[2] == "layout":
        support.training.forked.run(2, wake_up, folder)
        return
    support.training.forked.run(2, save_randomness, folder)
    for turn, world in (("more", 3), ("again", 3), ("same", 2)):
        support.training.forked.run(world, restore_randomness, folder, turn)


if __name__ == "__main__":
    main()
