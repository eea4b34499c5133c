"""What files of torch.save hold comes back by an export, or is refused in a line with its name."""

import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from spotelastic_checkpoints.catalog.catalog import Catalog
from spotelastic_checkpoints.storage.folder import FolderStorage

from spotelastic.errors import UsageError
from spotelastic.training.dcp import convert
from spotelastic.training.state import values


def imported(folder: Path, state: dict[Any, Any], part: str = "") -> dict[Any, Any]:
    """The state after an import and an export."""

    def shown(_: int) -> Any:
        return nullcontext(lambda _: None)

    torch.save(state, folder / "in.pt")
    storage = FolderStorage(folder / "store")
    made = convert.from_torch(folder / "in.pt", storage, 0, shown, part)
    convert.to_torch(Catalog(storage), made, folder / "out.pt", lambda _: None, part)
    with values.allowed():
        found: dict[Any, Any] = torch.load(folder / "out.pt", weights_only=True)
    return found


def test_empty_tensors_sparse_ones_numbers_and_numpy_come_back(tmp_path: Path) -> None:
    indices = torch.tensor([[0, 2]])
    sparse = torch.sparse_coo_tensor(indices, torch.ones(2), (4,), check_invariants=True)
    state = {
        "empty": torch.empty(0, 3),
        "alone": torch.empty(0),
        "sparse": sparse,
        "array": np.arange(3),
        "number": np.float64(0.5),
    }
    found = imported(tmp_path, state)
    assert found.keys() == state.keys()
    assert (found["empty"].shape, found["alone"].shape) == ((0, 3), (0,))
    assert found["sparse"].to_dense().tolist() == [1, 0, 1, 0]
    assert found["array"].tolist() == [0, 1, 2]
    assert found["number"] == 0.5


def test_keys_that_are_numbers_come_back_below_a_name(tmp_path: Path) -> None:
    found = imported(tmp_path, {0: torch.ones(1), 7: {1: torch.zeros(2)}}, "model")
    assert found[0].tolist() == [1]
    assert found[7][1].tolist() == [0, 0]


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    NESTED = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])

REFUSED: dict[str, tuple[dict[Any, Any], str]] = {
    "two of one name": (
        {"a.b": torch.ones(1), "a": {"b": torch.ones(1)}},
        "would both be saved as",
    ),
    "meta": ({"w": torch.empty(2, device="meta")}, "w is on the meta device"),
    "surrogate": ({"a\udc80": torch.ones(1)}, "cannot be written as UTF-8"),
    "ours": ({"spotelastic": torch.ones(1)}, "is reserved for spotelastic: import it with --part"),
    "number": ({0: torch.ones(1)}, "the key 0 is not a string: import it with --part"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_kept_is_refused_by_its_name(tmp_path: Path, case: str) -> None:
    state, told = REFUSED[case]
    with pytest.raises(UsageError) as refused:
        imported(tmp_path, state)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not list((tmp_path / "store").rglob("*.distcp"))


def test_a_nested_tensor_comes_back_or_is_refused(tmp_path: Path) -> None:
    try:
        found = imported(tmp_path, {"rows": NESTED})
    except UsageError as error:
        assert "rows" in str(error) or "safe to load" in str(error)
    else:
        assert [row.tolist() for row in found["rows"].unbind()] == [[1], [1, 1]]
