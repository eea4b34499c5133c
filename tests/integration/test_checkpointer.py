"""The Checkpointer as a script uses it: alone, under an agent's daemon, and across world sizes."""

import functools
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import pytest
import torch
import torch.distributed.checkpoint as dcp
from moto.server import ThreadedMotoServer
from spotelastic_checkpoints.wire import (
    Branch,
    DaemonEvent,
    Failed,
    Points,
    Resume,
    Schedule,
    Sealed,
)
from support.checkpoints import cluster, under_agent
from torch import nn
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

import spotelastic as se
from spotelastic.errors import SpotelasticError, UsageError
from spotelastic.training import state as training_state
from spotelastic.training.environment import Ranks

TESTS = Path(__file__).parent.parent


def train(folder: Path, *turns: str) -> list[dict[str, Any]]:
    """What each rank of each turn ("world:steps") told, in order."""
    folder.mkdir()
    subprocess.run(
        [sys.executable, "-m", "support.train_checkpointed", folder, folder / "store", *turns],
        cwd=TESTS,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=110,
    )
    return [
        json.loads((folder / f"{steps}-{rank}.json").read_text())
        for world, steps in (map(int, turn.split(":")) for turn in turns)
        for rank in range(world)
    ]


def test_training_across_two_one_and_three_ranks_equals_training_on_one(tmp_path: Path) -> None:
    results = train(tmp_path / "resized", "2:4", "1:7", "3:10")
    assert [result["begun"] for result in results] == [0, 0, 4, 7, 7, 7]
    for ended in results[:2], results[3:]:
        assert len({result["digest"] for result in ended}) == 1
    [whole] = train(tmp_path / "whole", "1:10")
    assert results[-1]["norm"] == pytest.approx(whole["norm"], rel=1e-12)
    assert results[-1]["lr"] == whole["lr"]
    assert results[-1]["data"] == whole["data"]
    assert whole["data"] == {"epoch": 2, "seed": 4, "consumed": 16, "size": 30}


def make(seed: int = 0) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return {"model": model, "optimizer": optimizer, "epoch": 0}


def one_step(state: Mapping[str, Any], scale: float = 1.0) -> torch.Tensor:
    """Draws data and dropout from the global generator."""
    loss: torch.Tensor = state["model"](torch.randn(3, 4)).square().mean() * scale
    state["optimizer"].zero_grad()
    loss.backward()
    state["optimizer"].step()
    return loss.detach()


def weights(state: Mapping[str, Any]) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in state["model"].parameters()])


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


def make_seeded(seed: int) -> dict[str, Any]:
    state = make()
    torch.manual_seed(seed)
    return state


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
    subprocess.run([sys.executable, "-c", loader, folder, out], check=True, timeout=60)
    loaded = torch.load(out)["model"]
    assert torch.equal(loaded["0.weight"], state["model"][0].weight)
    assert torch.equal(loaded["2.bias"], state["model"][2].bias)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    boto3.client("s3").create_bucket(Bucket="runs")
    yield "runs"
    server.stop()


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


def test_a_new_round_goes_on_from_memory_with_the_same_random_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(tmp_path) as [node]:
        events: list[DaemonEvent] = []
        node.agent.subscribe(events.append)
        state = make_seeded(3)
        with (
            under_agent(node, "r1", Resume(), monkeypatch),
            pytest.raises(RuntimeError),
            se.Checkpointer(state) as checkpoint,
        ):
            checkpoint.restore()
            for step in (1, 2, 3):
                checkpoint.step(step, loss=one_step(state))
            raise RuntimeError
        [snapshot] = node.agent.status().snapshots
        assert (snapshot.step, snapshot.whole) == (2, True)

        again = make(seed=8)
        resume = Resume("memory", 2, "r1", snapshot.layout)
        with (
            under_agent(node, "r2", resume, monkeypatch, lineage=[Branch("r1", 2)]),
            se.Checkpointer(again) as checkpoint,
        ):
            assert checkpoint.restore() == 2
            one_step(again)
        assert torch.equal(weights(again), weights(state))
        points = [p for event in events if isinstance(event, Points) for p in event.points]
        assert [point.step for point in points] == [1, 2, 3]
        assert all(point.loss is not None for point in points)


def test_a_parameter_that_wakes_up_late_costs_one_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(tmp_path) as [node]:
        events: list[DaemonEvent] = []
        node.agent.subscribe(events.append)
        state = make()
        state["model"][2].requires_grad_(False)
        with (
            under_agent(node, "r1", Resume(), monkeypatch),
            se.Checkpointer(state) as checkpoint,
        ):
            checkpoint.restore()
            for step in range(1, 5):
                if step == 3:
                    state["model"][2].requires_grad_(True)
                one_step(state)
                checkpoint.step(step)
            assert [type(event) for event in events].count(Failed) <= 1
            for step in (5, 6):
                one_step(state)
                checkpoint.step(step)
        steps = {snapshot.step for snapshot in node.agent.status().snapshots}
        assert 6 in steps
        newest = max(node.agent.status().snapshots, key=lambda s: s.step)
        again = make(seed=8)
        with (
            under_agent(
                node,
                "r2",
                Resume("memory", 6, "r1", newest.layout),
                monkeypatch,
                lineage=[Branch("r1", 6)],
            ),
            se.Checkpointer(again) as checkpoint,
        ):
            assert checkpoint.restore() == 6
        for parameter, other in zip(
            state["model"].parameters(), again["model"].parameters(), strict=True
        ):
            saved = state["optimizer"].state[parameter]["exp_avg"]
            assert torch.equal(again["optimizer"].state[other]["exp_avg"], saved)


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
            UsageError, match=r"model\.weight \(and 7 more\) are missing from it; it also"
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
    before = set(Path("/dev/shm").glob("spotelastic-solo-*"))
    state = make()
    with se.Checkpointer(state, storage=str(tmp_path), snapshot_every=1) as checkpoint:
        checkpoint.restore()
        for step in range(1, 20):
            checkpoint.step(step, loss=one_step(state))
    assert set(Path("/dev/shm").glob("spotelastic-solo-*")) <= before


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


def test_a_state_of_several_files_is_read_by_us_and_by_stock_dcp(tmp_path: Path) -> None:
    state: dict[str, Any] = {f"w{number}": torch.rand(3 << 20) for number in range(8)}
    saved = {name: tensor.clone() for name, tensor in state.items()}
    with se.Checkpointer(state, storage=str(tmp_path)) as checkpoint:
        checkpoint.step(1)
    folder = tmp_path / "1" / "step-00000001"
    assert len(list(folder.glob("__0_*.distcp"))) > 2

    target = {name: torch.zeros_like(tensor) for name, tensor in saved.items()}
    dcp.load(target, checkpoint_id=folder, no_dist=True)
    assert all(torch.equal(target[name], tensor) for name, tensor in saved.items())
    for tensor in state.values():
        tensor.zero_()
    with se.Checkpointer(state, storage=str(tmp_path)) as checkpoint:
        assert checkpoint.restore() == 1
    assert all(torch.equal(state[name], tensor) for name, tensor in saved.items())


def test_a_run_is_sent_back_to_an_earlier_step_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = str(tmp_path)
    trained(storage, 4)
    with pytest.raises(UsageError, match=r"restore\(step=9\): no such step was committed"):
        resumed_at(storage, step=9)
    assert resumed_at(storage, step=2) == (2, 2)
    trained(storage, 3, step=2)
    assert resumed_at(storage) == (3, 3)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert resumed_at(storage, step=2) == (3, 3)


def test_a_damaged_checkpoint_is_left_for_the_one_before_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    state = trained(str(tmp_path), 3)
    shard = tmp_path / "1" / "step-00000003" / "__0_0.distcp"
    data = bytearray(shard.read_bytes())
    data[data.index(state["model"][0].weight.detach().numpy().tobytes())] ^= 1
    shard.write_bytes(data)
    assert resumed_at(str(tmp_path)) == (2, 2)
    said = capfd.readouterr().err
    assert "step 3 cannot be restored" in said
    assert "does not match its checksum): going back to 2" in said


def test_a_save_now_is_committed_whatever_the_schedule_says(tmp_path: Path) -> None:
    state = make()
    options = {"snapshot_every": 0, "checkpoint_every": 0}
    with se.Checkpointer(state, storage=str(tmp_path), **options) as checkpoint:
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
        with se.Checkpointer({"t": torch.ones(1)}, storage="gs://bucket/run"):
            pass
    """
    told = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert told.stderr.strip() == (
        "spotelastic: gs://bucket/run needs a package: pip install gcsfs"
    )
    assert told.returncode == 1


def test_a_notice_and_a_save_ahead_are_seen_by_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(tmp_path) as [node]:
        state = make()
        with (
            under_agent(node, "r1", Resume(), monkeypatch),
            se.Checkpointer(state) as checkpoint,
        ):
            checkpoint.step(1, loss=one_step(state))
            assert not checkpoint.interrupted
            node.agent.set_target("r1", "somebody comes", 5)
            assert checkpoint.interrupted
            node.agent.set_target("r1", "somebody comes", 0)
            assert not checkpoint.interrupted
            node.agent.hurry(time.time() + 60)
            assert checkpoint.interrupted


def test_other_intervals_hold_from_the_step_that_all_wait_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(tmp_path) as [node]:
        state, sealed, last = make(), [], threading.Event()

        def release(event: DaemonEvent) -> None:
            if isinstance(event, Sealed):
                sealed.append((event.step, event.waiting))
                if event.waiting:
                    node.agent.set_target("r1", "tune", 0, Schedule(3, 6))
                if event.step == 12:
                    last.set()

        node.agent.subscribe(release)
        with (
            under_agent(node, "r1", Resume(), monkeypatch),
            se.Checkpointer(state) as checkpoint,
        ):
            for step in range(1, 13):
                checkpoint.step(step, loss=one_step(state))
                if step == 1:
                    assert checkpoint._client is not None
                    assert checkpoint._client.ready.wait(30), "no save is left out for memory"
                if step == 3:
                    node.agent.set_target("r1", "tune", 5)
            assert last.wait(30)
            assert checkpoint.wait(30)
            status = node.agent.status()
            assert status.commit is not None and status.commit.step == 12
        by_two, agreed, by_three = [2, 4], [5], [6, 9, 12]
        assert [step for step, _ in sealed] == [*by_two, *agreed, *by_three]
        assert [step for step, waited in sealed if waited] == agreed
        assert status.commit_time > 0
        assert status.workers[0].stall > 0


class Counting(nn.Module):
    """Keeps something beside tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.calls = 0

    def get_extra_state(self) -> int:
        return self.calls

    def set_extra_state(self, state: int) -> None:
        self.calls = state


def test_what_modules_keep_beside_tensors_is_saved_as_it_is_then(tmp_path: Path) -> None:
    state: dict[str, Any] = {"model": nn.Sequential(Counting(), nn.Linear(2, 2))}
    with se.Checkpointer(state, storage=str(tmp_path), checkpoint_every=1) as checkpoint:
        for step in (1, 2):
            state["model"][0].calls = 10 * step
            checkpoint.step(step)
    again: dict[str, Any] = {"model": nn.Sequential(Counting(), nn.Linear(2, 2))}
    with se.Checkpointer(again, storage=str(tmp_path)) as checkpoint:
        assert checkpoint.restore() == 2
    assert again["model"][0].calls == 20
    assert torch.equal(again["model"][1].weight, state["model"][1].weight)


def test_a_save_of_an_unchanged_layout_asks_nobody_for_a_state_dict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def counted(name: str) -> Any:
        original = getattr(training_state, name)

        def call(*arguments: Any, **options: Any) -> Any:
            asked.append(name)
            return original(*arguments, **options)

        return call

    for name in ("get_model_state_dict", "get_optimizer_state_dict", "flatten_state_dict"):
        monkeypatch.setattr(training_state, name, counted(name))
    monkeypatch.setattr(Ranks, "gather", lambda _, value: asked.append("gather") or [value])
    state = make()
    with se.Checkpointer(state, storage=str(tmp_path), snapshot_every=1) as checkpoint:
        checkpoint.step(1, loss=one_step(state))
        assert {"get_model_state_dict", "get_optimizer_state_dict", "gather"} <= set(asked)
        asked.clear()
        for step in range(2, 8):
            checkpoint.step(step, loss=one_step(state))
        assert asked == []


class Notes:
    """Says in its state what names with dots in them cannot: kinds of keys, what is empty."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def test_a_state_comes_back_with_its_keys_and_containers_as_they_were(tmp_path: Path) -> None:
    def others(seed: int) -> dict[str, Any]:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.AdamW([nn.Parameter(torch.full((2,), float(seed)))], lr=seed)
        return {
            "model": model,
            "of_a_model_elsewhere": optimizer,
            "schedule": torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5] if seed else [1]),
            "partial": torch.optim.lr_scheduler.LambdaLR(optimizer, [functools.partial(pow, 0.5)]),
            "notes": Notes({1: {"empty": {}, "1": [{}, {"t": torch.arange(seed)}], 2: (seed,)}}),
        }

    state = others(7)
    optimizer = state["of_a_model_elsewhere"]
    optimizer.param_groups[0]["params"][0].grad = torch.ones(2)
    optimizer.step()
    with se.Checkpointer(state, storage=str(tmp_path)) as checkpoint:
        checkpoint.step(1)
    again = others(0)
    with se.Checkpointer(again, storage=str(tmp_path)) as checkpoint:
        checkpoint.restore()
    assert again["schedule"].milestones == Counter({3: 1, 5: 1})
    assert again["schedule"].state_dict() == state["schedule"].state_dict()
    assert again["partial"].state_dict() == state["partial"].state_dict()
    assert repr(again["notes"].state) == repr(state["notes"].state)
    [moments] = again["of_a_model_elsewhere"].state.values()
    [expected] = optimizer.state.values()
    assert torch.equal(moments["exp_avg"], expected["exp_avg"])


def test_an_optimizer_of_two_models_is_saved_by_numbers(tmp_path: Path) -> None:
    def pair(seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        left, right = nn.Linear(3, 2), nn.Linear(2, 1)
        optimizer = torch.optim.AdamW([*left.parameters(), *right.parameters()])
        return {"left": left, "right": right, "both": optimizer}

    def one(state: dict[str, Any]) -> None:
        state["right"](state["left"](torch.ones(1, 3))).sum().backward()
        state["both"].step()
        state["both"].zero_grad()

    state, again = pair(1), pair(2)
    one(state)
    with se.Checkpointer(state, storage=str(tmp_path)) as checkpoint:
        checkpoint.step(1)
    with se.Checkpointer(again, storage=str(tmp_path)) as checkpoint:
        checkpoint.restore()
    one(state)
    one(again)
    assert torch.equal(again["left"].weight, state["left"].weight)
    assert torch.equal(again["right"].weight, state["right"].weight)
