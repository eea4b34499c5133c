"""What a run makes of its state comes back on other ranks, sharded in another way, as it was.

Or it is refused by name when it is saved. The oracle is a state that lives the same life whole.
More of them: `DRAWN_LIVES=5000 .venv/bin/python -m pytest -n 0` and this file.
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import event, given
from hypothesis import strategies as st
from spotelastic_checkpoints.restore.contents import Contents
from spotelastic_checkpoints.types import RestoreSet, Resume
from support.draws import drawn
from support.saving.one_slot import OneSlot
from support.training.drawn_lives import (
    OPTIMIZERS,
    Life,
    Model,
    add_own,
    essence,
    lives,
    on_any_rank,
    step,
)
from support.training.drawn_states import difference
from support.training.ranks_by_pipes import together
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from unit.training.state.test_any_life import many_draws, one_thread

from spotelastic.errors import UsageError
from spotelastic.training.restore.restored import RestoreSource
from spotelastic.training.runtime.session import Ranks
from spotelastic.training.save.saver import LayoutChanged
from spotelastic.training.state.compatibility import misfit_of_all
from spotelastic.training.state.state import State

__all__ = ["one_thread"]

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(3600)]
DRAWN = int(os.environ.get("DRAWN_LIVES", drawn(12)))
KINDS = ("replicated", "fsdp", "hybrid", "tensor", "grid")
LIVES = lives(
    averaged=False,
    # A rate that is a tensor does not multiply sharded ones.
    optimizers={**OPTIMIZERS, "adamw": lambda groups: torch.optim.AdamW(groups, amsgrad=True)},
)
WORLDS = st.tuples(st.integers(1, 4), st.sampled_from(KINDS))


def distributed(kind: str, world: int, model: Model) -> nn.Module:
    """The model as a world of this size has it, with this rank's part of the same values."""
    whole = {name: each.detach().clone() for name, each in model.named_parameters()}
    across = 2 if world % 2 == 0 else 1
    plan = {"one": ColwiseParallel(), "two": RowwiseParallel()}
    if kind == "fsdp":
        _shard(model, init_device_mesh("cpu", (world,)))
    elif kind == "hybrid":
        names = "replica", "shard"
        _shard(model, init_device_mesh("cpu", (across, world // across), mesh_dim_names=names))
    elif kind == "tensor":
        parallelize_module(model, init_device_mesh("cpu", (world,)), plan)
    elif kind == "grid":
        names = "data", "tensor"
        mesh = init_device_mesh("cpu", (world // across, across), mesh_dim_names=names)
        parallelize_module(model, mesh["tensor"], plan)
        _shard(model, mesh["data"])
    for name, each in model.named_parameters():
        if isinstance(each, DTensor):
            each.to_local().detach().copy_(part_of(whole[name], each))
    return model


def _shard(model: Model, mesh: Any) -> None:
    for each in (model.one, model.two):
        fully_shard(each, mesh=mesh)


def part_of(whole: torch.Tensor, sharded: DTensor) -> torch.Tensor:
    """What this rank has of a tensor that is sharded as the other one is."""
    mesh, placements = sharded.device_mesh, sharded.placements
    return distribute_tensor(whole, mesh, placements, src_data_rank=None).to_local()


def run(life: Life, state: dict[str, Any], saved: OneSlot | None = None) -> None:
    for number, changes in enumerate(life.changes, 1):
        torch.manual_seed(number)
        for change in changes:
            on_any_rank(change)(state)
        if saved is not None:
            try:
                saved.save(number)
                fits = True
            except LayoutChanged:
                fits = False  # one rank may have less room than another
            if not all(saved.ranks.gather(fits)):
                saved.plan()
                saved.save(number)


def save(folder: Path, life: Life, kind: str, ranks: Ranks) -> str:
    """Live as one rank, and return why that was refused."""
    state = life.begin(partial(distributed, kind, ranks.world_size))
    try:
        run(life, state, OneSlot(folder / f"{ranks.rank}", state, ranks=ranks))
    except UsageError as refused:
        assert any(name in str(refused) for name in state), refused
        return str(refused)
    return ""


def restore(
    slots: Sequence[str], life: Life, kind: str, whole: Sequence[Any], ranks: Ranks
) -> None:
    """Restore as one rank, and compare with the whole, now and in the steps after it."""
    again, world = life.again(partial(distributed, kind, ranks.world_size)), len(slots)
    source = RestoreSet(1, len(life.changes), world, tuple(slots), "", ())
    restored = RestoreSource(Contents(source), Resume("memory", len(life.changes)))
    state = State(again)
    restored.needs(state, ranks.rank, lambda own: misfit_of_all(ranks.gather(own)))
    restored.match_groups(state)
    restored.load(state)
    for expected in whole:
        differs = difference(*parts(expected, named(again)))
        assert not differs, f"rank {ranks.rank}: {differs}"
        step(again)


def named(state: dict[str, Any]) -> dict[str, Any]:
    """The state's essence, with the model's tensors by their names."""
    model = state["model"]
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return {**essence(state), "model": tensors}


def parts(whole: Any, found: Any) -> tuple[Any, Any]:
    """Both, with this rank's part of what is sharded."""
    if isinstance(found, DTensor):
        return part_of(whole.detach(), found), found.to_local().detach()
    if isinstance(found, dict) and isinstance(whole, dict) and found.keys() == whole.keys():
        pairs = {key: parts(whole[key], found[key]) for key in found}
        return {k: a for k, (a, _) in pairs.items()}, {k: b for k, (_, b) in pairs.items()}
    if isinstance(found, torch.Tensor) and isinstance(whole, torch.Tensor):
        return whole.detach(), found.detach()
    return whole, found


def check(life: Life, before: tuple[int, str], after: tuple[int, str]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        refused = together(before[0], partial(save, Path(folder), life, before[1]))
        if any(refused):
            event("refused")
            assert all(refused), "what one rank refuses, all refuse"
            return
        event("saved")
        state, later = life.begin(), []
        run(life, state)
        for _ in range(3):
            later.append(_still(named(state)))
            step(state)
        slots = [f"{folder}/{rank}" for rank in range(before[0])]
        together(after[0], partial(restore, slots, life, after[1], later))


def _still(found: Any) -> Any:
    """A copy that further steps do not change."""
    if isinstance(found, dict):
        return {key: _still(value) for key, value in found.items()}
    return found.detach().clone() if isinstance(found, torch.Tensor) else found


@many_draws(DRAWN)
@given(life=LIVES, before=WORLDS, after=WORLDS)
def test_what_a_run_makes_of_a_state_comes_back_on_other_ranks(
    life: Life, before: tuple[int, str], after: tuple[int, str]
) -> None:
    check(life, before, after)


def _simple(on_ranks: Callable[[Model], nn.Module] = lambda model: model) -> dict[str, Any]:
    torch.manual_seed(0)
    model = on_ranks(Model())
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cpu")
    return {"model": model, "optimizer": optimizer, "held": {}, "scaler": scaler}


@many_draws(2)
@given(after=st.sampled_from(["fsdp", "tensor"]))
def test_what_a_script_adds_to_an_optimizers_state_comes_back(after: str) -> None:
    check(Life(_simple, [[step, add_own]], _simple), (1, "replicated"), (2, after))


@pytest.mark.soak
@many_draws(3000)
@given(life=LIVES, before=WORLDS, after=WORLDS)
def test_what_any_run_makes_of_a_state_comes_back_on_other_ranks(
    life: Life, before: tuple[int, str], after: tuple[int, str]
) -> None:
    check(life, before, after)
