"""What is saved is what the state is at that moment, and comes back as such."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.saving.one_slot import OneSlot, load
from torch import nn
from torch.distributed.tensor import DTensor, Shard, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from spotelastic.errors import UsageError
from spotelastic.training.save.saver import LayoutChanged
from spotelastic.training.state.state import State
from spotelastic.training.state.state_checks import module_check, optimizer_check


class Scaled(nn.Module):
    """Keeps its scales as a tensor of bytes, made anew whenever it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.scales: list[float] = []
        self.asked = 0

    def get_extra_state(self) -> torch.Tensor:
        self.asked += 1
        if not self.scales:
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer(bytearray(pickle.dumps(self.scales)), dtype=torch.uint8)

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.scales = pickle.loads(bytes(state.tolist())) if state.numel() else []


class Noting(nn.Module):
    """Keeps a container that is empty at first, with a key that is a number."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: dict[Any, Any] = {}

    def get_extra_state(self) -> dict[Any, Any]:
        return {"notes": dict(self.notes)}

    def set_extra_state(self, state: dict[Any, Any]) -> None:
        self.notes = state["notes"]


class Halved(nn.Module):
    """Its state, by hooks, is another tensor than what it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))
        self.register_state_dict_post_hook(self._halve)
        self.register_load_state_dict_pre_hook(self._double)

    @staticmethod
    def _halve(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        state[f"{prefix}weight"] = state[f"{prefix}weight"] / 2

    @staticmethod
    def _double(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        if f"{prefix}weight" in state:
            state[f"{prefix}weight"] = state[f"{prefix}weight"] * 2


def test_extra_state_that_is_a_tensor_is_saved_as_it_is_then(tmp_path: Path) -> None:
    first, second = model = [Scaled(), Scaled()]
    slot = OneSlot(tmp_path / "slot", {"model": nn.Sequential(*model)})
    for step in (1, 2):
        first.scales, second.scales = [1.5 * step] * step, [float(step)]
        slot.save(step)
    again = [Scaled(), Scaled()]
    load(tmp_path / "slot", 2, {"model": nn.Sequential(*again)})
    assert again[0].scales == [3.0, 3.0] and again[1].scales == [2.0]
    assert torch.equal(again[1].linear.weight, second.linear.weight)


def test_a_save_asks_each_module_for_its_extra_state_once(tmp_path: Path) -> None:
    model = [Scaled(), Scaled(), Scaled()]
    slot = OneSlot(tmp_path / "slot", {"model": nn.Sequential(*model)})
    before = [module.asked for module in model]
    slot.save(1)
    assert [module.asked for module in model] == [asked + 1 for asked in before]


def test_extra_state_that_is_a_container_comes_back(tmp_path: Path) -> None:
    model = Noting()
    model.notes = {3: torch.arange(2), "x": {"empty": {}}}
    OneSlot(tmp_path / "slot", {"model": model}).save(1)
    again = Noting()
    load(tmp_path / "slot", 1, {"model": again})
    assert repr(again.notes) == repr(model.notes)


def test_what_hooks_make_of_a_module_is_saved_as_it_is_then(tmp_path: Path) -> None:
    state: dict[str, Any] = {"model": Halved(), "other": nn.Linear(1, 1)}
    slot = OneSlot(tmp_path / "slot", state)
    with torch.no_grad():
        state["model"].weight.add_(8)
    slot.save(1)
    again = Halved()
    load(tmp_path / "slot", 1, {"model": again, "other": nn.Linear(1, 1)})
    assert again.weight.tolist() == [8, 8, 8]


def test_a_sharded_tensor_that_a_module_makes_anew_is_refused() -> None:
    """Saved as it was at first, it would be as good as lost; asking again may be collective."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        model = Halved()
        mesh = init_device_mesh("cpu", (2,))
        sharded = DTensor.from_local(torch.zeros(3), mesh, [Shard(0)], run_check=False)
        model.weight = nn.Parameter(sharded)
        with pytest.raises(UsageError, match=r"^weight: .* fully_shard instead"):
            State({"model": model}).view()
    finally:
        dist.destroy_process_group()


def test_moments_that_were_replaced_are_seen_even_where_ids_would_come_again() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    is_current = optimizer_check(optimizer)
    assert is_current()
    moments = optimizer.state[model.weight]
    before = id(moments.pop("exp_avg_sq"))
    others = [moments.setdefault("exp_avg_sq", torch.zeros(2, 2))]
    while id(others[-1]) != before and len(others) < 1000:
        others.append(torch.zeros(2, 2))
    moments["exp_avg_sq"] = others[-1]
    assert not is_current()


def trained() -> dict[str, Any]:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1))
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    values = {"mean": torch.zeros(2), "means": [torch.zeros(2)]}
    return {"model": model, "optimizer": optimizer, **values}


HELD: dict[str, Callable[[dict[str, Any]], torch.Tensor]] = {
    "a parameter": lambda s: s["model"].weight,
    "a moment": lambda s: s["optimizer"].state[s["model"].weight]["exp_avg"],
    "a learning rate": lambda s: s["optimizer"].param_groups[0]["lr"],
    "a tensor": lambda s: s["mean"],
    "one in a list": lambda s: s["means"][0],
}


@pytest.mark.parametrize("held", HELD)
def test_a_tensor_that_was_given_other_memory_is_saved_as_it_is_then(
    tmp_path: Path, held: str
) -> None:
    """As `.data` does: what brings moments to another device and back goes on with the object."""
    state, again = trained(), trained()
    slot = OneSlot(tmp_path / "slot", state)
    slot.save(1)
    tensor = HELD[held](state)
    tensor.data = torch.full_like(tensor, 7)
    slot.save(2)
    load(tmp_path / "slot", 2, again)
    assert torch.equal(HELD[held](again), torch.full_like(tensor, 7))


@pytest.mark.parametrize("held", HELD)
def test_a_tensor_of_another_shape_is_another_layout(tmp_path: Path, held: str) -> None:
    slot = OneSlot(tmp_path / "slot", state := trained())
    HELD[held](state).data = torch.zeros(3, 3)
    with pytest.raises(LayoutChanged, match="of another shape"):
        slot.save(2)


class Counting(torch.optim.Optimizer):
    """Keeps counts and averages in containers, some of which it makes anew."""

    def __init__(self, parameters: Any) -> None:
        groups = {"lr": 0.1, "seen": {"steps": 0, 3: "x"}, "scale": torch.ones(1)}
        super().__init__(parameters, groups)

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["seen"]["steps"] += 1
            group["scale"] = group["scale"] * 2
            for p in group["params"]:
                own = self.state[p]
                own["counts"] = {"n": own.get("counts", {"n": 0})["n"] + 1}
                own.setdefault("deep", [{"n": 0}, [0, 0]])[0]["n"] += 1
                own["averages"] = [torch.full((2,), float(own["counts"]["n"]))] * 2
                own["recent"] = [own["counts"]["n"]] * 2


def counting() -> tuple[nn.Linear, Counting]:
    model = nn.Linear(2, 1)
    return model, Counting(model.parameters())


def test_what_an_optimizer_keeps_in_containers_is_saved_as_it_is_then(tmp_path: Path) -> None:
    model, optimizer = counting()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    slot = OneSlot(tmp_path / "slot", {"model": model, "optimizer": optimizer})
    for step in (2, 3):
        optimizer.step()
        slot.save(step)
    again, other = counting()
    load(tmp_path / "slot", 3, {"model": again, "optimizer": other})
    for own in other.state.values():
        assert own["counts"] == {"n": 3} and own["deep"][0] == {"n": 3} and own["recent"] == [3, 3]
        assert [average.tolist() for average in own["averages"]] == [[3.0, 3.0]] * 2
    [group] = other.param_groups
    assert (group["seen"], group["scale"].tolist()) == ({"steps": 3, 3: "x"}, [8.0])


def test_what_an_optimizer_keeps_is_looked_for_where_it_is(tmp_path: Path) -> None:
    model, optimizer = counting()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    is_current = optimizer_check(optimizer)
    own, [group] = optimizer.state[model.weight], optimizer.param_groups
    own["deep"][0]["n"] += 1
    own["recent"] = [7]
    group["lr"] = 0.2
    assert is_current(), "these are read anew"
    for change in (
        lambda: own["averages"].__setitem__(0, torch.zeros(2)),
        lambda: own["deep"][0].update(m=1),
        lambda: own["deep"].__setitem__(0, {"n": 9, "m": 1}),
        lambda: own.update(counts={"n": 9}),
        lambda: group.update(scale=torch.ones(1)),
        lambda: optimizer.state.__setitem__(model.weight, dict(own)),
    ):
        is_current = optimizer_check(optimizer)
        assert is_current()
        change()
        assert not is_current()


def bare() -> nn.Sequential:
    """Of its modules each has something else that is empty."""
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.BatchNorm1d(2))


CHANGES: dict[str, Callable[[nn.Sequential], object]] = {
    "the first buffer": lambda m: m[0].register_buffer("seen", torch.zeros(1)),
    "a further buffer": lambda m: m[2].register_buffer("seen", torch.zeros(1)),
    "the first parameter": lambda m: m[1].register_parameter("slope", nn.Parameter(torch.ones(1))),
    "the first of the root": lambda m: m.register_buffer("seen", torch.zeros(1)),
    "the first child": lambda m: m[1].add_module("inner", nn.Linear(1, 1)),
    "a further child": lambda m: m.append(nn.Linear(2, 1)),
    "another child": lambda m: m.__setitem__(0, nn.Linear(2, 2)),
    "one child less": lambda m: m.__delitem__(1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_module_gets_later_is_seen(change: str) -> None:
    is_current = module_check(model := bare())
    with torch.no_grad():
        model(torch.ones(4, 2))
    assert is_current(), "training alone changes nothing"
    CHANGES[change](model)
    assert not is_current()
    assert module_check(model)()


def test_a_first_buffer_that_comes_later_is_no_longer_the_same_layout(tmp_path: Path) -> None:
    slot = OneSlot(tmp_path / "slot", {"model": (model := bare())})
    slot.save(1)
    model[0].register_buffer("seen", torch.zeros(1))
    with pytest.raises(LayoutChanged, match=r"model\.0\.seen"):
        slot.save(2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_observers_and_lazy_modules_take_the_shape_that_was_saved(tmp_path: Path) -> None:
    def make() -> Any:
        return nn.ModuleDict(
            {
                "lazy": nn.Sequential(nn.LazyLinear(2), nn.LazyBatchNorm1d()),
                "scales": torch.ao.quantization.get_default_qat_qconfig("fbgemm").weight(),
                "most": torch.ao.quantization.default_per_channel_weight_observer(),
            }
        )

    model = make()
    model["lazy"](torch.rand(4, 5))
    slot = OneSlot(tmp_path / "slot", {"model": model})
    model["scales"](torch.rand(3, 2))
    model["most"](torch.rand(4, 2))
    slot.plan()
    slot.save(1)
    again = make()
    load(tmp_path / "slot", 1, {"model": again})
    saved, found = model.state_dict(), again.state_dict()
    assert saved.keys() == found.keys()
    assert all(torch.equal(found[key], saved[key]) for key in saved)
    assert again["scales"].scale.shape == (3,)
