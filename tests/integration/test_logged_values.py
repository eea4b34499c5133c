"""What a script logs beside the loss, from a real process to its daemon: `checkpoint.log(...)`."""

import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from spotelastic_checkpoints.memory.worker_page import LONGEST_NAME, MOST_LOGGED
from support.training.open_checkpointer import client_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor

import spotelastic as se
from spotelastic.training.runtime import logged_values
from spotelastic.training.runtime.logged_values import LoggedValues

Values = Mapping[str, float | None]


def seen(checkpoint: se.Checkpointer) -> Values:
    """What the daemon knows by now."""
    status = client_of(checkpoint).status()
    assert status is not None
    (worker,) = status.workers
    return {name: value for name, (_, value) in worker.logged.items()}


def test_values_are_told_with_the_step_that_counts(tmp_path: Path) -> None:
    """Not before, however often its block is made."""
    model = nn.Linear(2, 1)
    with se.Checkpointer({"model": model}, storage=str(tmp_path), rehearse=True) as checkpoint:
        told: list[Values] = []
        for step in checkpoint.steps(4):
            with step:
                norm = torch.tensor([float(step.number)], requires_grad=True)
                checkpoint.log(lr=0.1 / step.number, grad_norm=norm)
                assert seen(checkpoint).get("lr") != 0.1 / step.number, "it does not count yet"
            told.append(seen(checkpoint))
        assert told[0] == {"lr": 0.1, "grad_norm": 1.0}
        checkpoint.log(**{"eval/loss": Decimal("0.25"), "bad": math.inf, "lr": 7})
    page = client_of(checkpoint).page
    values = {name: each.value for name, each in page.read(0).logged.items()}
    assert values == {"lr": 7.0, "grad_norm": 4.0, "eval/loss": 0.25, "bad": None}


class Page:
    """Where values are written, with what was written when."""

    def __init__(self) -> None:
        self.written: list[tuple[str, float, float]] = []

    def log(self, number: int, name: str, value: float, now: float) -> None:
        self.written.append((name, value, now))


def test_the_newest_value_is_told_once_a_second_and_none_is_kept_back_at_the_end() -> None:
    page, values = Page(), LoggedValues()
    for step in range(100):
        values.take({"lr": step, f"seldom{step}" if step == 3 else "lr": step}, counts=True)
        values.publish(page, 50.0 + step / 10)  # type: ignore[arg-type]
    values.finish(page, 60.0)  # type: ignore[arg-type]
    told = [(value, at) for name, value, at in page.written if name == "lr"]
    apart = round(10 * logged_values.EVERY)
    assert told == [*((float(n), 50.0 + n / 10) for n in range(0, 100, apart)), (99.0, 60.0)]
    assert [name for name, *_ in page.written].count("seldom3") == 1


def test_a_clock_that_is_set_back_keeps_nothing_back() -> None:
    page, values = Page(), LoggedValues()
    for at in (1000.0, 10.0):
        values.take({"lr": at}, counts=True)
        values.publish(page, at)  # type: ignore[arg-type]
    assert [value for _, value, _ in page.written] == [1000.0, 10.0]


def test_what_other_ranks_log_is_checked_and_not_told() -> None:
    page, values = Page(), LoggedValues()
    values.take({"lr": 1.0}, counts=False)
    values.finish(page, 1.0)  # type: ignore[arg-type]
    assert page.written == []
    with pytest.raises(se.errors.UsageError):
        values.take({"lr": "fast"}, counts=False)


BAD: Mapping[str, tuple[str, object, str]] = {
    "text": ("lr", "0.1", "takes a number, not a str"),
    "nothing": ("lr", None, "takes a number, not a NoneType"),
    "a list": ("lr", [1.0], "takes a number, not a list"),
    "a large integer": ("lr", 10**400, "takes a number, not a int"),
    "several": ("lr", torch.zeros(2), r"takes one number, not a tensor \(2,\), torch.float32"),
    "none": ("lr", torch.zeros(0), r"takes one number, not a tensor \(0,\)"),
    "complex": ("lr", torch.zeros((), dtype=torch.complex64), "takes one number"),
    "a space": ("learning rate", 1.0, "a name has at most 32 letters"),
    "a digit first": ("1st", 1.0, "begins with a letter"),
    "not ASCII": ("größe", 1.0, "a name has at most 32 letters"),
    "long": ("x" * (LONGEST_NAME + 1), 1.0, "a name has at most 32 letters"),
    "empty": ("", 1.0, "a name has at most 32 letters"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_shown_is_refused_in_a_line(case: str) -> None:
    name, value, told = BAD[case]
    page, values = Page(), LoggedValues()
    with pytest.raises(se.errors.UsageError, match=told) as error:
        values.take({name: value}, counts=True)
    assert "\n" not in str(error.value)
    values.finish(page, 1.0)  # type: ignore[arg-type]
    assert page.written == []


def test_there_are_at_most_so_many_names() -> None:
    values = LoggedValues()
    values.take({f"n{number}": number for number in range(MOST_LOGGED)}, counts=True)
    values.take({"n3": 4.0}, counts=True)
    with pytest.raises(se.errors.UsageError, match="20 other names were logged before"):
        values.take({"one_more": 1.0}, counts=True)


def test_a_tensor_that_is_spread_over_ranks_is_refused_on_each(tmp_path: Path) -> None:
    """Its number needs all ranks, and a script may log on the first one alone."""
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1
    )
    try:
        spread = distribute_tensor(torch.ones(4), init_device_mesh("cpu", (1,))).sum()
        values = LoggedValues()
        with pytest.raises(se.errors.UsageError, match=r"full_tensor\(\)"):
            values.take({"grad_norm": spread}, counts=True)
        values.take({"grad_norm": spread.full_tensor()}, counts=True)  # type: ignore[attr-defined]
    finally:
        dist.destroy_process_group()


def before(checkpoint: se.Checkpointer) -> None:
    checkpoint.log(lr=1.0)


def after(checkpoint: se.Checkpointer) -> None:
    with checkpoint:
        pass
    checkpoint.log(lr=1.0)


@pytest.mark.parametrize("use", [before, after])
def test_values_outside_of_the_with_block_are_refused(
    use: Callable[[se.Checkpointer], None], tmp_path: Path
) -> None:
    checkpoint = se.Checkpointer({"model": nn.Linear(2, 1)}, storage=str(tmp_path))
    with pytest.raises(se.errors.UsageError, match="`with` block"):
        use(checkpoint)
