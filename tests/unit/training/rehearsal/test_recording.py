"""What a process of a rehearsal writes down, and that any other one writes nothing."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spotelastic.training.rehearsal import recording
from spotelastic.training.restore.loops import Loops
from spotelastic.training.restore.own_values import OwnValues
from spotelastic.training.state.state import State


@dataclass
class Page:
    target: int = 0


def of(state: State, orders: str = "") -> recording.NoRecording:
    loops = Loops(OwnValues(), lambda: 1, lambda _: None, lambda _: None)
    environ = {recording.VARIABLE: orders} if orders else {}
    return recording.of_environment(state, loops, lambda: True, environ)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for file in folder.glob("*.jsonl") for text in file.open()]


def test_a_step_and_what_was_restored_have_the_same_names_and_digests(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    orders = json.dumps({"folder": str(tmp_path), "steps": 9})
    state = State({"model": model, "optimizer": optimizer, "best": 1.5})
    found = of(state, orders)
    found.begins()
    model(torch.rand(1, 2)).sum().backward()
    optimizer.step()
    found.stepped(1, 0.5, Page(), holds=False)
    found.restored(1)
    begin, step, restored = lines(tmp_path)
    assert [each["kind"] for each in (begin, step, restored)] == ["begin", "step", "restored"]
    assert step["shown"]["best"] == "1.5"
    assert step["shown"]["step.loss"] == "0.5"
    for name in ("model.weight", "optimizer.state.weight.exp_avg", "random numbers of torch"):
        assert step["digests"][name] == restored["digests"][name]


def test_a_gate_lets_go_on_where_a_node_is_about_to_come(tmp_path: Path) -> None:
    orders = json.dumps({"folder": str(tmp_path), "steps": 9, "gates": [1]})
    found = of(State({"n": 1}), orders)
    found.stepped(1, None, Page(target=2), holds=False)
    assert [each["step"] for each in lines(tmp_path)] == [1]


def test_what_waits_for_a_save_waits_until_what_stands_after_the_loop_is_done(
    tmp_path: Path,
) -> None:
    """The save of a loop's last step is made then: a gate before would wait for it for ever."""
    orders = json.dumps({"folder": str(tmp_path), "steps": 9, "gates": [1]})
    values: dict[str, Any] = {"n": 1}
    found = of(State(values), orders)
    found.stepped(1, None, Page(), holds=True)  # comes back, though nobody has opened the gate
    values["n"] = 2
    found.ended(Page(target=2))
    found.ended(Page())
    assert [(each["kind"], each["shown"]["n"]) for each in lines(tmp_path)] == [
        ("step", "1"),
        ("ended", "2"),
    ]


def test_outside_of_a_rehearsal_nothing_is_recorded(tmp_path: Path) -> None:
    found = of(State({}))
    found.stepped(1, None, Page(), holds=False)
    found.ended(Page())
    assert type(found) is recording.NoRecording
