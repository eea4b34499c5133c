"""The fingerprint of what was trained tells states apart, and not who has their parts."""

import math
from collections.abc import Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st

from spotelastic.training.state.chunks import Chunk
from spotelastic.training.state.fingerprint import fingerprint, own_sums
from spotelastic.training.state.state import State, StateView

DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.int64,
    torch.uint8,
    torch.bool,
)


def view(chunks: Sequence[Chunk], *, sharded: bool) -> StateView:
    names = {each.fqn for each in chunks} if sharded else frozenset[str]()
    return StateView(tuple(chunks), (), {}, lambda: True, names)


def whole(name: str, tensor: torch.Tensor) -> Chunk:
    shape = tuple(tensor.shape)
    return Chunk(name, (name,), tensor, shape, (0,) * len(shape), shape)


def cut(chunk: Chunk, axis: int, at: int) -> list[Chunk]:
    """Two parts of a chunk."""
    parts = []
    for start, end in ((0, at), (at, chunk.sizes[axis])):
        part = chunk.tensor.narrow(axis, start, end - start)
        offsets = [*chunk.offsets]
        offsets[axis] += start
        place = chunk.shape, tuple(offsets), tuple(part.shape)
        parts.append(Chunk(chunk.fqn, chunk.path, part, *place))
    return parts


def of(*ranks: Sequence[Chunk], sharded: bool = True) -> str:
    views = [view(each, sharded=sharded) for each in ranks]
    return fingerprint(own_sums(each, leads=not at) for at, each in enumerate(views))


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(1, 4), max_size=3))
    size = math.prod(shape) * 16
    data = torch.tensor(list(draw(st.binary(min_size=size, max_size=size))), dtype=torch.uint8)
    dtype = draw(st.sampled_from(DTYPES))
    if dtype is torch.bool:
        data = data & 1
    return data.view(dtype)[: math.prod(shape)].reshape(shape)


@given(tensors(), st.data())
def test_parts_on_any_ranks_have_the_sums_of_the_whole(
    tensor: torch.Tensor, data: st.DataObject
) -> None:
    parts = [whole("weight", tensor)]
    for _ in range(data.draw(st.integers(0, 3))):
        part = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        axes = [axis for axis, size in enumerate(part.sizes) if size > 1]
        if not axes:
            parts.append(part)
            continue
        axis = data.draw(st.sampled_from(axes))
        parts += cut(part, axis, data.draw(st.integers(1, part.sizes[axis] - 1)))
    expected = of([whole("weight", tensor)])
    assert of(*([each] for each in parts)) == of([], parts) == expected
    assert of(parts, sharded=False) == of(parts, parts) == expected


@given(tensors(), st.data())
def test_any_other_bit_or_place_is_another_fingerprint(
    tensor: torch.Tensor, data: st.DataObject
) -> None:
    before = of([whole("weight", tensor)])
    assert of([whole("bias", tensor)]) != before
    assert of([whole("weight", tensor.reshape(1, *tensor.shape))]) != before
    other = tensor.clone()
    raw = other.reshape(-1).view(torch.uint8)
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= 1 if tensor.dtype is torch.bool else 1 << data.draw(st.integers(0, 7))
    assert of([whole("weight", other)]) != before
    turned = tensor.reshape(-1).flip(0).reshape(tensor.shape)
    same = torch.equal(turned.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))
    assert (of([whole("weight", turned)]) == before) == same


def test_what_all_ranks_have_counts_once() -> None:
    model = torch.nn.Linear(3, 2)
    state = State({"model": model, "optimizer": torch.optim.Adam(model.parameters())}).view()
    mine, others = own_sums(state, leads=True), own_sums(state, leads=False)
    assert mine and not others
    assert fingerprint([mine, others]) == fingerprint([mine])
