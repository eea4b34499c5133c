"""What a run has computed does not depend on where it ended meanwhile, nor on when it was saved.

Epochs whose ends change the state and draw random numbers are made at once, and in two runs: one
that ends after fewer epochs, or fails, and one that goes on.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import spotelastic as se
from spotelastic.errors import UsageError
from spotelastic.training.restore.loops import begins_in

STEPS, EPOCHS = 3, 4
"""Steps of an epoch, and epochs of the whole run."""
Scheduler = Any
SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Scheduler]] = {
    "StepLR": lambda optimizer: lr_scheduler.StepLR(optimizer, 1, 0.5),
    "MultiStepLR": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [1, 3]),
    "CosineAnnealingLR": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 4),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=20),
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (n + 1)),
    "ReduceLROnPlateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
    "WarmRestarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2),
    "SequentialLR": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.ConstantLR(optimizer, 0.1), lr_scheduler.ExponentialLR(optimizer, 0.9)],
        milestones=[2],
    ),
}
EVERY = (0, 1, 3, 6, 32)
"""Snapshots and checkpoints: never, always, at each epoch's end, at the first run's, at none."""
FORMS = ("epochs", "entered again", "all epochs")
PLACES = ("epoch", "step")
"""Where the scheduler steps."""
ENDS = ("end", "in the epoch's end", "in an epoch", "early")
"""How the first of two runs ends."""


class Interrupted(Exception):
    """Stands for whatever ends a process."""


class Script:
    """A model, what trains it, and what its epochs do."""

    def __init__(self, scheduler: str, place: str) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.3), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        self.scheduler = SCHEDULERS[scheduler](self.optimizer)
        self.state = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "history": [],
        }
        self._steps_by = (1.0,) if scheduler == "ReduceLROnPlateau" else ()
        self._place = place

    def step(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss: torch.Tensor = self.model(torch.randn(2, 3)).square().mean()
        loss.backward()
        self.optimizer.step()
        if self._place == "step":
            self.scheduler.step(*self._steps_by)
        return loss

    def end(self) -> None:
        self.state["history"] = [*self.state["history"], torch.rand(1).item()]  # as an evaluation
        if self._place == "epoch":
            self.scheduler.step(*self._steps_by)

    def outcome(self) -> Any:
        """Return all that training has made."""
        weights = [each.detach().numpy().tobytes() for each in self.model.parameters()]
        rate = self.optimizer.param_groups[0]["lr"]
        return weights, self.scheduler.state_dict(), rate, self.state["history"]


@cache
def at_once(scheduler: str, place: str) -> Any:
    script = Script(scheduler, place)
    for _ in range(EPOCHS):
        for _ in range(STEPS):
            script.step()
        script.end()
    return script.outcome()


def trained(
    storage: str, every: tuple[int, int], form: str, ends: str, script: Script, epochs: int
) -> list[int]:
    """Return the epochs whose ends were made."""
    ended: list[int] = []
    schedule: dict[str, Any] = {"snapshot_every": every[0], "checkpoint_every": every[1]}
    with (
        suppress(Interrupted),
        se.Checkpointer(script.state, storage=storage, **schedule) as checkpoint,
    ):
        for epoch in numbers(checkpoint, form, epochs):
            for step in checkpoint.steps((epoch + 1) * STEPS):
                with step:
                    step.loss = script.step()
                if ends == "in an epoch" and step.number == 5:
                    raise Interrupted
            script.end()
            ended.append(epoch)
            if epoch == 1 and ends == "in the epoch's end":
                raise Interrupted
            if epoch == 1 and ends == "early":
                break
        torch.rand(5)  # a last evaluation
    return ended


def numbers(checkpoint: se.Checkpointer, form: str, epochs: int) -> Iterator[int]:
    match form:
        case "epochs":
            return checkpoint.epochs(epochs, STEPS)
        case "entered again":  # as scripts are that were adapted by an earlier version
            return iter(range(max(checkpoint.restore() - 1, 0) // STEPS, epochs))
    return iter(range(epochs))


DRAWN = [
    *((name, PLACES[n % 2], (0, 3), "epochs", ENDS[n % 4]) for n, name in enumerate(SCHEDULERS)),
    *random.Random(53).sample(
        [*itertools.product(SCHEDULERS, PLACES, itertools.product(EVERY, EVERY), FORMS, ENDS)], 8
    ),
]


@pytest.mark.parametrize("of", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_a_run_that_goes_on_gives_what_one_gives_that_never_ended(of: int, tmp_path: Path) -> None:
    for number, (scheduler, place, every, form, ends) in enumerate(DRAWN[of::2]):
        storage = str(tmp_path / str(number))
        epochs = 2 if ends == "end" else EPOCHS
        first = trained(storage, every, form, ends, Script(scheduler, place), epochs)
        script = Script(scheduler, place)
        then = trained(storage, every, form, "end", script, EPOCHS)
        case = scheduler, place, every, form, ends
        assert script.outcome() == at_once(scheduler, place), case
        if form == "epochs" and ends in ("end", "early"):
            assert first + then == [*range(EPOCHS)], "each epoch ends once in a run's life"


def test_what_the_script_changes_after_its_last_step_is_saved_and_not_trained_twice(
    tmp_path: Path,
) -> None:
    for epochs in (1, 2):
        state: dict[str, Any] = {"steps": 0, "best": ""}
        with se.Checkpointer(state, storage=str(tmp_path), checkpoint_every=1) as checkpoint:
            for epoch in checkpoint.epochs(epochs, 2):
                for step in checkpoint.steps((epoch + 1) * 2):
                    with step:
                        state["steps"] += 1
            assert state["best"] == ("" if epochs == 1 else "of 1")
            state["best"] = f"of {epochs}"
        assert state["steps"] == epochs * 2


def test_a_save_in_an_epochs_end_has_all_of_that_end(tmp_path: Path) -> None:
    state = {"ends": 0}
    with (
        suppress(Interrupted),
        se.Checkpointer(state, storage=str(tmp_path), snapshot_every=0) as checkpoint,
    ):
        for epoch in checkpoint.epochs(3, 2):
            for step in checkpoint.steps((epoch + 1) * 2):
                with step:
                    pass
            assert checkpoint.save()
            state["ends"] += 1
            if epoch == 1:
                assert checkpoint.wait()
                raise Interrupted
    with se.Checkpointer(state, storage=str(tmp_path)) as checkpoint:
        assert checkpoint.restore() == 2 and state["ends"] == 1
        assert next(checkpoint.epochs(3, 2)) == 1


def test_an_epoch_whose_steps_are_not_made_by_its_end_is_told(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="epoch 0 ends with step 2, and the script has made 0"),
        se.Checkpointer({"value": 0}, storage=str(tmp_path)) as checkpoint,
    ):
        for _ in checkpoint.epochs(3, 2):
            pass


@pytest.mark.parametrize(
    ("step", "ended", "epoch"),
    [
        (0, 0, 0),
        (0, None, 0),
        (9, 0, 0),
        (10, None, 0),
        (10, 0, 0),
        (10, 1, 1),
        (11, 1, 1),
        (20, 1, 1),
    ],
)
def test_a_run_goes_on_in_the_epoch_whose_end_was_not_reached(
    step: int, ended: int | None, epoch: int
) -> None:
    assert begins_in(step, 10, ended) == epoch


@pytest.mark.parametrize(("step", "ended"), [(10, 2), (11, 0), (20, 3), (9, 1)])
def test_epochs_of_another_length_are_refused(step: int, ended: int) -> None:
    with pytest.raises(UsageError, match=f"{ended} epochs had ended at step {step}"):
        begins_in(step, 10, ended)
