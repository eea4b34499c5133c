"""Hashes of what ranks claim to have alike."""

import collections
import datetime
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from spotelastic.errors import UsageError
from spotelastic.training.state.rank_agreement import (
    differing,
    digest_of_tensor,
    digest_of_value,
    hash_of_values,
    refuse,
)
from spotelastic.training.state.value_entries import ValueEntry


def test_equal_values_have_one_hash_however_they_are_built() -> None:
    name = "".join(["x"] * 30)
    base = torch.arange(12.0)
    pairs: list[tuple[Any, Any]] = [
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}),
        ([name, name], [name, "x" * 30]),
        ({"v": base[3:6]}, {"v": base[3:6].clone()}),
        ({"v": base.view(3, 4).t()}, {"v": base.view(3, 4).t().contiguous()}),
        (np.arange(6)[::2], np.array([0, 2, 4])),
        (collections.OrderedDict(a=1), collections.OrderedDict(a=1)),
        (datetime.timedelta(1), datetime.timedelta(days=1)),
    ]
    for left, right in pairs:
        assert digest_of_value(left) == digest_of_value(right) is not None, left


def test_other_values_have_another_hash() -> None:
    ones: list[Any] = [
        1, 1.0, True, "1", b"1", None, [1], (1,), {1}, {1: 1}, [[1], []], [[], [1]], float("nan"),
        0.0, -0.0, torch.ones(2), torch.ones(2, 1), torch.ones(2).half(), np.ones(2),
        torch.tensor([1 + 2j]), torch.tensor([1 + 2j]).conj(), datetime.timedelta(2), int, float,
        torch.eye(2).to_sparse(), torch.eye(2).to_sparse() * 2, torch.eye(2).to_sparse_csr(),
        torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        torch.quantize_per_tensor(torch.ones(2), 0.2, 0, torch.qint8),
    ]  # fmt: skip
    digests = [digest_of_value(value) for value in ones]
    assert None not in digests
    assert len(set(digests)) == len(ones)
    entries = [[ValueEntry("v", ("v",), lambda one=one: one)] for one in ones]  # type: ignore[misc]
    assert len({hash_of_values(entry) for entry in entries}) == len(ones)


def test_what_contains_itself_or_cannot_be_taken_apart_ends() -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    assert digest_of_value(ring) is not None
    assert digest_of_value(sys.stdout) is None


def test_a_set_of_strings_has_one_hash_in_all_processes() -> None:
    script = (
        "from spotelastic.training.state.rank_agreement import digest_of_value as d;"
        "print(d({'a', 'b', 'c', 'dd'}).hex())"
    )
    found = subprocess.check_output([sys.executable, "-c", script], text=True)
    digest = digest_of_value({"dd", "c", "b", "a"})
    assert digest is not None
    assert found.strip() == digest.hex()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.bool, torch.int64])
def test_one_changed_element_changes_the_hash(dtype: torch.dtype) -> None:
    tensor = torch.zeros(1001).to(dtype)
    before = digest_of_tensor(tensor)
    tensor[777] = 1
    assert digest_of_tensor(tensor) != before


def test_all_ranks_that_differ_are_named() -> None:
    a, b = ("m.w", (0,)), ("lr", ())
    different = differing([{a: b"1"}, {a: b"1", b: b"2"}, {a: b"3", b: b"4"}, {b: b"5"}])
    assert different == {b: (2, 3), a: (2,)}
    with pytest.raises(UsageError, match=r"lr \(and 1 more\) is not .* ranks 2, 3 differ from the"):
        refuse(different)
    refuse({})
