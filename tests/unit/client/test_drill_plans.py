"""The plan of a drill: what it says, what is wrong with it, and whom it strikes."""

import json
import random
from pathlib import Path

import pytest

from spotelastic.aws.clusters import fault_injection
from spotelastic.client.interruptions import interrupt
from spotelastic.client.interruptions.choice import victim
from spotelastic.client.interruptions.drill_plan import PlannedInterruption, is_due, read
from spotelastic.errors import UsageError
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.progress import NodeStatus, Status

PLAN = """
[[interruption]]
after = "90s"

[[interruption]]
step = 100
node = "rank 1"
in = 15

[[interruption]]
step = 200
kind = "loss"
"""


def written(folder: Path, text: str, name: str = "drill.toml") -> Path:
    (folder / name).write_text(text)
    return Path(name)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_plan_is_the_same_as_toml_and_as_json(folder: Path) -> None:
    expected = (
        PlannedInterruption(90.0, 0, InterruptionKind.SPOT_INTERRUPTION, "any", 120),
        PlannedInterruption(None, 100, InterruptionKind.SPOT_INTERRUPTION, "rank 1", 15),
        PlannedInterruption(None, 200, InterruptionKind.LOSS, "any", 0),
    )
    assert read(written(folder, PLAN)) == expected
    entries = [
        {"after": "90s"},
        {"step": 100, "node": "rank 1", "in": 15},
        {"step": 200, "kind": "loss", "in": 0},
    ]
    assert read(written(folder, json.dumps(entries), "drill.json")) == expected
    assert read(written(folder, json.dumps({"interruption": entries}), "d.json")) == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "expected a list of [[interruption]] entries"),
        ("[[interruption]\n", "(at line 1, column 15)"),
        ("interruption = [3]", "interruption 1: expected a table with after, step, kind"),
        ('[[interruption]]\nkind = "loss"', "interruption 1: expected either after (a time) or"),
        ('[[interruption]]\nafter = "1s"\nstep = 3', "interruption 1: expected either after"),
        ("[[interruption]]\nafter = 30", 'after 30: expected a time, such as "30s" or "5m"'),
        ('[[interruption]]\nafter = "soon"', "after 'soon': expected a time"),
        ('[[interruption]]\nstep = "x"', "step 'x': expected a whole number"),
        (
            '[[interruption]]\nafter = "1s"\n[[interruption]]\nafter = "2s"\nkind = "flood"',
            "interruption 2: kind 'flood': expected notice, rebalance, loss",
        ),
        ('[[interruption]]\nafter = "1s"\nwho = "a"', "there is no key who; expected after"),
        ('[[interruption]]\nafter = "1s"\nnode = 3', 'node 3: expected "any", "rank N" or a name'),
        ('[[interruption]]\nafter = "1s"\nin = -1', "in -1: expected a whole number"),
        (
            '[[interruption]]\nafter = "1s"\nkind = "loss"\nin = 120',
            "interruption 1: in 120: a loss comes without notice: remove `in`, or",
        ),
    ],
)
def test_a_bad_plan_is_told_with_its_file_its_place_and_what_was_expected(
    folder: Path, text: str, told: str
) -> None:
    with pytest.raises(UsageError) as refused:
        read(written(folder, text))
    assert str(refused.value).startswith("--plan drill.toml: ")
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_broken_json_is_told_with_its_line(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"--plan drill.json: line 2: Expecting"):
        read(written(folder, '[\n{"after" 3}]', "drill.json"))


def status(step: int, **ranks: tuple[int, ...]) -> Status:
    nodes = tuple(NodeStatus(name, "worker", "training", "z", "", r) for name, r in ranks.items())
    return Status("demo", "running", 0.0, step=step, nodes=nodes)


def test_an_entry_is_due_at_its_time_or_its_step() -> None:
    timed, stepped = (
        PlannedInterruption(90.0, 0, InterruptionKind.LOSS, "any", 0),
        PlannedInterruption(None, 100, InterruptionKind.LOSS, "any", 0),
    )
    assert [is_due(timed, status(500), t) for t in (89.9, 90.0)] == [False, True]
    assert [is_due(stepped, status(step), 900.0) for step in (99, 100)] == [False, True]


def test_a_node_is_named_drawn_or_found_by_its_rank() -> None:
    now = status(5, b=(1,), a=(0,), c=())

    def struck(node: str, seed: int = 0, seen: Status = now, going: str = "") -> str | None:
        return victim(node, seen, random.Random(seed), {going})

    assert {struck("any", seed) for seed in range(20)} == {"a", "b"}
    assert struck("any", 3) == struck("any", 3), "the same draw each time"
    assert (struck("rank 1"), struck("rank 7"), struck("i-9")) == ("b", None, "i-9")
    assert struck("any", 0, status(5)) is None
    assert {struck("any", seed, going="b") for seed in range(20)} == {"a"}, "b goes already"
    assert struck("rank 1", going="b") is None, "until another node has that rank"


def test_an_interruption_of_no_known_kind_is_refused() -> None:
    with pytest.raises(UsageError, match="--kind flood: expected notice, rebalance, loss"):
        interrupt.InterruptionRequest.asked("i-1", "flood", 120.0)


def test_a_loss_that_is_to_be_announced_is_refused() -> None:
    with pytest.raises(UsageError, match="--kind loss --in 60: a loss comes without notice"):
        interrupt.InterruptionRequest.asked("i-1", "loss", 60.0)
    for seconds in (0.0, fault_injection.WARNING):
        assert not interrupt.InterruptionRequest.asked("i-1", "loss", seconds).warns
