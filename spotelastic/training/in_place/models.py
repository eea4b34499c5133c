"""Points models that are wrapped in DistributedDataParallel to the process group of a new round.

The wrapper, the parameters and the gradients stay the same objects, so that optimizers and compiled
code go on with them. Only what DDP makes for its group is made anew: the reducer with its buckets.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from spotelastic.training.in_place.watching import wrapped
from spotelastic.training.state.per_rank import PerRank
from spotelastic.training.state.state import State

_SHARDED = "FullyShardedDataParallel"
"""Name of the class, which need not be imported."""
_LOADERS = ("StatefulDataLoader", "BaseNode")
"""Loaders that save their own position, of torchdata."""


def problem(state: State) -> str:
    """Return why the state cannot be kept with other ranks; empty if it can."""
    for name, value in state.values.items():
        if isinstance(value, PerRank):
            return f"{name} is kept per rank"
        if any(base.__name__ in _LOADERS for base in type(value).__mro__):
            return (
                f"{name} reads this rank's share of the data: use a DataLoader with an "
                "se.ElasticSampler"
            )
        if isinstance(value, torch.optim.Optimizer) and _is_of_group(value):
            return f"{name} shares its work out among these ranks"
        if isinstance(value, torch.nn.Module) and (found := _module_problem(value)):
            return f"{name} {found}"
    return next((found for ddp in wrappers(state) if (found := _wrapper_problem(ddp))), "")


def wrappers(state: State) -> list[DistributedDataParallel]:
    """Return the wrappers of this process, each once."""
    modules = (value for value in state.values.values() if isinstance(value, torch.nn.Module))
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
    for module in _parts(state):
        for name, value in vars(module).items():
            if value is former and not isinstance(module, DistributedDataParallel):
                vars(module)[name] = group
    for ddp in wrappers(state):
        _point(ddp, former)


def _point(ddp: Any, former: object) -> None:
    """Do what torch does when a wrapper is unpickled, which keeps all that the script has set."""
    ddp.reducer._remove_autograd_hooks()
    hooks = [(hook, dist.group.WORLD if held is former else held) for hook, held in ddp._comm_hooks]
    ddp.process_group = dist.group.WORLD
    parameters, sparse = ddp._build_params_for_reducer()
    names = ddp._build_debug_param_to_name_mapping(parameters)
    ddp._ddp_init_helper(parameters, sparse, names, ddp.static_graph)
    ddp._has_rebuilt_buckets = False
    if ddp.static_graph:
        ddp._static_graph_delay_allreduce_enqueued = False
        ddp.reducer._set_static_graph()
        ddp.logger._set_static_graph()
    ddp._comm_hooks = []
    for hook, held in hooks:
        ddp.register_comm_hook(held, hook)
    ddp.require_forward_param_sync = True


def _wrapper_problem(ddp: Any) -> str:
    if ddp.process_group is not dist.group.WORLD or getattr(ddp, "device_mesh", None) is not None:
        return "a DistributedDataParallel has a group or a mesh of its own"
    if ddp.mixed_precision is not None:
        return "DistributedDataParallel(mixed_precision=...) cannot be given other ranks"
    if ddp._delay_all_reduce_params or getattr(ddp, "_use_python_reducer", False):
        return "a DistributedDataParallel without torch's reducer cannot be given other ranks"
    if any(hasattr(each, "_in_backward_optimizers") for each in ddp._module_parameters):
        return "an optimizer steps during backward"
    if any(held not in (None, dist.group.WORLD) for _, held in ddp._comm_hooks):
        return "a communication hook of DistributedDataParallel has state of its own"
    return ""


def _module_problem(module: torch.nn.Module) -> str:
    for part in module.modules():
        if any(base.__name__ == _SHARDED for base in type(part).__mro__):
            return "is sharded over these ranks"
        if any(isinstance(parameter, DTensor) for parameter in part._parameters.values()):
            return "is sharded over these ranks"
        if not isinstance(part, DistributedDataParallel) and _is_of_group(part):
            return f"has a {type(part).__name__} with a group or a mesh of its own"
    return ""


def _is_of_group(value: object) -> bool:
    """Return whether an object holds a process group other than the default one, or a mesh.

    An optimizer that holds any shares something out.
    """
    default = None if isinstance(value, torch.optim.Optimizer) else dist.group.WORLD
    return any(
        isinstance(held, DeviceMesh)
        or (isinstance(held, dist.ProcessGroup) and held is not default)
        for held in vars(value).values()
    )


def _parts(state: State) -> Iterator[torch.nn.Module]:
    modules: Iterable[Any] = (*state.values.values(), *wrapped)
    for module in modules:
        if isinstance(module, torch.nn.Module):
            yield from module.modules()
