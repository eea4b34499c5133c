import itertools
import math

from hypothesis import given
from hypothesis import strategies as st
from spotelastic_checkpoints.catalog.catalog import place
from spotelastic_checkpoints.types import Item


@st.composite
def cut_shapes(draw: st.DrawFn) -> tuple[tuple[int, ...], list[list[int]]]:
    """A shape, and where each axis is cut."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=0, max_size=4)))
    cuts = [sorted(draw(st.sets(st.integers(1, max(1, n - 1)), max_size=2))) for n in shape]
    return shape, [[c for c in axis if c < n] for axis, n in zip(cuts, shape, strict=True)]


@given(cut_shapes())
def test_chunks_make_up_the_tensor(case: tuple[tuple[int, ...], list[list[int]]]) -> None:
    shape, cuts = case
    whole = bytes(number % 251 for number in range(math.prod(shape)))
    target = bytearray(len(whole))
    edges = [list(itertools.pairwise([0, *axis, n])) for axis, n in zip(cuts, shape, strict=True)]
    for box in itertools.product(*edges):
        inside = itertools.product(*(range(low, high) for low, high in box))
        raw = bytes(whole[_flat(index, shape)] for index in inside)
        offsets = tuple(low for low, _ in box)
        sizes = tuple(high - low for low, high in box)
        item = Item("x", ("x",), "uint8", shape, offsets, sizes, -1, 0, len(raw))
        place(memoryview(target), memoryview(raw), item)
    assert bytes(target) == whole


def _flat(index: tuple[int, ...], shape: tuple[int, ...]) -> int:
    position = 0
    for at, size in zip(index, shape, strict=True):
        position = position * size + at
    return position
