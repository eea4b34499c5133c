"""What people read fits their terminal; a file gets whole lines, without blanks at their ends."""

import io
import os
import pty
import re
import sys
from typing import TextIO

import pytest
from rich.console import Console, ConsoleDimensions
from rich.text import Text

from spotelastic.cli.render.progress_view import Live
from spotelastic.cli.render.tables import display, event_line, nodes_table, status_line
from spotelastic.model.counting import counted
from spotelastic.model.progress import Event, NodeStatus, Status
from spotelastic.wrapping import wrapped

LINE = (
    "a stays up: spotelastic status a, spotelastic logs -f a; come back with the same "
    "`spotelastic up`; end it with spotelastic down a; by itself it ends 10 min after its job"
)


CLEARED, UP = "\x1b[2J", "\x1b[1A"


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
    display(nodes_table(rows, 1.0, "node", "role", "state", "zone", "ranks", "address"))
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


def test_a_terminal_that_gets_narrower_is_drawn_anew() -> None:
    to = io.StringIO()
    console = Console(file=to, force_terminal=True, width=100, height=20)
    node = NodeStatus("i-16c721ca2a1a506bf", "worker", "training", "us-east-1a", "10.0.0.1", (0,))
    status = Status("demo", "running", 1.0, round=1, step=5, nodes=(node,))
    with Live(console) as view:
        view.say("the first line " + "word " * 15)
        view.event(Event(1.0, "scale", "the job will have 1 to 3 nodes"))
        view.status(status)
        before = len(to.getvalue())
        console.size = ConsoleDimensions(40, 20)
        view.status(status)
        drawn = to.getvalue()[before:]
    _, _, screen = drawn.partition(CLEARED)
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen))
    assert lines[0].startswith("the first line") and max(map(len, lines)) <= 40
    assert any("1 to 3 nodes" in line for line in lines)
    assert UP not in screen.partition("demo")[0], "nothing of it is erased again"
    assert any("i-16c721ca2a1a506bf  training" in line for line in lines), "its name is whole"


def test_a_small_terminal_gets_the_newest_lines_that_fit() -> None:
    to = io.StringIO()
    console = Console(file=to, force_terminal=True, width=80, height=40)
    with Live(console) as view:
        for number in range(30):
            view.say(f"line {number}")
        before = len(to.getvalue())
        console.size = ConsoleDimensions(80, 10)
        view.say("last")
    shown = re.findall(r"line (\d+)|last", to.getvalue()[before:].partition(CLEARED)[2])
    assert shown == [*map(str, range(22, 30)), ""]


def test_what_was_asked_for_does_not_look_like_a_notice_of_aws() -> None:
    for kind, label in {
        "planned": "planned",
        "leave": "planned",
        "spot_interruption": "spot",
    }.items():
        event = Event(1.0, "notice", "i-1 is to go", "i-1", {"kind": kind})
        assert event_line(event).split()[1] == label
