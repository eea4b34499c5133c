"""The function that makes what is bound to the ranks: what it may return, and what is let go."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from spotelastic.errors import UsageError
from spotelastic.training.in_place import models, watching
from spotelastic.training.in_place.building import Build, Builder, compiles
from spotelastic.training.in_place.groups import Groups
from spotelastic.training.state.state import State

Parts = dict[str, Any]


def plain() -> Parts:
    model = nn.Linear(4, 2)
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}


def builder(build: Build, **state: Any) -> tuple[Builder, Parts]:
    values: Parts = {**state}
    return Builder(build, State(values), Groups()), values


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one rank."""
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_what_is_made_is_in_the_script_s_own_mapping() -> None:
    made, state = builder(plain, epoch=3)
    assert made.is_due
    made.build()
    assert not made.is_due
    assert list(state) == ["epoch", "model", "optimizer"]
    first = state["model"]
    made.let_go()
    assert list(state) == ["epoch"]
    made.build()
    assert state["model"] is not first
    assert made.names == {"model", "optimizer"}


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (lambda: None, "has returned None"),
        (lambda: (nn.Linear(1, 1),), "a mapping of names"),
        (dict, "a mapping of names"),
        (lambda: {"epoch": 1}, "leave it out of the state"),
        (lambda: {3: nn.Linear(1, 1)}, "have to be strings"),
    ],
)
def test_what_cannot_be_put_into_the_state_is_refused(returned: Any, told: str) -> None:
    made, _ = builder(returned, epoch=3)
    with pytest.raises(UsageError, match=told):
        made.build()


def test_other_names_for_other_ranks_are_refused() -> None:
    names = iter(["optimizer", "optim"])
    made, _ = builder(lambda: {"model": nn.Linear(1, 1), next(names): 1})
    made.build()
    made.let_go()
    with pytest.raises(UsageError, match="model, optim, and before that model, optimizer"):
        made.build()


def test_the_same_object_for_other_ranks_is_refused() -> None:
    model = nn.Linear(1, 1)
    made, _ = builder(lambda: {"model": model})
    made.build()
    made.let_go()
    with pytest.raises(UsageError, match='the "model" of the earlier ranks'):
        made.build()


def test_an_exception_of_the_function_says_where_it_comes_from_and_may_be_tried_again() -> None:
    failures = [KeyError("hidden_size")]

    def build() -> Parts:
        if failures:
            raise failures.pop()
        return plain()

    made, state = builder(build)
    with pytest.raises(KeyError) as raised:
        made.build()
    assert any("build=" in note for note in raised.value.__notes__)
    made.let_go()
    made.build()
    assert "model" in state


@pytest.mark.usefixtures("alone")
def test_what_the_script_still_holds_has_no_memory_and_says_so_when_it_is_used() -> None:
    def sharded() -> Parts:
        model: Any = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
        fully_shard(model[0])
        fully_shard(model)
        return {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}

    made, state = builder(sharded)
    made.build()
    held, optimizer = state["model"], state["optimizer"]
    parameters = [*held.parameters()]
    loss = held(torch.ones(2, 8)).sum()
    loss.backward()
    optimizer.step()
    moments = [part["exp_avg"] for part in optimizer.state.values()]
    made.let_go()
    for tensor in (*parameters, *moments):
        assert isinstance(tensor, DTensor)
        assert tensor.to_local().untyped_storage().nbytes() == 0
        assert tensor.grad is None
    made.build()
    with pytest.raises(UsageError, match="ranks that no longer exist"):
        held(torch.ones(2, 8))
    with pytest.raises(UsageError, match="ranks that no longer exist"):
        optimizer.step()
    state["model"](torch.ones(2, 8)).sum().backward()
    state["optimizer"].step()


@pytest.mark.usefixtures("alone")
def test_what_is_not_sharded_stays_the_script_s_own() -> None:
    """A table that the script has computed once, and gives to each model that it makes."""
    table = torch.arange(4.0)

    def build() -> Parts:
        model: Any = nn.Linear(4, 2)
        model.register_buffer("table", table)
        fully_shard(model)
        return {"model": model}

    made, state = builder(build)
    made.build()
    made.let_go()
    made.build()
    assert torch.equal(state["model"].table, torch.arange(4.0))
    assert torch.equal(table, torch.arange(4.0))


@pytest.mark.usefixtures("alone")
def test_groups_and_wrappers_that_are_made_for_each_round_are_in_nobody_s_way() -> None:
    watching.watch()
    found = Groups()
    values: Parts = {}
    state = State(values)

    def build() -> Parts:
        group = dist.new_group([0])
        return {"model": DistributedDataParallel(nn.Linear(2, 2), process_group=group)}

    made = Builder(build, state, found)
    made.build()
    assert found.others(None) == 0
    assert models.problem(state) != ""
    assert models.problem(state, made.names) == ""
    own = dist.new_group([0])
    assert found.others(None) == 1, "one that was made elsewhere is"
    dist.destroy_process_group(own)


@pytest.mark.usefixtures("alone")
def test_a_sharded_model_is_told_of_the_function() -> None:
    model = nn.Linear(2, 2)
    fully_shard(model)
    assert "build=" in models.problem(State({"model": model}))


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("model = torch.compile(model)", True),
        ("    model.compile()", True),
        ("@torch.compile", True),
        ("pattern = re.compile(word)", False),
        ("compiled = 3", False),
    ],
)
def test_a_script_that_compiles_is_known_by_its_words(line: str, found: bool) -> None:
    assert compiles(f"import re\n{line}\n") is found
