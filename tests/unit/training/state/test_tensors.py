"""Tensors whose bytes are not what they say, names that are joined alike: what is saved comes back,
or is refused by name."""

import pathlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.saving.one_slot import OneSlot, load
from torch import nn
from torch.distributed.tensor import DTensor, Partial, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.testing._internal.two_tensor import TwoTensor

from spotelastic.errors import UsageError
from spotelastic.training.save.overlap import Overlap
from spotelastic.training.save.saver import declare
from spotelastic.training.state.derived import refuse_names_of_two_paths
from spotelastic.training.state.state import State

COMPLEX = torch.complex(torch.tensor([1.0, 2.0]), torch.tensor([3.0, -4.0]))


def saved_and_loaded(folder: Path, state: dict[str, Any], again: dict[str, Any]) -> dict[str, Any]:
    OneSlot(folder / "slot", state).save(1)
    load(folder / "slot", 1, again)
    return again


class Buffers(nn.Module):
    v: torch.Tensor

    def __init__(self, **buffers: torch.Tensor) -> None:
        super().__init__()
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)


@pytest.mark.parametrize(
    "turn",
    [
        lambda t: t.conj(),
        lambda t: t.conj().imag,
        lambda t: t.expand(3, 2),
        lambda t: torch.arange(4).to(t.dtype).mul(t[0]).unfold(0, 2, 1),
        lambda t: t[0].expand(2),
    ],
    ids=["conjugated", "negated", "expanded", "overlapping", "one element"],
)
def test_a_view_comes_back_as_what_it_says(tmp_path: Path, turn: Any) -> None:
    model, again = Buffers(v=turn(COMPLEX.clone())), Buffers(v=turn(torch.zeros_like(COMPLEX)))
    saved_and_loaded(tmp_path, {"model": model}, {"model": again})
    assert torch.equal(again.v, model.v)


def test_a_conjugated_parameter_is_not_copied_as_bytes_beside_training() -> None:
    wide = nn.Parameter(torch.zeros(1 << 18, dtype=torch.complex64).conj())
    assert Overlap([wide.detach()], [wide]).at == ()
    plain = nn.Parameter(torch.zeros(1 << 18, dtype=torch.complex64))
    assert Overlap([plain.detach()], [plain]).at == (0,)


@pytest.mark.parametrize("view", [lambda t: t.conj(), lambda t: t.mT], ids=["conj", "mT"])
def test_a_buffer_that_was_replaced_by_a_view_of_it_is_saved_as_that(
    tmp_path: Path, view: Any
) -> None:
    model = Buffers(v=torch.randn(2, 2, dtype=torch.complex128))
    slot = OneSlot(tmp_path / "slot", {"model": model})
    slot.save(1)
    model.v = view(model.v)
    slot.save(2)
    again = Buffers(v=torch.zeros(2, 2, dtype=torch.complex128))
    load(tmp_path / "slot", 2, {"model": again})
    assert torch.equal(again.v, model.v)


def test_sparse_tensors_come_back_also_with_another_number_of_elements(tmp_path: Path) -> None:
    def make(value: torch.Tensor) -> dict[str, Any]:
        buffers = Buffers(coo=value.to_sparse(), csr=value.to_sparse_csr())
        return {"model": buffers, "alone": value.to_sparse(), "held": [value.to_sparse_csr()]}

    again = make(torch.zeros(2, 2))
    held = again["alone"]
    state = make(torch.tensor([[1.0, 0], [2, 3]]))
    saved_and_loaded(tmp_path, state, again)
    for name in "coo", "csr":
        left, right = getattr(again["model"], name), getattr(state["model"], name)
        assert left.layout is right.layout and torch.equal(left.to_dense(), right.to_dense())
    assert torch.equal(again["held"][0].to_dense(), state["held"][0].to_dense())
    assert torch.equal(held.to_dense(), state["alone"].to_dense()), "filled where the script has it"


def test_a_tensor_made_of_others_is_refused_unless_its_class_is_allowed(tmp_path: Path) -> None:
    def make(value: float) -> dict[str, Any]:
        return {"model": Buffers(v=TwoTensor(torch.full((2,), value), torch.ones(2)))}

    with pytest.raises(UsageError, match=r"^model\.v .*TwoTensor"):
        OneSlot(tmp_path / "slot", make(1.0))
    with torch.serialization.safe_globals([TwoTensor]):
        again = saved_and_loaded(tmp_path, make(1.0), make(2.0))
    assert again["model"].v.a.tolist() == [1, 1]


def deep(depth: int) -> Any:
    made: Any = torch.zeros(1)
    for _ in range(depth):
        made = [made]
    return made


def around() -> Any:
    made: list[Any] = []
    made.append(made)
    return made


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ({"a": {"model": torch.zeros(1)}, "a.model": torch.zeros(1)}, "saved as a.model"),
        ({"a": [torch.zeros(1)], "a.0": 1}, r'state\["a"\]\[0\] and state\["a.0"\]'),
        ({"a": {"1": torch.zeros(1), 1: 2}}, r'state\["a"\]\["1"\] appears twice'),
        ({"a": {"0": torch.zeros(1), 0: {}}}, r'state\["a"\] has two keys that look the same'),
        ({"a": {"\udc80": torch.zeros(1)}}, "cannot be written as UTF-8"),
        ({1: 2}, r"state\[1\]: the keys"),
        ({"a": deep(2000)}, r'state\["a"\] is nested too deeply'),
        ({"a": (deep(2000),)}, "^a"),
        ({"a": around()}, r'state\["a"\] is nested too deeply to be saved, or contains itself'),
        ({"model": Buffers(v=torch.empty(2, device="meta"))}, r"model\.v is on the meta device"),
        ({"model": Buffers(v=torch._efficientzerotensor(2))}, r"model\.v is a zero tensor"),
        ({"a": (torch.empty(2, device="meta"),)}, "^a holds a tensor that is on the meta device"),
        ({"model": nn.LazyLinear(2)}, r"model\.weight has no shape yet"),
        ({"a": 1 << 2040}, "^a has an integer of more than"),
        ({"a": [pathlib.Path("x")]}, "^a is more than data .*Path"),
        ({"a": nn.MSELoss}, r"state\['a'\] is the class MSELoss: give an object of it"),
        ({"a": [nn.Linear(1, 1)]}, "^a holds an object of Linear: make it an entry of its own"),
        ({"a": {"b": torch.Generator()}}, "^a holds an object of Generator: make it an entry"),
        ({"a": (random.Random(0),)}, "^a holds an object of Random: make it an entry of its own"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_could_not_be_restored_is_refused_by_name(
    tmp_path: Path, state: dict[str, Any], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        OneSlot(tmp_path / "slot", state).save(1)


def test_names_that_are_joined_alike_on_two_ranks_are_refused() -> None:
    ranks = [State({"a": [torch.zeros(1)]}), State({"a": [torch.zeros(1)], "b": 1})]
    names = [(item.fqn, item.path) for state in ranks for item in declare(state.view())]
    refuse_names_of_two_paths(names)
    other = State({"a.0": torch.zeros(1)})
    names += [(item.fqn, item.path) for item in declare(other.view())]
    with pytest.raises(UsageError, match=r'state\["a"\]\[0\] and state\["a.0"\] would both'):
        refuse_names_of_two_paths(names)


def test_containers_whose_names_are_joined_alike_keep_what_is_theirs(tmp_path: Path) -> None:
    def make(seed: int) -> dict[str, Any]:
        return {"d": {"a.b": torch.full((1,), seed), "a": {"b": {}}}, "d.e": {"f": [seed]}}

    again = saved_and_loaded(tmp_path, make(1), make(2))
    assert repr(again) == repr(make(1))


@pytest.mark.parametrize("value", [b"", [b""], (b"", {"x": b""}), -(1 << 2031)], ids=repr)
def test_plain_values_come_back(tmp_path: Path, value: Any) -> None:
    assert saved_and_loaded(tmp_path, {"v": value}, {"v": None}) == {"v": value}


@pytest.mark.parametrize("late", [pathlib.Path("x"), [None, pathlib.Path("x")], 1 << 2040])
def test_a_value_of_another_type_is_looked_at_again(tmp_path: Path, late: Any) -> None:
    state: dict[str, Any] = {"best": [None, 1.0], "set": {1}}
    slot = OneSlot(tmp_path / "slot", state)
    slot.save(1)
    state["best"] = b""
    slot.save(2)
    state["best"] = late
    with pytest.raises(UsageError, match=r"^best"):
        slot.save(3)
    state.update(best=None, set={late} if isinstance(late, pathlib.Path) else {pathlib.Path("y")})
    with pytest.raises(UsageError, match=r"^set is more than data"):
        slot.save(4)


def test_an_entry_that_comes_later_or_is_replaced_is_seen(tmp_path: Path) -> None:
    state: dict[str, Any] = {"model": nn.Linear(1, 1)}
    view = State(state).view()
    assert view.current()
    state["model"] = nn.Linear(1, 1)
    assert not view.current()
    view = State(state).view()
    state["best"] = 1
    assert not view.current()


@pytest.fixture
def two_ranks() -> Iterator[Any]:
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


def test_a_summand_is_refused_wherever_it_is(two_ranks: Any) -> None:
    tensor = DTensor.from_local(torch.zeros(3), two_ranks, [Partial()], run_check=False)
    for state in {"x": tensor}, {"x": [tensor]}, {"x": Buffers(v=tensor)}:
        with pytest.raises(UsageError, match=r"^x.* Partial placement"):
            State(state).view()


class Keeping:
    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


@pytest.mark.parametrize(("before", "saved"), [({}, {"x": [1]}), ({"x": 1}, {}), ([], [[], {}])])
def test_what_is_empty_at_first_is_given_what_was_saved(
    tmp_path: Path, before: Any, saved: Any
) -> None:
    again = saved_and_loaded(tmp_path, {"seen": Keeping(saved)}, {"seen": Keeping(before)})
    assert again["seen"].state == saved


class Remembering(nn.Module):
    """Has extra state of any kind."""

    def __init__(self, extra: Any) -> None:
        super().__init__()
        self.extra = [extra]  # a parameter would be one of the module's

    def get_extra_state(self) -> Any:
        return self.extra[0]

    def set_extra_state(self, state: Any) -> None:
        self.extra = [state]


def test_extra_state_keeps_its_kind_and_only_what_it_shows(tmp_path: Path) -> None:
    wide = torch.arange(1 << 16)
    for extra in nn.Parameter(torch.ones(2)), wide[:2], torch.eye(2).to_sparse():
        again = {"model": Remembering(None)}
        saved_and_loaded(tmp_path, {"model": Remembering(extra)}, again)
        found = again["model"].extra[0]
        assert type(found) is type(extra) and torch.equal(found.to_dense(), extra.to_dense())
    assert (tmp_path / "slot").stat().st_size < wide.nbytes
