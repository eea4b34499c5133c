"""A run whose loss becomes NaN, and goes on for longer than checkpoints are kept."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from spotelastic_checkpoints.catalog.catalog import Catalog
from spotelastic_checkpoints.storage.folder import FolderStorage
from support.processes.patience import PATIENT, eventually
from support.training.open_checkpointer import client_of
from torch import nn

import spotelastic as se

KEPT = 3


def kept(storage: Path) -> list[int]:
    return [entry.step for entry in Catalog(FolderStorage(storage)).entries()]


def train(storage: Path, until: int, loss: Callable[[int], float | None]) -> list[int]:
    """Make steps until this one, commit each, and return what is kept at the end."""
    state = {"model": nn.Linear(2, 1)}
    with se.Checkpointer(state, storage=str(storage), checkpoint_every=0) as checkpoint:
        client = client_of(checkpoint)

        def is_idle() -> bool:
            status = client.status()
            return status is not None and not status.collecting

        for step in checkpoint.steps(until):
            with step:
                step.loss, step.samples = loss(step.number), 32
            assert checkpoint.save() and checkpoint.wait(PATIENT)
            eventually(is_idle)
        status = client.status()
        assert status is not None
        assert [(each.total, each.samples) for each in status.workers] == [(until, 32.0)]
        return kept(storage)


@pytest.mark.parametrize("bad", [math.nan, math.inf], ids=str)
def test_the_last_good_checkpoints_stay_until_losses_are_finite(tmp_path: Path, bad: float) -> None:
    first = train(tmp_path, 5, lambda step: 1.0 / step)
    assert first == [3, 4, 5]
    # Every other step reports nothing, as scripts do that log seldom.
    diverged = train(tmp_path, 12, lambda step: bad if step % 2 == 0 else None)
    assert diverged == [3, 4, 5, *range(6, 13)]
    # Another process, another daemon: it has heard of no loss when its first steps are committed.
    silent = train(tmp_path, 14, lambda step: None)
    assert silent == [3, 4, 5, *range(6, 15)]
    again = train(tmp_path, 16, lambda step: 0.5)
    assert len(again) == KEPT and again[-1] == 16


def test_a_loop_of_the_scripts_own_says_where_it_ends(tmp_path: Path) -> None:
    state = {"model": nn.Linear(2, 1)}
    with se.Checkpointer(state, storage=str(tmp_path)) as checkpoint:
        checkpoint.restore()
        checkpoint.step(1, 0.5, samples=4, total=77)
        status = client_of(checkpoint).status()
        assert status is not None
        assert [(each.total, each.samples) for each in status.workers] == [(77, 4.0)]
