"""A model whose saves overlap training, with the same steps wherever it is made."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, current_thread
from typing import Any

import pytest
import torch
from torch import nn

from spotelastic.training.save import overlap

WIDTH = 512
"""A weight is 1 MiB."""
MakeOptimizer = Callable[..., torch.optim.Optimizer]


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def make(optimizer: MakeOptimizer = momentum, device: str = "cpu") -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH))
    model.to(device)
    return {"model": model, "optimizer": optimizer(model.parameters())}


def one_step(state: dict[str, Any], step: int) -> torch.Tensor:
    rows = torch.rand(4, WIDTH, generator=torch.Generator().manual_seed(step))
    rows = rows.to(state["model"][0].weight.device)
    loss: torch.Tensor = (state["model"](rows) - rows).square().mean()
    loss.backward()
    state["optimizer"].step()
    state["optimizer"].zero_grad()
    return loss.detach()


def tensors(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """All of the state, by name, as it is now."""
    found = {name: value.clone() for name, value in state["model"].state_dict().items()}
    for number, kept in enumerate(state["optimizer"].state.values()):
        found |= {f"{number}.{name}": value.clone() for name, value in kept.items()}
    return found


def are_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def trained(steps: int) -> dict[str, torch.Tensor]:
    """What a run without interruption holds after so many."""
    state = make()
    for step in range(1, steps + 1):
        one_step(state, step)
    return tensors(state)


@dataclass(frozen=True)
class Held:
    """A copy beside training that waits at its first piece."""

    begun: Event = field(default_factory=Event)
    """Set once the copy's thread has a piece, which no other thread can take then."""
    go_on: Event = field(default_factory=Event)


@contextmanager
def held(patch: pytest.MonkeyPatch) -> Iterator[Held]:
    """Holds every copy beside training until `go_on` is set, or until the end."""
    copy = Held()
    move = overlap.move_bytes

    def hold(*arguments: int) -> None:
        if current_thread().name == "snapshot":
            copy.begun.set()
            assert copy.go_on.wait(60)
        move(*arguments)

    patch.setattr(overlap, "move_bytes", hold)
    try:
        yield copy
    finally:
        copy.go_on.set()
        patch.setattr(overlap, "move_bytes", move)
