"""Values of the state come back as they were, and nothing that is more than data does."""

import collections
import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from spotelastic_checkpoints.format import encoding

from spotelastic.errors import UsageError
from spotelastic.training.state import values


@dataclasses.dataclass
class Settings:
    rate: float = 0.1


@pytest.mark.parametrize(
    "value",
    [
        None,
        [1, 2.5, "x", b"y", True, {"a": (1, None)}],
        collections.OrderedDict(a=1),
        np.float64(2.5),
        {"best": np.float32(1.5), "seen": np.arange(3)},
        {"inner": [torch.arange(3.0), torch.tensor(1)]},
        torch.Size((2, 3)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_data_comes_back(value: Any) -> None:
    data = values.Encoders().encode("x", value)
    found = values.decode("x", data)
    assert str(found) == str(value) and type(found) is type(value)


def test_what_could_not_be_read_again_is_refused_before_it_is_saved() -> None:
    with pytest.raises(UsageError, match=r"^best is more than data \(it refers to .*Settings\)"):
        values.Encoders().encode("best", Settings())


def test_a_class_that_the_script_allows_is_read() -> None:
    data = values.encode("best", Settings(0.5))
    with torch.serialization.safe_globals([Settings]):
        assert values.decode("best", data) == Settings(0.5)


def test_a_planted_value_runs_nothing() -> None:
    class Planted:
        def __reduce__(self) -> Any:
            return pytest.fail, ("it ran",)

    frame = encoding.plain_value(None)
    planted = frame.replace(pickle.dumps(None, protocol=2), pickle.dumps(Planted(), protocol=2))
    assert planted != frame
    with pytest.raises(UsageError, match="more than data"):
        values.decode("x", planted)
