"""The first commit of a run is read back, and compared with what the ranks had in memory."""

import asyncio
import errno
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from msgspec.structs import replace
from spotelastic_checkpoints import messages
from spotelastic_checkpoints.catalog.catalog import Catalog
from spotelastic_checkpoints.commit.first_save import FirstSave
from spotelastic_checkpoints.daemon import proving
from spotelastic_checkpoints.daemon.proving import FirstCommit, Proof, ProofPatience
from spotelastic_checkpoints.memory.arena import Slot
from spotelastic_checkpoints.storage.folder import FolderStorage
from spotelastic_checkpoints.types import Commit
from support.draws import drawn
from support.saving.one_slot import OneSlot
from support.training.drawn_lives import Life, lives

import spotelastic as se
from spotelastic.errors import UsageError
from spotelastic.model import in_place
from spotelastic.training.rehearsal import reading_back
from spotelastic.training.save.saver import LayoutChanged
from spotelastic.training.save.saving import first_save_note, safe_globals
from spotelastic.training.state.rank_agreement import digest_of_tensor

SCRIPT = """
import sys, torch, spotelastic as se
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.AdamW(model.parameters())
with se.Checkpointer({"model": model, "optimizer": optimizer, "best": [1.5]}, storage=sys.argv[1],
                     snapshot_every=1, checkpoint_every=1) as checkpoint:
    for step in checkpoint.steps(10 ** 9):
        with step:
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
"""


class Config:
    """A class that only this module knows."""

    def __init__(self) -> None:
        self.width = 3


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Catalog, FirstSave]:
    """A first commit, and the note of the only rank."""
    notes: list[FirstSave] = []
    monkeypatch.setattr(FirstSave, "leave", lambda note, folder: notes.append(note))
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    state: dict[str, Any] = {"model": model, "best": {"loss": 1.5, "steps": [1, 2]}}
    with se.Checkpointer(state, storage=str(tmp_path)) as checkpoint:
        checkpoint.step(1)
        checkpoint.save()
        assert checkpoint.wait()
    [note] = notes
    return Catalog(FolderStorage(tmp_path)), note


def proof(catalog: Catalog, note: FirstSave) -> Proof:
    return reading_back.prove(catalog, catalog.find(note.step), {0: note})


def test_what_was_saved_is_proven_and_noted(saved: tuple[Catalog, FirstSave]) -> None:
    catalog, note = saved
    found = proof(catalog, note)
    assert found.wrong == ()
    assert (found.world_size, found.tensors) == (1, 7)
    assert all(note.digests.values())
    assert catalog.entries()[0].verified is not None
    assert found.report(1).outcome == "equal"


def test_each_thing_that_differs_from_memory_is_named(saved: tuple[Catalog, FirstSave]) -> None:
    catalog, note = saved
    for name in note.digests:
        digest = note.digests[name]
        other = replace(note, digests={**note.digests, name: digest[:-1] + b"?"})
        [wrong] = proof(catalog, other).wrong
        assert wrong == f"{name} is not what rank 0 had at its save"
    more = replace(note, digests={**note.digests, "model.2.weight": b"x"})
    assert proof(catalog, more).wrong == ("model.2.weight is not in the checkpoint",)
    assert catalog.entries()[0].verified is None


def test_a_damaged_shard_is_named(saved: tuple[Catalog, FirstSave], tmp_path: Path) -> None:
    catalog, note = saved
    [shard] = tmp_path.rglob("*.distcp")
    content = bytearray(shard.read_bytes())
    content[catalog.find(1).manifests[0].shards[0].items[0].offset] ^= 1
    shard.write_bytes(content)
    found = proof(catalog, note)
    assert any("does not match its checksum" in wrong for wrong in found.wrong)
    report = found.report(1)
    assert report.outcome == "different"
    assert report.message.startswith("step 1, the first commit, could not be restored as it was")


def test_hashes_made_on_a_device_are_compared() -> None:
    """There they are sums. Here they are of the same tensors, in memory."""
    weight = torch.nn.Parameter(torch.zeros(3))
    one = digest_of_tensor(weight)
    sums = digest_of_tensor(weight, like=b"s")
    assert one != sums
    assert digest_of_tensor(weight, like=sums) == sums
    with torch.no_grad():
        weight[1] = 1e-30
    assert digest_of_tensor(weight, like=sums) != sums


def test_one_word_is_used_by_all() -> None:
    assert proving.PROVEN == in_place.PROVEN


def test_a_full_disk_costs_the_proof_and_no_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(note: FirstSave, folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(FirstSave, "leave", full)
    with se.Checkpointer({"t": torch.ones(1)}, storage=str(tmp_path)) as checkpoint:
        checkpoint.step(1)
        assert checkpoint.save()
        assert checkpoint.wait()


def _problems(path: Path, step: int, note: FirstSave) -> Iterator[str]:
    slot = Slot(path)
    header = slot.header()
    assert header is not None
    whole = reading_back.WholeCopy(step)
    for item in slot.items(header):
        data = memoryview(bytearray(slot.data[item.offset : item.offset + item.length]))
        yield reading_back.problem_of(item, data, note)
        whole.add(item, data)
    yield from whole.problems()


@settings(max_examples=drawn(25), derandomize=True)
@given(life=lives())
def test_no_state_that_comes_back_is_called_different(life: Life) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        state = life.begin()
        try:
            saver = OneSlot(Path(folder) / "slot", state)
            for step, changes in enumerate(life.changes, 1):
                for change in changes:
                    change(state)
                try:
                    saver.save(step)
                except LayoutChanged:
                    saver.plan()
                    saver.save(step)
        except UsageError:
            return
        step = len(life.changes)
        note = first_save_note(saver.view, 0, step)
        found = [*filter(None, _problems(Path(folder) / "slot", step, note))]
        assert found == []


def test_what_a_script_allows_is_allowed(saved: tuple[Catalog, FirstSave]) -> None:
    _, note = saved
    with torch.serialization.safe_globals([Config]):
        told = replace(note, allowed=safe_globals())
    assert f"{__name__}:Config" in told.allowed
    with torch.serialization.safe_globals([]):
        reading_back.allow(replace(told, allowed=(*told.allowed, "__main__:Other", "no.such:X")))
        assert Config in torch.serialization.get_safe_globals()


@pytest.mark.soak
def test_a_running_script_is_told(tmp_path: Path) -> None:
    """By a process of its own, which ends with it."""
    variables = {name: value for name, value in os.environ.items() if name != proving.PROVE}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    with subprocess.Popen(
        command, env=variables, text=True, stderr=subprocess.PIPE, cwd=tmp_path
    ) as script:
        assert script.stderr is not None
        told = next((line for line in script.stderr if "first commit" in line), "")
        script.terminate()
        script.stderr.read()
    assert re.search(r"step 1, the first commit, was read back: 8 tensors and [\d]+ values", told)


def _proven(folder: Path, storage: Path, commit: Commit) -> list[messages.Rehearsed]:
    """What the daemon tells that finds these notes at a commit."""
    told: list[messages.Rehearsed] = []

    async def prove() -> None:
        patience = ProofPatience(again=0.0, attempts=2)
        first = FirstCommit(folder, str(storage), told.append, patience)
        first.committed(commit)
        while first.is_read:
            await asyncio.sleep(0.05)

    asyncio.run(prove())
    return told


@pytest.mark.soak
def test_what_differs_is_told_and_what_could_not_be_read_is_not_called_proven(
    saved: tuple[Catalog, FirstSave],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    catalog, note = saved
    monkeypatch.undo()
    monkeypatch.delenv(proving.PROVE, raising=False)
    commit, folder = catalog.find(1).commit, tmp_path / "arena"
    folder.mkdir()
    replace(note, digests={**note.digests, "model.0.bias": b"x"}).leave(folder)
    [told] = _proven(folder, tmp_path, commit)
    assert (told.outcome, told.kind) == ("different", "proven")
    assert "model.0.bias is not what rank 0 had" in told.message
    assert not [*folder.iterdir()], "it is done once"

    replace(note, rank=1).leave(folder)
    assert _proven(folder, tmp_path, commit) == [], "the first rank's node tells that all is well"

    note.leave(folder)
    [left] = folder.iterdir()
    left.write_bytes(b"{")
    assert _proven(folder, tmp_path, commit) == []
    assert "could not be read back" in caplog.text
