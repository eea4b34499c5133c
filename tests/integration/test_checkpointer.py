"""The Checkpointer as a script uses it: alone, and across world sizes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from support.processes.patience import PATIENT
from support.processes.warm_python import WarmPython
from support.saving.ckpt_command import ckpt
from support.training.open_checkpointer import slots_are_waited_for
from support.training.small_model import make, make_seeded, one_step, weights
from torch import nn
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
from torch.distributed.checkpoint.api import CheckpointException

import spotelastic as se
from spotelastic.errors import SpotelasticError, UsageError

TESTS = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def each_save_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests name the steps that they go back to."""
    slots_are_waited_for(monkeypatch)


def train(python: WarmPython, folder: Path, *turns: str) -> list[dict[str, Any]]:
    """What each rank of each turn ("world:steps") told, in order."""
    folder.mkdir()
    python.run(
        "-m", "support.scripts.train_checkpointed", folder, folder / "store", *turns, check=True
    )
    return [
        json.loads((folder / f"{steps}-{rank}.json").read_text())
        for world, steps in (map(int, turn.split(":")) for turn in turns)
        for rank in range(world)
    ]


def test_training_across_two_one_and_three_ranks_equals_training_on_one(
    tmp_path: Path, warm_torch: WarmPython
) -> None:
    results = train(warm_torch, tmp_path / "resized", "2:4", "1:7", "3:10")
    assert [result["begun"] for result in results] == [0, 0, 4, 7, 7, 7]
    for ended in results[:2], results[3:]:
        assert len({result["digest"] for result in ended}) == 1
    [whole] = train(warm_torch, tmp_path / "whole", "1:10")
    assert results[-1]["norm"] == pytest.approx(whole["norm"], rel=1e-12)
    assert results[-1]["lr"] == whole["lr"]
    assert results[-1]["data"] == whole["data"]
    assert whole["data"] == {"epoch": 2, "seed": 4, "consumed": 16, "size": 30}


def test_a_run_that_stops_and_resumes_equals_one_that_does_not(tmp_path: Path) -> None:
    straight = make()
    torch.manual_seed(5)
    for _ in range(9):
        one_step(straight)

    torch.manual_seed(5)
    state = make_seeded(5)
    with se.Checkpointer(state, storage=str(tmp_path)) as checkpoint:
        assert checkpoint.restore() == 0
        for step in range(1, 6):
            state["epoch"] = step
            checkpoint.step(step, loss=one_step(state))
    resumed = make(seed=99)
    with se.Checkpointer(resumed, storage=str(tmp_path)) as checkpoint:
        assert checkpoint.restore() == 5
        assert resumed["epoch"] == 5
        for step in range(6, 10):
            checkpoint.step(step, loss=one_step(resumed))
    assert torch.equal(weights(resumed), weights(straight))


def test_a_run_has_one_id_until_it_begins_afresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_id() -> str:
        with se.Checkpointer(make(), storage=str(tmp_path)) as checkpoint:
            return checkpoint.run_id

    first = run_id()
    assert first and run_id() == first
    monkeypatch.setenv("SPOTELASTIC_FRESH", "1")
    assert run_id() not in ("", first)


def test_stock_dcp_loads_the_last_checkpoint(tmp_path: Path) -> None:
    state = make()
    with se.Checkpointer(state, storage=str(tmp_path)) as checkpoint:
        checkpoint.restore()
        for step in (1, 2, 3):
            checkpoint.step(step, loss=one_step(state))
    loader = """
import sys, torch, torch.distributed.checkpoint as dcp
folder = sys.argv[1]
target = {"model": {"0.weight": torch.zeros(8, 4), "2.bias": torch.zeros(2)}}
dcp.load(target, checkpoint_id=folder, no_dist=True)
torch.save(target, sys.argv[2])
ours = ("spotelastic_checkpoints", "spotelastic.training")
assert not [name for name in sys.modules if name.startswith(ours)]
"""
    folder = tmp_path / "1" / "step-00000003"
    out = tmp_path / "loaded.pt"
    subprocess.run([sys.executable, "-c", loader, folder, out], check=True, timeout=PATIENT)
    loaded = torch.load(out)["model"]
    assert torch.equal(loaded["0.weight"], state["model"][0].weight)
    assert torch.equal(loaded["2.bias"], state["model"][2].bias)


def test_a_run_on_s3_is_resumed_by_us_and_read_by_stock_dcp(bucket: str) -> None:
    storage = f"s3://{bucket}/gpt/checkpoints"
    state = make()
    with se.Checkpointer(state, storage=storage, checkpoint_every=2) as checkpoint:
        checkpoint.restore()
        for step in (1, 2, 3):
            checkpoint.step(step, loss=one_step(state))
    resumed = make(seed=1)
    with se.Checkpointer(resumed, storage=storage) as checkpoint:
        assert checkpoint.restore() == 3
    assert torch.equal(weights(resumed), weights(state))
    target = {"model": {"0.weight": torch.zeros(8, 4)}}
    dcp.load(target, storage_reader=FsspecReader(f"{storage}/1/step-00000003"), no_dist=True)
    assert torch.equal(target["model"]["0.weight"], state["model"][0].weight)


def test_the_last_step_is_committed_although_its_layout_is_new(tmp_path: Path) -> None:
    state = make()
    state["model"][2].requires_grad_(False)
    with se.Checkpointer(state, storage=str(tmp_path)) as checkpoint:
        for step in (1, 2):
            state["model"][2].requires_grad_(step == 2)
            checkpoint.step(step, loss=one_step(state))
    again = make(seed=1)
    with se.Checkpointer(again, storage=str(tmp_path)) as checkpoint:
        assert checkpoint.restore() == 2
    assert torch.equal(weights(again), weights(state))


def test_a_checkpoint_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    state = make()
    with se.Checkpointer(state, storage=str(tmp_path)) as checkpoint:
        checkpoint.restore()
        checkpoint.step(1, loss=one_step(state))
    other = {**make(), "model": nn.Linear(4, 8)}
    other["optimizer"] = torch.optim.AdamW(other["model"].parameters())
    with (
        pytest.raises(
            UsageError, match=r"model\.weight \(and 1 more\) are missing from it; it also"
        ),
        se.Checkpointer(other, storage=str(tmp_path)) as checkpoint,
    ):
        checkpoint.restore()


def test_a_storage_of_another_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTELASTIC_RUN", "first")
    with se.Checkpointer(make(), storage=str(tmp_path)):
        pass
    monkeypatch.setenv("SPOTELASTIC_RUN", "second")
    with (
        pytest.raises(SpotelasticError, match="belongs to the run first"),
        se.Checkpointer(make(), storage=str(tmp_path)),
    ):
        pass


def test_no_save_leaves_memory_behind(tmp_path: Path) -> None:
    state = make()
    with se.Checkpointer(state, storage=str(tmp_path), snapshot_every=1) as checkpoint:
        checkpoint.restore()
        for step in range(1, 20):
            checkpoint.step(step, loss=one_step(state))
        maps = Path("/proc/self/maps").read_text().splitlines()
        slots = {line.split()[-1] for line in maps if "/spotelastic-solo-" in line}
        arenas = {Path(slot).parent for slot in slots if slot != "(deleted)"}
        assert arenas and all(arena.exists() for arena in arenas)
    assert not any(arena.exists() for arena in arenas)


def trained(storage: str, steps: int, **options: Any) -> dict[str, Any]:
    """A run of `steps` steps, each of them committed."""
    state = make(seed=steps)
    with se.Checkpointer(state, storage=storage, checkpoint_every=1) as checkpoint:
        step = checkpoint.restore(**options)
        while step < steps:
            step += 1
            state["epoch"] = step
            checkpoint.step(step, loss=one_step(state))
            assert checkpoint.wait()
    return state


def resumed_at(storage: str, **options: Any) -> tuple[int, int]:
    state = make(seed=77)
    with se.Checkpointer(state, storage=storage) as checkpoint:
        return checkpoint.restore(**options), state["epoch"]


def test_a_run_is_sent_back_to_an_earlier_step_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = str(tmp_path)
    trained(storage, 4)
    with pytest.raises(UsageError, match=r"restore\(step=9\): this step was not committed"):
        resumed_at(storage, step=9)
    assert resumed_at(storage, step=2) == (2, 2)
    trained(storage, 3, step=2)
    assert resumed_at(storage) == (3, 3)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert resumed_at(storage, step=2) == (3, 3)


def flip(shard: Path, tensor: torch.Tensor) -> None:
    """The first byte of the tensor."""
    data = bytearray(shard.read_bytes())
    data[data.index(tensor.detach().numpy().tobytes())] ^= 1
    shard.write_bytes(data)


def test_a_damaged_checkpoint_is_left_for_the_one_before_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    state = trained(str(tmp_path), 3)
    flip(tmp_path / "1" / "step-00000003" / "__0_0.distcp", state["model"][0].weight)
    assert resumed_at(str(tmp_path)) == (2, 2)
    said = capfd.readouterr().err
    assert "step 3 cannot be restored" in said
    assert "does not match its checksum): going back to 2" in said


def test_a_reader_of_a_damaged_step_names_what_is_damaged(tmp_path: Path) -> None:
    state = trained(str(tmp_path), 1)
    folder = tmp_path / "1" / "step-00000001"
    target = {
        "model": {name: torch.zeros_like(t) for name, t in state["model"].state_dict().items()}
    }
    dcp.load(target, storage_reader=se.dcp.CheckpointReader(folder), no_dist=True)
    assert torch.equal(target["model"]["0.weight"], state["model"][0].weight)
    flip(folder / "__0_0.distcp", state["model"][0].weight)
    message = r"__0_0\.distcp: model\.0\.weight does not match its checksum"
    with pytest.raises(CheckpointException, match=message):
        dcp.load(target, storage_reader=se.dcp.CheckpointReader(folder), no_dist=True)


def test_a_step_whose_record_is_broken_still_restores_and_verify_finds_it(tmp_path: Path) -> None:
    trained(str(tmp_path), 3)
    (tmp_path / "1" / "step-00000003" / ".metadata").write_bytes(b"half a rec")
    verified = ckpt("verify", tmp_path)
    assert verified.code == 2
    assert ".metadata does not agree with the manifests" in verified.err
    assert resumed_at(str(tmp_path)) == (3, 3)


def test_a_save_now_is_committed_whatever_the_schedule_says(tmp_path: Path) -> None:
    state = make()
    never: dict[str, Any] = {"snapshot_every": 0, "checkpoint_every": 0}
    with se.Checkpointer(state, storage=str(tmp_path), **never) as checkpoint:
        checkpoint.restore()
        with pytest.raises(UsageError, match="before checkpoint"):
            checkpoint.save()
        for step in (1, 2):
            checkpoint.step(step, loss=one_step(state))
        assert checkpoint.save()
        assert checkpoint.save()
        assert checkpoint.wait()
        assert [path.name for path in (tmp_path / "1").iterdir()] == ["step-00000002"]
        assert not checkpoint.interrupted


def test_a_mistake_in_a_script_is_told_in_one_line(tmp_path: Path) -> None:
    script = """if True:
        import torch, spotelastic as se
        with se.Checkpointer({"t": torch.ones(1)}, storage="dropbox://bucket/run"):
            pass
    """
    told = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENT,
        check=False,
    )
    assert told.stderr.strip() == (
        "spotelastic: dropbox://bucket/run needs a package: pip install dropboxdrivefs"
    )
    assert told.returncode == 1
