"""What becomes of a checkpoint in files of other formats."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from spotelastic_checkpoints import safetensors
from spotelastic_checkpoints.catalog import Catalog, Checkpoint
from spotelastic_checkpoints.storage.folder import FolderStorage

from spotelastic.training import convert
from spotelastic.training.state import State


class Remembering(torch.nn.Linear):
    """Has entries in its state that are made anew for each."""

    kept: Any = None

    def get_extra_state(self) -> Any:
        return {3: torch.ones(2), "none": {}}

    def set_extra_state(self, state: Any) -> None:
        self.kept = state


def ignored(_: int) -> None:
    pass


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(FolderStorage(tmp_path / "store"))


def imported(catalog: Catalog, state: dict[str, Any], folder: Path) -> Checkpoint:
    torch.save(state, folder / "in.pt")
    return convert.from_torch(folder / "in.pt", catalog.storage, 1, ignored)


def test_an_optimizer_and_a_module_load_what_was_exported(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, other = Remembering(2, 2), torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(other.parameters())
    other(torch.ones(2)).sum().backward()
    optimizer.step()
    view = State({"model": model, "optimizer": optimizer}).view()
    monkeypatch.setattr(convert, "_view", lambda _: view)  # as a run has saved them
    checkpoint = imported(catalog, {}, tmp_path)
    convert.to_torch(catalog, checkpoint, tmp_path / "out.pt", ignored)
    loaded = torch.load(tmp_path / "out.pt", weights_only=True)
    assert loaded.keys() == {"model", "optimizer"}

    again = torch.optim.Adam(other.parameters())
    again.load_state_dict(loaded["optimizer"])
    for parameter, own in optimizer.state.items():
        assert torch.equal(again.state[parameter]["exp_avg"], own["exp_avg"])
    twin = Remembering(2, 2)
    twin.load_state_dict(loaded["model"])
    assert torch.equal(twin.weight, model.weight)
    assert twin.kept["none"] == {} and torch.equal(twin.kept[3], torch.ones(2))


def test_safetensors_has_every_dtype_that_its_format_has(catalog: Catalog, tmp_path: Path) -> None:
    dtypes = ["float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64"]
    state = {name: torch.arange(3.0).to(getattr(torch, name)) for name in dtypes}
    checkpoint = imported(catalog, state, tmp_path)
    files = safetensors.plan({t.name: t for t in checkpoint.tensors()}, most=1 << 20)
    safetensors.export(catalog, checkpoint, files, tmp_path / "out", ignored)
    data = (tmp_path / "out" / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    names = ["F8_E4M3", "F8_E5M2", "U16", "U32", "U64"]
    assert [header[name]["dtype"] for name in dtypes] == names
    for name in dtypes:
        first, last = header[name]["data_offsets"]
        found = torch.frombuffer(bytearray(data[start + first : start + last]), dtype=torch.uint8)
        assert torch.equal(found, state[name].view(torch.uint8))
