"""What a job of a package's objects is: their state, one step, and what is compared."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

import spotelastic as se


class Running(NamedTuple):
    state: dict[str, Any]
    train: Callable[[int], None]
    """One step, of this number."""
    content: Callable[[], Any] | None = None
    """In place of what the entries of the state say of themselves."""
    elsewhere: Callable[[list[Any], int, int], Any] | None = None
    """What a rank has on another number of ranks, of what all ranks had."""


def plain(value: Any) -> Any:
    """A copy in plain containers, whatever the order of keys; of what is sharded all of it."""
    if isinstance(value, DistributedDataParallel):
        return plain(value.module)
    if isinstance(value, se.PerRank):
        return plain(value.value)
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, DTensor):
        return plain(value.full_tensor())
    if isinstance(value, Tensor):
        if not is_traceable_wrapper_subclass(value):
            return value.detach().clone()
        names, context = value.__tensor_flatten__()
        inner = {name: plain(getattr(value, name)) for name in names}
        return {"class": type(value).__name__, "context": repr(context), **inner}
    if hasattr(value, "state_dict"):
        return plain(value.state_dict())
    if isinstance(value, Mapping):
        found = {str(k): plain(value[k]) for k in sorted(value, key=str)}
        return {k: kept for k, kept in found.items() if not isinstance(kept, dict) or kept}
    if isinstance(value, list | tuple | deque):
        return [*map(plain, value)]
    return value


def rows(step: int, *shape: int) -> Tensor:
    """This rank's, of a step."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    made = torch.Generator().manual_seed(1000 * step + rank)
    return torch.rand(*shape, generator=made)


def averaged(model: nn.Module) -> None:
    """The gradients, over all ranks, without a wrapper, and the first rank's buffers."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    for buffer in model.buffers():
        dist.broadcast(buffer, 0)


def perceptron() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 64)
    )


def fitted(
    model: nn.Module, *optimizers: torch.optim.Optimizer, then: Callable[[int], None] | None = None
) -> Callable[[int], None]:
    def train(step: int) -> None:
        given = rows(step, 4, 64)
        (model(given) - given).square().mean().backward()
        if not isinstance(model, DistributedDataParallel) and not is_sharded(model):
            averaged(model)
        for optimizer in optimizers:
            optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad()
        if then is not None:
            then(step)

    return train


def is_sharded(model: nn.Module) -> bool:
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())
