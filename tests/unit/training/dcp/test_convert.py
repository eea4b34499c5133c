"""What becomes of a checkpoint in files of other formats."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from spotelastic_checkpoints.catalog import safetensors_export
from spotelastic_checkpoints.catalog.catalog import Catalog, Checkpoint
from spotelastic_checkpoints.restore.contents import Contents
from spotelastic_checkpoints.storage.folder import FolderStorage
from spotelastic_checkpoints.types import RestoreSet, Resume

from spotelastic.training.dcp import convert
from spotelastic.training.restore.restored import RestoreSource
from spotelastic.training.state.state import State


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


def shown(_: int) -> AbstractContextManager[Callable[[int], None]]:
    return nullcontext(ignored)


def imported(catalog: Catalog, state: dict[str, Any], folder: Path) -> Checkpoint:
    torch.save(state, folder / "in.pt")
    return convert.from_torch(folder / "in.pt", catalog.storage, 1, shown)


def test_an_optimizer_and_a_module_load_what_was_exported(catalog: Catalog, tmp_path: Path) -> None:
    model, other = Remembering(2, 2), torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(other.parameters())
    other(torch.ones(2)).sum().backward()
    optimizer.step()
    lone = [*other.parameters()]
    view = State({"model": model, "optimizer": optimizer, "lone": lone}).view()
    checkpoint = convert.commit_view(view, tmp_path, catalog.storage, 1, shown)
    convert.to_torch(catalog, checkpoint, tmp_path / "out.pt", ignored)
    loaded = torch.load(tmp_path / "out.pt", weights_only=True)
    assert loaded.keys() == {"model", "optimizer", "lone"}

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
    files = safetensors_export.plan({t.name: t for t in checkpoint.tensors()}, most=1 << 20)
    safetensors_export.export(catalog, checkpoint, files, tmp_path / "out", ignored)
    data = (tmp_path / "out" / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    names = ["F8_E4M3", "F8_E5M2", "U16", "U32", "U64"]
    assert [header[name]["dtype"] for name in dtypes] == names
    for name in dtypes:
        first, last = header[name]["data_offsets"]
        found = torch.frombuffer(bytearray(data[start + first : start + last]), dtype=torch.uint8)
        assert torch.equal(found, state[name].view(torch.uint8))


def restored(checkpoint: Checkpoint, storage: FolderStorage, values: dict[str, Any]) -> None:
    """Loads an imported checkpoint of one file."""
    [placed, *more] = checkpoint.items
    items = tuple(each.item for each in (placed, *more))
    source = RestoreSet(1, 1, 1, (), str(Path(storage.url) / placed.key), items)
    loaded, state = RestoreSource(Contents(source), Resume("store", 1)), State(values)
    loaded.needs(state, 0)
    for window in loaded.windows():
        loaded.fill(window)
    loaded.load(state)


def test_what_was_imported_is_restored_as_it_was(tmp_path: Path) -> None:
    """Containers of tensors and of values, keys that are numbers, and what is empty."""
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    milestones = torch.optim.SGD([parameter], lr=1.0)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(milestones, [30, 80])
    saved: dict[str, Any] = {
        "averages": {"a": {"w": torch.arange(3.0)}},
        "names": {1: "one", "2": "two", "none": {}},
        "scheduler": scheduler.state_dict(),
        "module": torch.nn.Linear(2, 2).state_dict(),
    }
    storage = FolderStorage(tmp_path / "store")
    checkpoint = imported(Catalog(storage), saved, tmp_path)
    named = [item.item.fqn for item in checkpoint.items]
    assert "spotelastic.structure.module" not in named, "modules are loaded by names"

    averages = {"a": {"w": torch.zeros(3)}}
    other = torch.optim.lr_scheduler.MultiStepLR(milestones, [1])
    module = torch.nn.Linear(2, 2)
    values = {"averages": averages, "names": {}, "scheduler": other, "module": module}
    restored(checkpoint, storage, values)
    assert torch.equal(averages["a"]["w"], torch.arange(3.0))
    assert values["names"] == saved["names"]
    assert other.milestones == scheduler.milestones
    assert torch.equal(module.weight, saved["module"]["weight"])
