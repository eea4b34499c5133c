"""The examples for other trainers, where these are installed: `make test-examples`."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from spotelastic import Checkpointer

EXAMPLES = Path(__file__).parent.parent.parent / "examples"

Train = Callable[[int, str], nn.Module]


def with_huggingface(steps: int, storage: str) -> nn.Module:
    import huggingface_trainer  # type: ignore[import-not-found]

    trainer = huggingface_trainer.main(steps, storage)
    assert trainer.state.global_step == steps
    return trainer.model


def with_lightning(steps: int, storage: str) -> nn.Module:
    import lightning_callback  # type: ignore[import-not-found]

    return lightning_callback.main(steps, storage)


@pytest.fixture(params=[("transformers", with_huggingface), ("lightning", with_lightning)])
def train(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    package, train = request.param
    pytest.importorskip(package)
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    monkeypatch.chdir(tmp_path)
    return train  # type: ignore[no-any-return]


def test_a_run_in_two_parts_equals_a_whole_one(train: Train, tmp_path: Path) -> None:
    """The first part ends in the middle of the second epoch."""
    train(15, str(tmp_path / "parts"))
    resumed = train(30, str(tmp_path / "parts"))
    whole = train(30, str(tmp_path / "whole"))
    for found, expected in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert torch.equal(found, expected)


def test_training_that_failed_may_begin_again_in_its_process(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves = Checkpointer.step

    def failing(checkpoint: Checkpointer, step: int, loss: object = None) -> None:
        saves(checkpoint, step, loss)
        if step == 7:
            raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "step", failing)
        with pytest.raises(ZeroDivisionError):
            train(15, str(tmp_path / "run"))
    train(15, str(tmp_path / "run"))


def test_what_kept_training_from_beginning_is_what_is_told(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Checkpointer, "__enter__", failing)
    with pytest.raises(ZeroDivisionError):
        train(15, str(tmp_path / "run"))
