"""What is done here instead of a private function of torch gives what that function gives."""

import importlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draws import drawn
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from spotelastic.errors import UsageError
from spotelastic.training.state import derived, module_state
from spotelastic.training.state.chunks import chunks_of
from spotelastic.training.state.tensors import is_wrapper, local_part


def of_torch(module: str, name: str) -> Any:
    """The function, or a skipped test where torch has it no more."""
    found = getattr(pytest.importorskip(f"torch.{module}"), name, None)
    return found or pytest.skip(f"torch has no {name}")


@pytest.fixture(autouse=True, scope="module")
def four_ranks() -> Iterator[None]:
    dist.init_process_group("fake", rank=2, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


LEAVES = st.one_of(
    st.none(),
    st.integers(0, 3),
    st.just("text"),
    st.builds(lambda: torch.zeros(1)),
    st.just((torch.ones(1), {"in a tuple": 1})),
)
KEYS = st.one_of(st.sampled_from(["a", "b", "a.b", "0", ""]), st.integers(0, 2))
STATES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(KEYS, inner, max_size=3),
        st.dictionaries(KEYS, inner, max_size=2).map(OrderedDict),
    ),
    max_leaves=12,
)


@settings(max_examples=drawn(150), deadline=None)
@given(STATES, st.randoms(use_true_random=False))
def test_a_state_is_taken_apart_and_put_together_as_by_torch(state: Any, random: Any) -> None:
    traverse = of_torch("distributed.checkpoint._traverse", "traverse_state_dict")
    set_element = of_torch("distributed.checkpoint._traverse", "set_element")
    leaves: list[tuple[Any, Any]] = []
    traverse({"of": state}, lambda path, value: leaves.append((path, value)))
    if len({path for path, _ in leaves}) < len(leaves):
        with pytest.raises(UsageError, match="appears twice"):
            derived.flat_state("of", state)
        return
    ours = derived.flat_state("of", state)
    assert [*ours] == [path for path, _ in leaves]
    assert all(mine is theirs for mine, (_, theirs) in zip(ours.values(), leaves, strict=True))
    random.shuffle(leaves)
    numbered = [(path, number) for number, (path, _) in enumerate(leaves)]
    assert put_together(derived.set_element, numbered) == put_together(set_element, numbered)


def put_together(put: Callable[..., None], leaves: list[tuple[Any, int]]) -> Any:
    """The state; None where keys that look the same lead into each other."""
    made: dict[str, Any] = {}
    try:
        for path, number in leaves:
            put(made, path, number)
    except (TypeError, AttributeError):
        return None
    return made


class Held(nn.Module):
    """A module with what else has a name in its state."""

    def __init__(self, within: nn.Module) -> None:
        super().__init__()
        self.module, self.own = within, nn.Linear(1, 1)
        self.register_buffer("kept", torch.zeros(1))

    def get_extra_state(self) -> int:
        return 1


def compiled(module: nn.Module) -> Any:
    made: Any = importlib.import_module("torch._dynamo.eval_frame").OptimizedModule
    return made(module, lambda function: function)


AROUND: list[Callable[[nn.Module], nn.Module]] = [
    Held,
    DistributedDataParallel,
    checkpoint_wrapper,
    compiled,
    lambda module: nn.Sequential(module, nn.Linear(1, 1)),
    lambda module: nn.ModuleDict({"module": module}),
]


@settings(max_examples=drawn(60), deadline=None)
@given(st.lists(st.sampled_from(AROUND), max_size=5))
def test_what_wrappers_hold_is_named_as_by_torch(around: list[Callable[..., Any]]) -> None:
    get_names = of_torch("distributed.checkpoint.state_dict", "_get_fqns")
    module: nn.Module = nn.Linear(2, 1)
    for wrap in around:
        module = wrap(module)
    for key in (*module.state_dict(), *dict(module.named_parameters())):
        try:
            [theirs] = get_names(module, key)
        except AttributeError:  # what it does not find, we name after its module
            continue
        assert module_state.name_in_dcp(module, key) == theirs


@settings(max_examples=drawn(40), deadline=None)
@given(
    st.lists(st.integers(0, 7), min_size=2, max_size=3),
    st.lists(st.sampled_from([Replicate(), Shard(0), Shard(1)]), min_size=2, max_size=2),
)
def test_parts_of_sharded_tensors_are_where_torch_says(sizes: list[int], how: list[Any]) -> None:
    place = of_torch("distributed.tensor._utils", "compute_local_shape_and_global_offset")
    mesh = init_device_mesh("cpu", (2, 2))
    sharded = distribute_tensor(torch.zeros(sizes), mesh, how, src_data_rank=None)
    shape, offsets = place(sharded.shape, mesh, sharded.placements)
    assert local_part(sharded) is sharded._local_tensor
    assert local_part(nn.Parameter(sharded)).data_ptr() == sharded._local_tensor.data_ptr()
    for chunk in chunks_of("of", ("of",), sharded):
        assert (chunk.offsets, chunk.sizes) == ((*offsets,), (*shape,))


def test_tensors_that_are_made_of_others_are_told_as_by_torch() -> None:
    is_theirs = of_torch("utils._python_dispatch", "is_traceable_wrapper_subclass")
    mesh = init_device_mesh("cpu", (4,))
    sharded = distribute_tensor(torch.zeros(4), mesh, src_data_rank=None)
    nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)
    many = (torch.zeros(1), nn.Parameter(torch.zeros(1)), sharded, nn.Parameter(sharded), nested)
    assert [is_wrapper(each) for each in many] == [is_theirs(each) for each in many]


def test_a_modules_extra_state_has_torchs_name() -> None:
    own = Held(nn.Linear(1, 1)).state_dict().keys()
    assert own - {"kept", "own.weight", "own.bias", "module.weight", "module.bias"} == {
        derived.EXTRA_STATE
    }
