"""Tensors filled from a file: wherever they lie in it, however the calls are cut."""

import itertools
import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spotelastic.training.restore import shm_copy
from spotelastic.training.restore.shm_copy import ReadLimits

SIZE = 1 << 16


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    parts=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 3000)), max_size=40),
    at_once=st.integers(1, 20_000),
    most=st.integers(2, 10),
    chance=st.randoms(use_true_random=False),
)
def test_every_tensor_gets_its_bytes(
    tmp_path: Path,
    parts: list[tuple[int, int]],
    at_once: int,
    most: int,
    chance: "object",
) -> None:
    data = os.urandom(SIZE)
    (tmp_path / "file").write_bytes(data)
    wanted, end = [], 0
    for gap, length in parts:
        if end + gap + length <= SIZE:
            wanted.append((end + gap, torch.zeros(length, dtype=torch.uint8)))
            end += gap + length
    chance.shuffle(wanted)  # type: ignore[attr-defined]
    shm_copy.fill(str(tmp_path / "file"), wanted, limits=ReadLimits(at_once, most))
    for offset, tensor in wanted:
        assert bytes(tensor.tolist()) == data[offset : offset + len(tensor)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    cuts=st.lists(st.integers(0, SIZE), min_size=2, max_size=20, unique=True),
    parts=st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, SIZE // 4)), max_size=20),
    chance=st.randoms(use_true_random=False),
)
def test_what_has_moved_is_read_from_where_it_is(
    tmp_path: Path, cuts: list[int], parts: list[tuple[int, int]], chance: "object"
) -> None:
    cuts.sort()
    every = list(itertools.pairwise(cuts))
    ranges = sorted(chance.sample(every, (len(every) + 1) // 2))  # type: ignore[attr-defined]
    data = os.urandom(SIZE)
    file, moved = bytearray(data), {}
    for start, end in chance.sample(ranges, len(ranges)):  # type: ignore[attr-defined]
        moved[start] = start, end, len(file)
        file += data[start:end]
        file[start:end] = bytes(end - start)
    (tmp_path / "file").write_bytes(file)
    wanted = [
        (start, torch.zeros(min(length, SIZE - start), dtype=torch.uint8))
        for start, length in parts
    ]
    shm_copy.fill(str(tmp_path / "file"), wanted, [moved[start] for start, _ in ranges])
    for offset, tensor in wanted:
        assert bytes(tensor.tolist()) == data[offset : offset + len(tensor)]


def test_a_file_that_ends_too_early_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1234")
    with pytest.raises(EOFError):
        shm_copy.fill(str(tmp_path / "file"), [(2, torch.zeros(4, dtype=torch.uint8))])


def test_a_call_that_came_back_early_is_gone_on_with() -> None:
    parts = [memoryview(b"abcd"), memoryview(b"efghij")]
    assert shm_copy.left_after(parts, 3) == [b"d", b"efghij"]
    assert shm_copy.left_after(parts, 4) == [b"efghij"]
    assert shm_copy.left_after(parts, 9) == [b"j"]
