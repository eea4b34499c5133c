"""Hypothesis strategies for training states of every kind, and a comparison of two states.

`entries` draws what a state consists of; `built` makes it, with this or other contents.
"""

import collections
import pathlib
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from spotelastic_checkpoints.format import encoding
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, init_device_mesh
from torch.testing._internal.two_tensor import TwoTensor

from spotelastic.training.state.tensors import bits

Make = Callable[[int], Any]
"""Of a seed: the same thing with another content."""
DTYPES = [getattr(torch, name) for name in encoding.ITEM_SIZES]
SHAPES = st.lists(st.integers(0, 4), max_size=3)


def tensor_of(dtype: torch.dtype, shape: list[int], seed: int) -> torch.Tensor:
    """Any bits, but for those that no tensor of this dtype has."""
    made = np.random.default_rng(seed)
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    raw = torch.from_numpy(made.integers(0, 256, size, dtype=np.uint8))
    if dtype is torch.bool:
        return (raw > 127).reshape(shape)
    return raw.view(dtype).reshape(shape)


def _stepped(t: torch.Tensor) -> torch.Tensor:
    wide = torch.zeros((*t.shape, 2), dtype=t.dtype)
    wide[..., 1].copy_(t)
    return wide[..., 1]


def _windows(t: torch.Tensor) -> torch.Tensor:
    return t.reshape(-1).unfold(0, 2, 1) if t.numel() > 2 else t


def _imaginary(t: torch.Tensor) -> torch.Tensor:
    return t.conj().imag if t.is_complex() else t


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda t: t,
    "turned": lambda t: t.mT if t.dim() > 1 else t,
    "stepped": _stepped,
    "expanded": lambda t: t.unsqueeze(0).expand(3, *t.shape),
    "overlapping": _windows,
    "conjugated": lambda t: t.conj() if t.is_complex() else t,
    "negated": _imaginary,
    "part": lambda t: t[1:] if t.dim() else t,
    "parameter": lambda t: nn.Parameter(t, requires_grad=False),
    "trained": lambda t: t.requires_grad_() if t.is_floating_point() else t,
}


@st.composite
def dense(draw: st.DrawFn) -> Make:
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(SHAPES)
    view, salt = VIEWS[draw(st.sampled_from(sorted(VIEWS)))], draw(st.integers(0, 1000))
    return lambda seed: view(tensor_of(dtype, shape, seed + salt))


def _sparse(seed: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.where(torch.rand(3, 4, generator=made) > 0.5, seed + 1.5, 0.0)


ODD: dict[str, Make] = {
    "coo": lambda seed: _sparse(seed).to_sparse(),
    "uncoalesced": lambda seed: torch.sparse_coo_tensor(
        torch.tensor([[0, 0]]), torch.tensor([1.0, float(seed)]), (2,)
    ),
    "csr": lambda seed: _sparse(seed).to_sparse_csr(),
    "meta": lambda _: torch.empty(2, device="meta"),
    "nested": lambda seed: torch.nested.nested_tensor([torch.ones(2), torch.full((3,), seed)]),
    "jagged": lambda seed: torch.nested.nested_tensor(
        [torch.ones(2), torch.full((3,), float(seed))], layout=torch.jagged
    ),
    "quantized": lambda seed: torch.quantize_per_tensor(
        torch.ones(3), 0.1 + seed, 1 + seed, torch.qint8
    ),
    "per channel": lambda seed: torch.quantize_per_channel(
        torch.full((2, 2), float(seed)),
        torch.tensor([0.1, 0.5]),
        torch.tensor([0, 3]),
        0,
        torch.qint8,
    ),
    "two": lambda seed: TwoTensor(torch.full((2,), float(seed)), torch.ones(2)),
    "zero": lambda _: torch._efficientzerotensor(3),
    "half complex": lambda _: torch.zeros(2, dtype=torch.complex32),
}


@st.composite
def sharded(draw: st.DrawFn) -> Make:
    """On the only rank of a mesh."""
    within = draw(dense())
    placements = [draw(st.sampled_from([Shard(0), Shard(0), Replicate(), Partial()]))]

    def make(seed: int) -> torch.Tensor:
        local = within(seed).detach()
        if not local.dim():
            local = local.reshape(1)
        mesh = init_device_mesh("cpu", (1,))
        return DTensor.from_local(local, mesh, placements, run_check=False)

    return make


TENSORS = st.one_of(dense(), dense(), sharded(), st.sampled_from(sorted(ODD)).map(ODD.__getitem__))

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([1 << 2031, 1 << 2040, -(1 << 3000)]),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["\udc80", b"", b"\0\xff", bytearray(b"x"), bytearray()]),
    st.binary(max_size=5),
    st.complex_numbers(),
    st.sampled_from([torch.float16, torch.Size([2]), torch.device("cpu"), ..., range(3), int]),
    st.sampled_from([pathlib.Path("x"), frozenset([1]), {1, "x"}, set(), object()]),
    st.builds(collections.OrderedDict, st.dictionaries(st.text(max_size=2), st.integers())),
    st.builds(collections.Counter, st.text(max_size=4)),
    st.sampled_from(["i1", "<u2", "<f4", "<f8", "<c16", "U3", "M8[s]", "O", "?"]).map(
        lambda kind: np.zeros(2, dtype=kind)
    ),
    st.sampled_from([np.zeros(0), np.float32(2), np.array(3), np.asfortranarray(np.eye(2))]),
)
KEYS = st.one_of(
    st.sampled_from(["a", "b", "a.b", "0", "step", "é", "", "\udc80"]), st.integers(0, 2)
)


@st.composite
def containers(draw: st.DrawFn, within: st.SearchStrategy[Make]) -> Make:
    kind = draw(st.sampled_from(["list", "tuple", "dict", "ordered"]))
    held = draw(st.lists(within, max_size=3))
    keys = draw(st.lists(KEYS, min_size=len(held), max_size=len(held), unique=True))

    def make(seed: int) -> Any:
        entries = [each(seed) for each in held]
        if kind in ("list", "tuple"):
            return entries if kind == "list" else tuple(entries)
        made = dict(zip(keys, entries, strict=True))
        return made if kind == "dict" else collections.OrderedDict(made)

    return make


def _constant(value: Any) -> Make:
    return lambda _: value


VALUES = st.recursive(st.one_of(SCALARS.map(_constant), TENSORS), containers, max_leaves=5)


class Holding(nn.Module):
    """Of these buffers, and perhaps of extra state and modules within."""

    def __init__(self, buffers: Mapping[str, torch.Tensor], extra: Any, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear = nn.Linear(2, 3)
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)
        self.extra = [extra]  # a parameter would be one of the module's

    def get_extra_state(self) -> Any:
        return self.extra[0]

    def set_extra_state(self, state: Any) -> None:
        self.extra = [state]


class Stateful:
    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


OPTIMIZERS: list[Callable[[Any], torch.optim.Optimizer]] = [
    lambda p: torch.optim.AdamW(p, amsgrad=True),
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    torch.optim.Adagrad,
    lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    torch.optim.Rprop,
]


@st.composite
def modules(draw: st.DrawFn) -> Make:
    buffers = draw(st.dictionaries(st.sampled_from(["p", "q", "r"]), TENSORS, max_size=2))
    extra = draw(VALUES)

    def make(seed: int) -> nn.Module:
        made = {name: each(seed) for name, each in buffers.items()}
        return Holding(made, extra(seed), seed)

    return make


@st.composite
def trained(draw: st.DrawFn) -> Make:
    """A module and its optimizer, under one name: `built` takes them apart."""
    module, optimizer = draw(modules()), draw(st.sampled_from(OPTIMIZERS))
    steps = draw(st.integers(1, 2))

    def make(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = module(seed)
        made = optimizer(model.linear.parameters())
        for step in range(steps if seed else 0):
            for parameter in model.linear.parameters():
                parameter.grad = torch.full_like(parameter, seed + step + 0.5)
            made.step()
            made.zero_grad()
        return model, made

    return make


NAMES = st.sampled_from(["a", "b", "a.b", "model", "model.linear", "step", "é"])
ENTRIES = st.dictionaries(
    NAMES, st.one_of(VALUES, VALUES.map(lambda v: lambda s: Stateful(v(s))), modules(), trained()),
    min_size=1, max_size=3,
)  # fmt: skip


def built(entries: Mapping[str, Make], seed: int) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for name, make in entries.items():
        made = make(seed)
        if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module):
            state[name], state[f"optimizer of {name}"] = made
        else:
            state[name] = made
    return state


def difference(left: Any, right: Any, at: str = "state") -> str:
    """Where they are not the same, bit for bit; empty where they are."""
    if isinstance(left, Stateful | nn.Module | torch.optim.Optimizer):
        if isinstance(left, torch.optim.Optimizer):
            left.zero_grad()
            right.zero_grad()
        return difference(left.state_dict(), right.state_dict(), at)
    if type(left) is not type(right):
        return f"{at}: {type(left)} and {type(right)}"
    if isinstance(left, torch.Tensor):
        same = left.requires_grad == right.requires_grad and _is_same(left, right)
        return "" if same else f"{at}: {left} and {right}"
    if isinstance(left, np.ndarray | np.generic):
        same = left.dtype == right.dtype and left.shape == right.shape
        return "" if same and left.tolist() == right.tolist() else f"{at}: {left} and {right}"
    if isinstance(left, Mapping):
        if [*left] != [*right]:
            return f"{at}: {[*left]} and {[*right]}"
        found = (difference(left[key], right[key], f"{at}[{key!r}]") for key in left)
        return next(filter(None, found), "")
    if isinstance(left, list | tuple):
        if len(left) != len(right):
            return f"{at}: {len(left)} and {len(right)}"
        found = (
            difference(*pair, f"{at}[{n}]") for n, pair in enumerate(zip(left, right, strict=True))
        )
        return next(filter(None, found), "")
    if isinstance(left, float):
        return "" if struct.pack("d", left) == struct.pack("d", right) else f"{at}: {left}, {right}"
    if isinstance(left, complex):
        return difference([left.real, left.imag], [right.real, right.imag], at)
    return "" if left == right else f"{at}: {left!r} and {right!r}"


def _is_same(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left.is_nested and right.is_nested:
        return all(map(_is_same, left.unbind(), right.unbind()))
    if (left.dtype, left.shape, left.layout) != (right.dtype, right.shape, right.layout):
        return False
    if isinstance(left, DTensor) and isinstance(right, DTensor):
        same = left.placements == right.placements
        return same and _is_same(left.to_local(), right.to_local())
    if isinstance(left, TwoTensor) and isinstance(right, TwoTensor):
        return _is_same(left.a, right.a) and _is_same(left.b, right.b)
    if left.is_quantized:
        # Of what is equal in these, the scales are.
        return torch.equal(left.int_repr(), right.int_repr()) and torch.equal(
            left.dequantize(), right.dequantize()
        )
    if left.layout is torch.sparse_coo:
        same = left.is_coalesced() == right.is_coalesced()
        entries = [(t._indices(), t._values()) for t in (left, right)]
        return same and all(map(_is_same, *entries))
    if left.layout is torch.sparse_csr:
        parts = [(t.crow_indices(), t.col_indices(), t.values()) for t in (left, right)]
        return all(map(_is_same, *parts))
    return torch.equal(bits(left), bits(right))
