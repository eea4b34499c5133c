"""What a run changes of its state besides values comes back, or is refused where it is saved."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from spotelastic_checkpoints.restore.contents import Contents
from spotelastic_checkpoints.types import RestoreSet, Resume
from support.saving.one_slot import OneSlot, load, stream
from torch import nn
from torch.nn.utils import prune
from torch.testing._internal.distributed.fake_pg import FakeStore

from spotelastic.errors import UsageError
from spotelastic.training.restore.restored import RestoreSource
from spotelastic.training.save.saver import LayoutChanged
from spotelastic.training.state.state import State


@pytest.fixture(autouse=True, scope="module")
def only_rank() -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    yield
    dist.destroy_process_group()


def begun() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[1].weight.requires_grad_(False)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)}


def resaved(slot: OneSlot, step: int) -> None:
    try:
        slot.save(step)
    except LayoutChanged:
        slot.plan()
        slot.save(step)


def trained(state: dict[str, Any]) -> list[bool]:
    return [each.requires_grad for each in state["model"].parameters()]


@pytest.mark.parametrize("how", [load, stream])
def test_layers_that_a_run_has_frozen_stay_frozen(
    how: Callable[[Path, int, dict[str, Any]], None], tmp_path: Path
) -> None:
    """So do those trained that it trains since then."""
    state = begun()
    slot = OneSlot(tmp_path / "slot", state)
    slot.save(1)
    state["model"][0].requires_grad_(False)
    state["model"][1].weight.requires_grad_(True)
    resaved(slot, 2)
    again = begun()
    how(tmp_path / "slot", 2, again)
    assert trained(again) == trained(state) == [False, False, True, True]


def test_layers_that_are_frozen_for_a_while_in_each_step_are_planned_for_once(
    tmp_path: Path,
) -> None:
    """As a discriminator is while its generator is trained."""
    state = begun()
    slot = OneSlot(tmp_path / "slot", state)
    slot.save(1)
    for step in range(2, 7):
        state["model"].requires_grad_(step % 2 == 0)
        if step == 2:
            resaved(slot, step)
        else:
            slot.save(step)
        again = begun()
        load(tmp_path / "slot", step, again)
        assert trained(again) == trained(state) == [step % 2 == 0] * 4


def test_a_step_from_before_layers_were_frozen_has_them_trained(tmp_path: Path) -> None:
    """In the process that has frozen them, as after a loss."""
    state = begun()
    OneSlot(tmp_path / "slot", state).save(1)
    source = RestoreSet(1, 1, 1, (str(tmp_path / "slot"),), "", ())
    restored, kept = RestoreSource(Contents(source), Resume("memory", 1)), State(state)
    restored.needs(kept, 0)
    state["model"][0].requires_grad_(False)
    restored = RestoreSource(Contents(source), Resume("memory", 1))
    restored.needs(kept, 0)
    restored.match_groups(kept)
    restored.load(kept)
    assert trained(state) == [True, True, False, True]


def test_a_parameter_that_nothing_saves_is_refused_before_it_trains(tmp_path: Path) -> None:
    state = begun()
    lone = nn.Parameter(torch.zeros(3))
    known = [nn.Parameter(torch.zeros(2)) for _ in range(2)]
    state["known"] = known  # several, in the state: each is looked for
    state["optimizer"].add_param_group({"params": [*known, lone]})
    with pytest.raises(UsageError, match=r"^optimizer trains a parameter of shape \[3\] that no"):
        OneSlot(tmp_path / "slot", state)
    OneSlot(tmp_path / "with", {**state, "lone": lone}).save(1)
    OneSlot(tmp_path / "within", {**state, "lone": {"of": [lone]}}).save(1)
    lone.requires_grad_(False)
    OneSlot(tmp_path / "frozen", state).save(1)


def test_an_object_of_the_scripts_own_may_save_a_parameter_in_its_own_way(tmp_path: Path) -> None:
    class Kept:
        def __init__(self) -> None:
            self.lone = nn.Parameter(torch.zeros(3))

        def state_dict(self) -> dict[str, Any]:
            return {"halved": self.lone.detach() / 2}

        def load_state_dict(self, saved: dict[str, Any]) -> None:
            self.lone.data.copy_(saved["halved"] * 2)

    kept = Kept()
    state = {"kept": kept, "optimizer": torch.optim.SGD([kept.lone], 0.1)}
    OneSlot(tmp_path / "slot", state).save(1)


def test_a_weight_that_is_pruned_while_it_trains_is_refused_by_its_name(tmp_path: Path) -> None:
    state = begun()
    slot = OneSlot(tmp_path / "slot", state)
    slot.save(1)
    prune.l1_unstructured(state["model"][0], "weight", 0.5)
    with pytest.raises(UsageError, match=r"^model.0.weight is made of other tensors since"):
        resaved(slot, 2)
    state = begun()
    prune.l1_unstructured(state["model"][0], "weight", 0.5)
    OneSlot(tmp_path / "before", state).save(1)


def test_what_an_optimizer_begins_to_keep_for_all_parameters_is_saved(tmp_path: Path) -> None:
    state = begun()
    slot = OneSlot(tmp_path / "slot", state)
    slot.save(1)
    state["optimizer"].state["steps"] = 5
    resaved(slot, 2)
    again = begun()
    load(tmp_path / "slot", 2, again)
    assert again["optimizer"].state["steps"] == 5
