"""Parameters and gradients of a model as one vector on the CPU, as they are sent.

A vector has the numbers of all parameters that are trained, in the model's order, and one more: the
loss. It has a type that holds all of them exactly, so that what is sent is what there was.
"""

import functools
from collections.abc import Iterable

import torch


def trained(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the parameters that have gradients."""
    return [each for each in model.parameters() if each.requires_grad]


def empty(model: torch.nn.Module) -> torch.Tensor:
    """Return memory for a vector of this model."""
    size = sum(each.numel() for each in trained(model)) + 1
    dtypes = (each.dtype for each in trained(model))
    return torch.empty(size, dtype=functools.reduce(torch.promote_types, dtypes, torch.float32))


def of_parameters(model: torch.nn.Module) -> torch.Tensor:
    """Return a copy of the parameters. The last number is 0."""
    return _vector(model, [*(each.detach() for each in trained(model)), torch.zeros(1)])


def of_gradients(model: torch.nn.Module, loss: torch.Tensor) -> torch.Tensor:
    """Return the gradients, with zeros for parameters that have none."""
    parts = [torch.zeros_like(each) if each.grad is None else each.grad for each in trained(model)]
    return _vector(model, [*parts, loss.detach()])


@torch.no_grad()
def put(vector: torch.Tensor, model: torch.nn.Module) -> None:
    """Have the model's parameters be those of a vector."""
    for parameter, part in zip(trained(model), _parts(vector, model), strict=True):
        parameter.copy_(part)


def put_gradients(vector: torch.Tensor, model: torch.nn.Module) -> None:
    """Have the model's gradients be those of a vector."""
    for parameter, part in zip(trained(model), _parts(vector, model), strict=True):
        # An optimizer may write to it, and the vector is still being sent.
        parameter.grad = part.to(parameter.device, parameter.dtype, copy=True)


def _vector(model: torch.nn.Module, parts: Iterable[torch.Tensor]) -> torch.Tensor:
    found = empty(model)
    return torch.cat([part.reshape(-1).to(found) for part in parts], out=found)


def _parts(vector: torch.Tensor, model: torch.nn.Module) -> Iterable[torch.Tensor]:
    place = 0
    for parameter in trained(model):
        yield vector[place : place + parameter.numel()].view(parameter.shape)
        place += parameter.numel()
