"""What `--exact` sets and compares: everything but the order of sums that decides the last bits."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import spotelastic as se
from spotelastic.errors import UsageError
from spotelastic.linux import gpu_models
from spotelastic.training.runtime import conditions
from spotelastic.training.runtime.session import Ranks

SETTINGS = ("CUBLAS_WORKSPACE_CONFIG", "OMP_NUM_THREADS", "SPOTELASTIC_EXACT")


@dataclass(frozen=True)
class Among(Ranks):
    """The first of several ranks, whose answers are given."""

    others: tuple[tuple[str, conditions.Conditions], ...] = ()

    def gather(self, value: Any) -> list[Any]:
        return [value, *self.others]


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave nothing set."""
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    cudnn, threads = torch.backends.cudnn, torch.get_num_threads()
    held = cudnn.benchmark, cudnn.deterministic
    yield
    os.environ.pop(SETTINGS[0], None)
    torch.use_deterministic_algorithms(False)
    cudnn.benchmark, cudnn.deterministic = held
    torch.set_num_threads(threads)


def state() -> dict[str, Any]:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return {
        "model": model,
        "optimizer": optimizer,
        "data": se.ElasticSampler(30, 6, virtual_ranks=3),
    }


def among(**differs: str) -> Among:
    """Two ranks, of which the second has something else."""
    theirs = {**conditions.found(), **{key.replace("_", " "): differs[key] for key in differs}}
    return Among(0, 2, 0, "i-a", others=(("i-b", theirs),))


def test_all_is_set_that_can_be_when_a_checkpointer_is_made() -> None:
    torch.set_num_threads(2)
    se.Checkpointer(state(), exact=True)
    its = conditions.found()
    assert its["deterministic algorithms"] == "True"
    assert its["cuDNN's choice of algorithms"] == "False, True"
    assert its["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert its["threads"] == "1"
    assert "threads 1" in conditions.told(its) and "\n" not in conditions.told(its)


def test_what_the_user_says_of_threads_and_workspaces_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    torch.set_num_threads(2)
    se.Checkpointer(state(), exact=True)
    its = conditions.found()
    assert (its["threads"], its["CUBLAS_WORKSPACE_CONFIG"]) == ("2", ":16:8")


def test_the_script_counts_before_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTELASTIC_EXACT", "1")
    assert conditions.is_exact(None) and not conditions.is_exact(False)
    monkeypatch.setenv("SPOTELASTIC_EXACT", "")
    assert conditions.is_exact(True) and not conditions.is_exact(None)


@pytest.mark.parametrize("sampler", [None, se.ElasticSampler(30, 6)])
def test_a_state_without_virtual_ranks_is_refused_before_anything_is_made(sampler: Any) -> None:
    without = {**state(), "data": sampler}
    with pytest.raises(UsageError, match=r"virtual_ranks=N\) into the state"):
        se.Checkpointer(without, exact=True)
    assert not torch.are_deterministic_algorithms_enabled()
    se.Checkpointer(without)


def test_no_optimizer_steps_before_there_is_a_checkpointer() -> None:
    entries = state()
    conditions.expect_checkpointer()
    with pytest.raises(UsageError, match="no sampler of the state has virtual ranks"):
        entries["optimizer"].step()
    se.Checkpointer(entries, exact=False)
    entries["optimizer"].step()


@pytest.mark.parametrize("name", [*conditions.found()])
def test_a_rank_that_differs_is_named_with_its_node(name: str) -> None:
    assert conditions.agree(among()) == conditions.found()
    odd = {**conditions.found(), name: "another"}
    with pytest.raises(UsageError, match=f"rank 1 on i-b has {name} another, and rank 0 on i-a"):
        conditions.agree(Among(0, 2, 0, "i-a", others=(("i-b", odd),)))


def test_what_another_version_does_not_know_is_not_compared() -> None:
    older = {name: value for name, value in conditions.found().items() if name != "threads"}
    conditions.agree(Among(0, 2, 0, "i-a", others=(("i-b", older),)))
    conditions.refuse_others(older, conditions.found())
    conditions.refuse_others({**conditions.found(), "new": "1"}, conditions.found())


def test_a_run_that_was_begun_on_other_kernels_is_refused() -> None:
    conditions.refuse_others(None, conditions.found())
    with pytest.raises(UsageError, match="begun with GPU NVIDIA A10G, and this node has none"):
        conditions.refuse_others({**conditions.found(), "GPU": "NVIDIA A10G"}, conditions.found())


def trained(folder: Path, *, steps: int, exact: bool) -> None:
    entries = state()
    with se.Checkpointer(entries, storage=str(folder), rehearse=False, exact=exact) as checkpoint:
        for step in checkpoint.steps(steps):
            with step:
                for micro in entries["data"].microbatches():
                    (entries["model"](torch.ones(2, 4)).sum() * micro.weight).backward()
                entries["optimizer"].step()


def test_a_run_goes_on_as_it_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path, steps=1, exact=True)
    assert "exact: set are deterministic algorithms" in capfd.readouterr().err
    trained(tmp_path, steps=2, exact=True)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    torch.set_num_threads(2)
    with pytest.raises(UsageError, match="begun with threads 1, and this node has 2"):
        trained(tmp_path, steps=3, exact=True)
    trained(tmp_path, steps=3, exact=False)


def test_how_products_round_is_told_however_it_was_set() -> None:
    matmul: Any = torch.backends.cuda.matmul
    before = conditions.found()["precision of products"]
    try:
        torch.set_float32_matmul_precision("high")
        by_its_older_name = conditions.found()["precision of products"]
        matmul.fp32_precision = "ieee"
        assert conditions.found()["precision of products"] != by_its_older_name != before
    finally:
        torch.set_float32_matmul_precision("highest")
        matmul.fp32_precision = "none"


def test_models_of_gpus_are_told_once_each(tmp_path: Path) -> None:
    assert gpu_models(tmp_path) == "none"
    for number, name in enumerate(("NVIDIA L4", "NVIDIA L4", "NVIDIA A10G")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "information").write_text(
            f"Model: \t\t {name}\nIRQ:   \t\t 11\nGPU UUID: \t x\n"
        )
    assert gpu_models(tmp_path) == "NVIDIA A10G, NVIDIA L4"
