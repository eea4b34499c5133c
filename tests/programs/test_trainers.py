"""Trainers of other libraries that are interrupted equal uninterrupted ones, with their history."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import interrupted_trainers
import pytest
import torch

from spotelastic.integrations.growing import LEAST, as_text
from spotelastic.integrations.libraries import require

pytestmark = [pytest.mark.programs, pytest.mark.timeout(600)]

MID_EPOCH, AT_EPOCHS_END = (4, (7, 23)), (10, (12, 20, 31))
"""How often is saved, and where the run is interrupted."""


@pytest.mark.parametrize(("every", "cuts"), [MID_EPOCH, AT_EPOCHS_END])
@pytest.mark.parametrize(
    ("library", "arguments"),
    [
        ("transformers", {}),
        ("transformers", {"gradient_accumulation_steps": 3}),
        ("transformers", {"eval_strategy": "steps", "eval_steps": 4}),
        ("transformers", {"num_train_epochs": 1, "max_steps": 35}),
        ("transformers", {"resume": True, "save_strategy": "steps", "save_steps": 5}),
        ("lightning", {}),
        ("lightning", {"val_check_interval": 4}),
        ("lightning", {"check_val_every_n_epoch": 2}),
        ("lightning", {"check_val_every_n_epoch": None, "val_check_interval": 7}),
        ("lightning", {"max_epochs": -1, "max_steps": 35}),
    ],
    ids=str,
)
def test_a_run_in_parts_equals_a_whole_one(
    library: str, arguments: dict[str, Any], every: int, cuts: tuple[int, ...], tmp_path: Path
) -> None:
    pytest.importorskip(library)
    trained: Callable[..., Any] = getattr(interrupted_trainers, library)
    resumed, kept = trained(tmp_path / "parts", cuts, every, **arguments)
    whole, expected = trained(tmp_path / "whole", (), every, **arguments)
    assert kept == expected
    for found, wanted in zip(resumed, whole, strict=True):
        assert torch.equal(found, wanted)


def test_accumulated_batches_of_lightning_are_one_step(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    trained, options = interrupted_trainers.lightning, {"accumulate_grad_batches": 3}
    resumed, kept = trained(tmp_path / "parts", (5, 11), 4, **options)
    whole, expected = trained(tmp_path / "whole", (), 4, **options)
    assert kept == expected
    for found, wanted in zip(resumed, whole, strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("every", [0, 4], ids=["nothing saved yet", "saved"])
def test_a_checkpoint_of_the_stock_trainer_is_the_beginning(every: int, tmp_path: Path) -> None:
    """Its weights, optimizer and step; the Checkpointer's own state counts once there is one."""
    pytest.importorskip("transformers")
    stock, seen = interrupted_trainers.stock_transformers(tmp_path / "stock", 15)
    first = interrupted_trainers.from_stock(tmp_path, every, until=20)
    assert first.steps == [*range(16, 21)]
    assert first.moments == seen
    for found, wanted in zip(first.begun, stock, strict=True):
        assert torch.equal(found, wanted)
    assert first.consumed == 20 % interrupted_trainers.STEPS_IN_EPOCH * 24
    again = interrupted_trainers.from_stock(tmp_path, every, until=25)
    assert again.steps == [*range(21, 26)], "the Checkpointer has a later step"


def test_a_forward_pass_is_made_once_for_each_step_and_outputs_where_they_are_asked_for(
    tmp_path: Path,
) -> None:
    pytest.importorskip("transformers")
    asked = interrupted_trainers.compute_loss_of_a_subclass(tmp_path)
    assert asked == [{"num_items_in_batch"}] * 5


@pytest.mark.parametrize("library", ["transformers", "lightning"])
def test_a_run_that_is_over_is_left_as_it_is(library: str, tmp_path: Path) -> None:
    pytest.importorskip(library)
    trained: Callable[..., Any] = getattr(interrupted_trainers, library)
    whole, _ = trained(tmp_path, (), 10)
    again, _ = trained(tmp_path, (), 10)
    for found, wanted in zip(again, whole, strict=True):
        assert torch.equal(found, wanted)


def test_a_library_that_is_missing_or_old_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = tmp_path / "lightning-0.1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Name: lightning\nVersion: 0.1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match=r"lightning 2\.6 or newer, and 0\.1\.0 is .*pip install"):
        require("lightning")


def test_a_history_that_grows_keeps_its_length_for_long() -> None:
    history = [{"loss": 0.5, "step": step} for step in range(400)]
    lengths = {len(as_text(history[:count])) for count in range(401)}
    assert lengths == {LEAST}
    assert json.loads(as_text(history * 10)) == history * 10
