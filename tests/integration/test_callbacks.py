"""The examples for other trainers, where these are installed: a run in two parts equals a whole."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

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


@pytest.mark.parametrize(
    ("package", "train"), [("transformers", with_huggingface), ("lightning", with_lightning)]
)
def test_a_run_in_two_parts_equals_a_whole_one(
    package: str, train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first part ends in the middle of the second epoch."""
    pytest.importorskip(package)
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    monkeypatch.chdir(tmp_path)
    train(15, str(tmp_path / "parts"))
    resumed = train(30, str(tmp_path / "parts"))
    whole = train(30, str(tmp_path / "whole"))
    for found, expected in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert torch.equal(found, expected)
