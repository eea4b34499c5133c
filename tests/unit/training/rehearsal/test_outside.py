"""The variables that a loop carries from step to step are told from those of one step alone."""

import ast
import itertools
import queue
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from spotelastic.training.rehearsal import loop_names, outside

calls = 0


class Meter:
    def __init__(self) -> None:
        self.count, self.seen, self.last = 0, list[float](), 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.last = value
        self.seen.append(value)


def call() -> None:
    global calls
    calls += 1


def train(steps: int = 3) -> dict[str, str]:
    """A loop as people write them; what it was seen to carry after its last step."""
    model, average = nn.Linear(2, 1), nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    state = {"model": model, "optimizer": optimizer, "saved": 0}
    rng, generator, numbers = np.random.default_rng(0), torch.Generator(), itertools.count()
    best, history, meter, saved, within, kept = 9.0, list[float](), Meter(), 0, 0, 7
    step_of_one = 1
    wrapped = nn.Sequential(model)
    changes: dict[str, str] = {}
    before: dict[str, outside.Variable] = {}

    def count() -> None:
        nonlocal within
        within += 1

    for number in range(steps):
        batch = torch.tensor(rng.random((4, 2)), dtype=torch.float32)
        noise = torch.rand(4, 2, generator=generator)
        loss = wrapped(batch + noise).square().mean() + next(numbers) + kept
        loss.backward()
        optimizer.step()
        scheduler.step()
        with torch.no_grad():
            average.weight.mul_(0.5)
        best = min(best, -float(number))
        history.append(loss.item())
        meter.add(loss.item())
        saved += step_of_one
        state["saved"] = saved
        call()
        count()
        now = outside.carried(sys._getframe(), state)
        changes, before = outside.changed(before, now), now
    return changes


def test_what_the_loop_carries_is_named_with_its_kind() -> None:
    """Not named: what a step makes for itself, what the state holds, and what never changes."""
    found = train()
    for of_the_test in ("before", "changes"):
        found.pop(of_the_test, None)
    assert found == {
        "average": "Linear",
        "best": "float",
        "calls": "int",
        "generator": "torch Generator",
        "history": "list",
        "meter.count": "int",
        "meter.seen": "list",
        "numbers": "count",
        "rng": "numpy Generator",
        "scheduler": "learning-rate scheduler",
        "within": "int",
    }


def test_a_value_of_the_state_is_known_by_its_name_and_its_value() -> None:
    best, held = 1, 1
    for _ in range(1):
        best += 1
        held += 1
        found = outside.carried(sys._getframe(), {"best": {"best": best}, "held": 5})
    assert {"best", "held"} & set(found) == {"held"}


@pytest.mark.parametrize(
    ("body", "carries"),
    [
        ("x = f()\ny = x", set()),
        ("y = x\nx = f()", {"x"}),
        ("x += 1", {"x"}),
        ("if a: x = 1\ny = x", {"x"}),
        ("if a: x = 1\nelse: x = 2\ny = x", set()),
        ("if a: continue\nx = 1\ny = x", set()),
        ("try: x = 1\nexcept E: x = 2\ny = x", set()),
        ("try: x = f()\nexcept E: pass\ny = x", {"x"}),
        ("for i in r: x = i\ny = x", {"x"}),
        ("y = [x for x in rows]", set()),
        ("y = [x + z for x in rows]", {"z"}),
        ("with f() as x: y = x", set()),
        ("(x, z) = f()\ny = x, z", set()),
        ("if (x := f()): y = x", set()),
        ("h = lambda: x", set()),
        ("best = loss if loss < best else best", {"best"}),
        ("match a:\n  case 1: x = 1\ny = x", {"x"}),
    ],
)
def test_names_that_are_read_before_they_are_written(body: str, carries: set[str]) -> None:
    [loop] = ast.parse("while 1:\n" + textwrap.indent(body, "  ")).body
    found = loop_names.read(loop.body)  # type: ignore[attr-defined]
    of_others = {"f", "a", "r", "E", "rows", "loss"}
    assert {name for name in found.exposed if "." not in name} - of_others == carries


def test_without_its_source_nothing_is_claimed() -> None:
    text = "for i in range(2):\n    found = outside.carried(sys._getframe(), {})\n"
    values: dict[str, Any] = {"__name__": "__main__", "outside": outside, "sys": sys}
    exec(compile(text, "<string>", "exec"), values)
    assert "i" not in values["found"]


def test_an_attribute_that_a_loop_changes_is_named_and_a_clock_is_not() -> None:
    class Data:
        level = 0

    data, state, changes = Data(), {"model": nn.Linear(2, 1)}, dict[str, str]()
    data.level, end, before = 1, time.time(), dict[str, outside.Variable]()
    for _ in range(3):
        data.level += 1
        assert time.time() >= end
        end = time.time()
        state["model"].bias.data += 1
        now = outside.carried(sys._getframe(), state)
        changes, before = outside.changed(before, now), now
    assert changes.keys() - {"before", "changes"} == {"data.level"}


def rate(step: int) -> float:
    rate.calls += 1  # type: ignore[attr-defined]
    return step / rate.calls  # type: ignore[attr-defined]


def test_what_hands_out_something_else_is_named_and_what_a_function_keeps() -> None:
    rate.calls = 0  # type: ignore[attr-defined]
    found, waiting = iter([1, 2]), queue.SimpleQueue[int]()
    batches, before = (number for number in (3, 4)), dict[str, outside.Variable]()
    changes, now = dict[str, str](), before
    with Path(__file__).open() as lines:
        for step in range(2):
            waiting.put(step)
            assert rate(next(found)) and next(batches) and waiting.get() == step and next(lines)
            now = outside.carried(sys._getframe(), {})
            changes, before = outside.changed(before, now), now
    kinds = {"found": "list_iterator", "waiting": "SimpleQueue", "batches": "generator"}
    assert {name: each.kind for name, each in now.items() if not each.digest} == kinds
    assert changes.keys() - {"before", "changes", "now"} == {"rate.calls"}
