"""A checkpoint that an earlier version has written is restored, listed, verified and exported."""

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from support.saving.ckpt_command import fine
from support.saving.older_checkpoints import FOLDER, RUN, STEPS, one_step, state, told, write

import spotelastic as se

DIGESTS = {"v1": "be0dc02913633e7d1c78c9c169b413b53a616daf65a051d03fa1409045df85da"}
VERSIONS = sorted(folder.name for folder in FOLDER.iterdir())


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def stored(version: str, tmp_path: Path) -> Path:
    with tarfile.open(FOLDER / version / "checkpoints.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "checkpoints"


@pytest.fixture
def expected(version: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / version / "expected.json").read_text())
    return content


def test_no_kept_checkpoint_has_changed(version: str) -> None:
    digest = hashlib.sha256()
    for path in sorted((FOLDER / version).iterdir()):
        digest.update(f"{path.name}\n".encode() + path.read_bytes())
    assert digest.hexdigest() == DIGESTS[version]
    assert write(version) == 2, "it is never written again"


def test_training_goes_on_from_it(
    stored: Path, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one rank, where two had saved."""
    monkeypatch.setenv("SPOTELASTIC_RUN", RUN)
    mine = state()
    assert told_or_nothing(mine) != expected
    with se.Checkpointer(mine, storage=str(stored), checkpoint_every=1) as checkpoint:
        assert checkpoint.restore() == STEPS
        assert told(mine) == expected
        checkpoint.step(STEPS + 1, loss=one_step(mine, STEPS + 1))
    assert json.loads((stored / "LATEST").read_bytes())["commit"] == {"epoch": 2, "step": STEPS + 1}


def told_or_nothing(mine: dict[str, Any]) -> dict[str, Any]:
    """An optimizer that has made no step has no moments."""
    return told(mine) if mine["optimizer"].state_dict()["state"] else {}


def test_ckpt_lists_verifies_and_exports_it(
    stored: Path, expected: dict[str, Any], tmp_path: Path
) -> None:
    (entry,) = json.loads(fine("ls", stored, "--json"))
    assert (entry["step"], entry["state"], entry["world_size"]) == (STEPS, "committed", 2)
    tensors = {
        each["name"]: each["shape"] for each in json.loads(fine("inspect", stored, "--json"))
    }
    assert tensors["model.weight"] == [2, 3]
    fine("verify", stored)
    fine("export", stored, tmp_path / "state.pt")
    exported = torch.load(tmp_path / "state.pt", weights_only=True)
    assert exported["model"]["weight"].tolist() == expected["weight"]
    assert exported["note"] == expected["note"]


def test_torch_loads_it_with_our_reader_and_without(stored: Path, expected: dict[str, Any]) -> None:
    folder = stored / "1" / f"step-{STEPS:08d}"
    for reader in (se.dcp.CheckpointReader(folder), dcp.FileSystemReader(folder)):
        target: dict[str, Any] = {
            "model": {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)},
            "optimizer": {"state": {"weight": {"exp_avg": torch.zeros(2, 3)}}},
        }
        dcp.load(target, storage_reader=reader, no_dist=True)
        assert target["model"]["weight"].tolist() == expected["weight"]
        assert target["model"]["bias"].tolist() == expected["bias"]
        moments = target["optimizer"]["state"]["weight"]["exp_avg"]
        assert moments.tolist() == expected["exp_avg"][0]
