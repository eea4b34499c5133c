"""Points models that are wrapped in DistributedDataParallel to the process group of a new round.

The wrapper, the parameters and the gradients stay the same objects, so that optimizers and compiled
code go on with them. Only what DDP makes for its group is made anew: the reducer with its buckets.
"""

import contextlib
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from spotelastic import torch_names
from spotelastic.training.data.sampler import ElasticSampler, names_ranks
from spotelastic.training.in_place.held import Kept, held, keeper
from spotelastic.training.in_place.watching import trained, wrapped
from spotelastic.training.state.per_rank import PerRank
from spotelastic.training.state.state import State

_SHARDED = "FullyShardedDataParallel"
"""Name of the class, which need not be imported."""
_LEAVE_OUT = "leave it out, so that the default group is used"
_BUILD = "make it in a function that you give to the Checkpointer as build="
_LOADERS = ("StatefulDataLoader", "BaseNode")
"""Loaders that save their own position, of torchdata."""


def problem(state: State, built: Collection[str] = ()) -> str:
    """Return why the state cannot be kept with other ranks; empty if it can.

    What is `built` is not kept.
    """
    for name, value in state.values.items():
        if name in built:
            continue
        if isinstance(value, PerRank):
            return f"{name} is kept per rank: keep what is the same on all ranks"
        if any(base.__name__ in _LOADERS for base in type(value).__mro__):
            return (
                f"{name} reads this rank's share of the data: use a DataLoader with an "
                "se.ElasticSampler"
            )
        if isinstance(value, torch.optim.Optimizer) and any(held(value)):
            return (
                f"{name} shares its work out among these ranks: give DistributedDataParallel an "
                "optimizer that holds everything"
            )
        if isinstance(value, ElasticSampler) and names_ranks(value):
            return (
                f"{name} was given a rank or a number of ranks: leave both out, or give functions"
            )
        if isinstance(value, torch.nn.Module):
            if found := _module_problem(value):
                return f"{name} {found}"
        elif found := _is_of_another(value):
            return f"{name} has a {found} with a group or a mesh of its own: {_LEAVE_OUT}"
    problems = (_wrapper_problem(ddp) for ddp in wrappers(state, built))
    return next(filter(None, problems), "")


def keeper_problem(state: State) -> str:
    """Return who keeps the group of this round where no other can be put in its place.

    Empty if nobody does.
    """
    found = keeper(dist.group.WORLD, [place.holder for place in _places(state)])
    return found and (
        f"{found} keeps the process group: ask for torch.distributed.group.WORLD where it is used"
    )


def wrappers(state: State, built: Collection[str] = ()) -> list[DistributedDataParallel]:
    """Return the wrappers of this process that are not `built`, each once."""
    modules = (
        value
        for name, value in state.values.items()
        if isinstance(value, torch.nn.Module) and name not in built
    )
    found = [
        part
        for module in modules
        for part in module.modules()
        if isinstance(part, DistributedDataParallel)
    ]
    return [*{id(ddp): ddp for ddp in (*found, *wrapped)}.values()]


def point_to_group(state: State, former: object) -> None:
    """Have all models use the default group there is now, in place of the `former` one."""
    group = dist.group.WORLD
    for holder, name, what in [*_places(state)]:
        if what is former:
            vars(holder)[name] = group
    for ddp in wrappers(state):
        _point(ddp, former)


def _point(ddp: Any, former: object) -> None:
    """Do what torch does when a wrapper is unpickled, which keeps all that the script has set."""
    hooks = torch_names.hooks_of(ddp)
    with _trained_as_made(ddp):
        torch_names.remake_reducer(ddp)
    for hook, kept in hooks:
        ddp.register_comm_hook(dist.group.WORLD if kept is former else kept, hook)
    ddp.require_forward_param_sync = True


@contextlib.contextmanager
def _trained_as_made(ddp: DistributedDataParallel) -> Iterator[None]:
    """Have those parameters trained in the block that were when the wrapper was made.

    They decide what its reducer reduces. A part of the model may be frozen at this moment, and the
    wrapper of a rank that arrives was made before that.
    """
    made = trained.get(ddp)
    now = [(each, each.requires_grad) for each in ddp.module.parameters()]
    try:
        if made is not None:
            for parameter, _ in now:
                parameter.requires_grad_(id(parameter) in made)
        yield
    finally:
        for parameter, was in now:
            parameter.requires_grad_(was)


def _wrapper_problem(ddp: Any) -> str:
    if ddp.process_group is not dist.group.WORLD or getattr(ddp, "device_mesh", None) is not None:
        return f"a DistributedDataParallel has a group or a mesh of its own: {_LEAVE_OUT}"
    if ddp.mixed_precision is not None:
        return (
            "DistributedDataParallel(mixed_precision=...) cannot be given other ranks: use "
            "torch.autocast"
        )
    if found := torch_names.wrapper_problem(ddp):
        return found
    if any(kept not in (None, dist.group.WORLD) for _, kept in torch_names.hooks_of(ddp)):
        return (
            "a communication hook of DistributedDataParallel has state of its own: use one whose "
            "state is None, as those of torch's default_hooks"
        )
    return ""


def _module_problem(module: torch.nn.Module) -> str:
    for part in module.modules():
        if any(base.__name__ == _SHARDED for base in type(part).__mro__):
            return f"is sharded over these ranks: {_BUILD}"
        if any(isinstance(parameter, DTensor) for parameter in part._parameters.values()):
            return f"is sharded over these ranks: {_BUILD}"
        if not isinstance(part, DistributedDataParallel) and (found := _is_of_another(part)):
            return f"has a {found} with a group or a mesh of its own: {_LEAVE_OUT}"
    return ""


def _is_of_another(value: object) -> str:
    """Return the name of the class that holds a mesh, or a group besides the default.

    The groups are process groups. Empty if no class holds one.
    """
    found = (holder for holder, _, what in held(value) if what is not dist.group.WORLD)
    return next((type(holder).__name__ for holder in found), "")


def _places(state: State) -> Iterator[Kept]:
    """Yield where groups and meshes are kept, but for the wrappers' own."""
    others = (value for value in state.values.values() if not isinstance(value, torch.nn.Module))
    for part in (*_parts(state), *others):
        if not isinstance(part, DistributedDataParallel):
            yield from held(part)


def _parts(state: State) -> Iterator[torch.nn.Module]:
    modules: Iterable[Any] = (*state.values.values(), *wrapped)
    for module in modules:
        if isinstance(module, torch.nn.Module):
            yield from module.modules()
