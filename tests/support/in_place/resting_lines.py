"""Collects what stands in the way of in-place recovery: real objects, and the line that is told."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from support.in_place.resting_agent import Agent, Case, Plan, run
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import PostLocalSGDOptimizer, _apply_optimizer_in_backward
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed import fake_pg
from torch.utils.data import DataLoader, DistributedSampler

import spotelastic as se
from spotelastic.training.in_place import watching
from spotelastic.training.in_place.building import Builder
from spotelastic.training.in_place.groups import Groups, groups
from spotelastic.training.in_place.loaders import loaders
from spotelastic.training.in_place.meeting import LoopParts, Meeting
from spotelastic.training.in_place.watching import wrapped
from spotelastic.training.restore.loops import Loops
from spotelastic.training.restore.own_values import OwnValues
from spotelastic.training.runtime.session import Ranks
from spotelastic.training.state.state import State

NOBODY = {"SPOTELASTIC_CONTROL": "/nobody", "SPOTELASTIC_ROUND": "r1"}
"""Variables of a worker whose agent is gone: it cannot rest, and nothing else is in the way."""
SAMPLES: Any = list(range(8))


def told(state: Mapping[str, Any], own: Groups = groups) -> str:
    """Return what a worker with this state tells; empty if nothing is in the way."""
    lines: list[str] = []
    ranks = Ranks(0, 1, 0, "n0", dist.group.WORLD)
    unused: Any = None
    entries = State(dict(state))
    loop = LoopParts(
        state=entries,
        groups=own,
        builder=Builder(None, entries, own),
        last_step=lambda: 0,
        saved_step=lambda: 0,
        ranks=lambda: ranks,
        count=unused,
        waits_after=unused,
        count_quietly=unused,
        save_alone=unused,
        leave=unused,
        enter=unused,
        restore=unused,
        resumed=unused,
        complain=lines.append,
        own=OwnValues(),
        keep=unused,
        go_back=unused,
        tell=unused,
        start_anew=unused,
        loops=Loops(OwnValues(), lambda: 0, unused, unused),
        save_held=unused,
    )
    Meeting.of(loop, NOBODY)
    return "".join(lines)


class Helper:
    """Keeps something."""

    def __init__(self, kept: Any) -> None:
        self.kept = kept


class Layer(nn.Linear):
    """Keeps something."""

    def __init__(self, kept: Any) -> None:
        super().__init__(2, 2)
        self.kept = kept


def ddp(**options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(nn.Linear(2, 2), **options)


def hooked(state: Any, hook: Any) -> dict[str, Any]:
    model = ddp()
    model.register_comm_hook(state, hook)
    return {"model": model}


def with_loader(loader: Any) -> str:
    line = told({"model": ddp()})
    del loader
    return line


def within_join() -> str:
    model = ddp()
    with Join([model]):
        return told({"model": model})


def in_backward() -> str:
    model = nn.Linear(2, 2)
    _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.1})
    return told({"model": DistributedDataParallel(model)})


def local_steps() -> str:
    model = ddp()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    averager = PeriodicModelAverager(period=2)
    return told({"model": model, "optimizer": PostLocalSGDOptimizer(inner, averager)})


def sharded() -> str:
    model = nn.Linear(2, 2)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    return told({"model": model})


class Shared(torch.optim.SGD):
    """Has each rank compute the steps of some parameters, as distributed Muon does."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.process_group = dist.group.WORLD


def shared_out() -> str:
    model = ddp()
    return told({"model": model, "optimizer": Shared(model.parameters())})


def kept_elsewhere() -> str:
    keeper = Helper(dist.group.WORLD)
    line = told({"model": ddp()})
    del keeper
    return line


def delayed() -> str:
    model = nn.Linear(2, 2)
    wrapper = DistributedDataParallel(
        model,
        delay_all_reduce_named_params=[("weight", model.weight)],
        param_to_hook_all_reduce=model.bias,
    )
    return told({"model": wrapper})


def mixed() -> str:
    precision: Any = type("Precision", (), {"param_dtype": torch.float16, "reduce_dtype": None})()
    model = ddp()
    model.mixed_precision = precision  # torch makes none of it without a GPU
    return told({"model": model})


class Split(torch.utils.data.IterableDataset[int]):
    """As datasets.distributed.split_dataset_by_node() makes it."""

    _distributed = (0, 1)

    def __iter__(self) -> Iterator[int]:
        return iter(SAMPLES)


@contextmanager
def own_group() -> Iterator[Any]:
    group = dist.new_group([0])
    try:
        yield group
    finally:
        dist.destroy_process_group(group)


def without_others(state: Callable[[Any], Mapping[str, Any]]) -> str:
    """What is told of a state that holds a group, if the group itself has not been told of."""
    with own_group() as group:

        class Blind(Groups):
            def others(self, own: object) -> int:
                return 0

        return told(state(group), Blind({"backend": "gloo"}))


def late_gloo() -> str:
    os.environ["TORCH_GLOO_LAZY_INIT"] = "1"
    try:
        return told({})
    finally:
        del os.environ["TORCH_GLOO_LAZY_INIT"]


def one_more_group() -> str:
    with own_group():
        return told({"model": ddp()})


def sampled() -> Any:
    return DistributedSampler(SAMPLES, num_replicas=1, rank=0)


LINES: dict[str, Callable[[], str]] = {
    # What works.
    "ddp": lambda: told({"model": ddp()}),
    "options": lambda: told(
        {
            "view": ddp(gradient_as_bucket_view=True),
            "static": ddp(static_graph=True),
            "unused": ddp(find_unused_parameters=True),
        }
    ),
    "hook of the group": lambda: told(hooked(dist.group.WORLD, default_hooks.allreduce_hook)),
    "hook without state": lambda: told(hooked(None, default_hooks.fp16_compress_hook)),
    "batch norm": lambda: told({"model": nn.SyncBatchNorm(2, process_group=dist.group.WORLD)}),
    "layer of the group": lambda: told({"model": Layer(dist.group.WORLD)}),
    "layer with a helper": lambda: told({"model": Layer(Helper(dist.group.WORLD))}),
    "elastic sampler": lambda: with_loader(
        DataLoader(SAMPLES, batch_sampler=se.ElasticSampler(8, 4))
    ),
    # What is in the way.
    "per rank": lambda: told({"seen": se.PerRank([1])}),
    "named ranks": lambda: told({"data": se.ElasticSampler(8, 4, rank=0, world_size=1)}),
    "shared out": shared_out,
    "local steps": local_steps,
    "sharded": sharded,
    "layer's group": lambda: without_others(lambda group: {"model": Layer(group)}),
    "helper's group": lambda: without_others(lambda group: {"model": Layer(Helper(group))}),
    "batch norm's group": lambda: without_others(
        lambda group: {"model": nn.SyncBatchNorm(2, process_group=group)}
    ),
    "wrapper's group": lambda: without_others(lambda group: {"model": ddp(process_group=group)}),
    "wrapper's mesh": lambda: told({"model": ddp(device_mesh=init_device_mesh("cpu", (1,)))}),
    "mixed precision": mixed,
    "delayed": delayed,
    "power": lambda: told(
        hooked(powerSGD_hook.PowerSGDState(None, 1), powerSGD_hook.powerSGD_hook)
    ),
    "in backward": in_backward,
    "join": within_join,
    "distributed sampler": lambda: with_loader(DataLoader(SAMPLES, sampler=sampled())),
    "split data": lambda: with_loader(DataLoader(Split())),
    "kept elsewhere": kept_elsewhere,
    "another group": one_more_group,
    "late gloo": late_gloo,
    "unknown group": lambda: told({}, Groups()),
    "address": lambda: told({}, Groups({"init_method": "tcp://h:1"})),
}


def script(number: int, tell: Callable[[Any], None]) -> None:
    watching.watch()
    found = {"no group": told({})}
    dist.init_process_group("fake", store=fake_pg.FakeStore(), rank=0, world_size=1)
    groups.options = {"backend": "fake"}
    found["fake"] = told({})
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    for name, line in LINES.items():
        found[name] = line()
        wrapped.clear()
        loaders.clear()
    tell(found)
    os._exit(0)


def lines(folder: Path) -> Agent:
    return run(1, script, folder / "lines", Plan())


CASES: dict[str, Case] = {"lines": lines}
