"""What people read fits their terminal; a file gets whole lines, without blanks at their ends."""

import os
import pty
import sys
from typing import TextIO

import pytest
from rich.text import Text

from spotelastic.cli.output import display, nodes_table, status_line
from spotelastic.cli.wrapping import wrapped
from spotelastic.model.counting import counted
from spotelastic.model.progress import NodeStatus, Status

LINE = (
    "a stays up: spotelastic status a, spotelastic logs -f a; come back with the same "
    "`spotelastic up`; end it with spotelastic down a; by itself it ends 10 min after its job"
)


@pytest.mark.parametrize("columns", [40, 80])
def test_a_terminal_gets_lines_that_are_broken_between_words(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    leader, follower = pty.openpty()
    with os.fdopen(leader, "rb"), os.fdopen(follower, "w") as terminal:
        lines = wrapped(f"{LINE}\n  Traceback {LINE}", terminal).split("\n")
        assert max(map(len, lines[:-1])) <= columns
        assert " ".join(lines[:-1]) == LINE
        assert lines[-1] == f"  Traceback {LINE}", "what has a layout keeps it"


def test_a_pipe_gets_whole_lines(capsys: pytest.CaptureFixture[str]) -> None:
    to: TextIO = sys.stdout
    assert wrapped(LINE, to) == LINE
    rows = (
        NodeStatus("i-1", "worker", "training", "a", "10.0.0.1", (0, 1)),
        NodeStatus("i-2", "control", "leading", "a", "10.0.0.2", ()),
    )
    display(nodes_table(Status("demo", "running", 1.0, nodes=rows)))
    display(Text("last"))
    told = capsys.readouterr().out
    assert all(line == line.rstrip() for line in told.split("\n"))
    assert told.endswith("10.0.0.2\nlast\n")


def test_one_is_not_many() -> None:
    assert [counted(number, "worker") for number in (0, 1, 2)] == [
        "0 workers",
        "1 worker",
        "2 workers",
    ]
    one = NodeStatus("i-1", "worker", "pending", "a", "", ())
    assert status_line(Status("demo", "pending", 1.0, nodes=(one,))) == "pending: 1 pending worker"
    assert status_line(Status("demo", "pending", 1.0)) == "pending: no workers"
