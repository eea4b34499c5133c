"""What `up` shows of a job on a terminal, as the characters on its screen."""

import io
import os
import pty
import re
import sys
from dataclasses import replace
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from spotelastic.cli.commands.up_on_terminal import COST_EVERY, CostWatch
from spotelastic.cli.render.job_view import JobPicture, job_view
from spotelastic.cli.render.progress_view import Live, Plain, view
from spotelastic.cli.render.sparkline import MOST_POINTS, LossSeries, sparkline
from spotelastic.errors import Unavailable
from spotelastic.model.progress import Cost, NodeStatus, Point, SlowNode, Status, Upload

NOW = 2000.0
CONTROL = tuple(
    NodeStatus(f"i-0c{n}", "control", state, f"us-east-1{n}", "10.0.0.2", type="t4g.small")
    for n, state in (("a", "leading"), ("b", "standing by"), ("c", "standing by"))
)
COST = Cost("demo", 4.9, 1.25, 4.2, 0.5, 0.0, 0.1, total_usd=1.34, total_usd_per_hour=4.98)
LOSSES = tuple(4.0 / (1 + step / 8) for step in range(48))


def worker(number: int, state: str = "training", leaves_at: float | None = None) -> NodeStatus:
    ranks = tuple(range(number * 4, number * 4 + 4)) if state == "training" else ()
    address = f"10.0.1.{number}"
    id, zone = f"i-0a1b2c3d4e5f607{number:02}", "us-east-1a"
    return NodeStatus(id, "worker", state, zone, address, ranks, "g5.12xlarge", leaves_at)


def status(*workers: NodeStatus, **more: object) -> Status:
    made = Status(
        name="demo",
        state="running",
        at=NOW - 0.4,
        round=3,
        step=1260,
        loss=0.5719,
        world_size=8,
        committed=1200,
        committed_at=NOW - 83.0,
        upload=Upload(1250, 30_000_000, 120_000_000, 45e6),
        step_time=0.104,
        reason="i-0c leaves: 2 nodes",
        nodes=(*workers, *CONTROL),
    )
    return replace(made, **more)  # type: ignore[arg-type]


def picture(shown: JobPicture, width: int = 80, height: int = 24) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO(), record=True, markup=False)
    console.print(job_view(shown, NOW, width, height), highlight=False)
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_a_terminal_of_80_by_24_shows_the_whole_job() -> None:
    there = status(worker(0), worker(1, "draining", NOW + 103.2))
    shown = JobPicture(there, LOSSES, COST)
    assert (
        picture(shown)
        == dedent("""\
        demo  running, i-0c leaves: 2 nodes
        step 1260   9.62 steps/s   round 3   1 node, 8 workers
        loss 0.5719   █▆▅▅▄▄▃▃▃▂▂▂▂▂▂▂▁▁▁▁▁▁▁▁
        checkpoint 1200, 1 min 23 s ago   25% of step 1250 at 45 MB/s, 2 s left
        $1.34 so far, $4.98 an hour   workers on demand: $4.20 (70% saved)

        node                 state                           zone        ranks
        i-0a1b2c3d4e5f60700  training                        us-east-1a  0–3
        i-0a1b2c3d4e5f60701  draining, leaves in 1 min 43 s  us-east-1a  –
        control  i-0ca leading, 2 standing by
        """).splitlines()
    )
    wide = picture(shown, 120, 40)
    assert wide[6].split() == ["node", "state", "type", "zone", "ranks", "address"]
    assert wide[7].endswith("10.0.1.0")


ENDS = {"total": 10_000, "pace": 0.125, "began_at": NOW - 600.0, "samples_per_second": 615.4}


def test_a_job_whose_end_is_known_shows_how_far_until_when_and_for_how_much() -> None:
    lines = picture(JobPicture(status(worker(0), **ENDS), LOSSES, COST))
    assert lines[1].startswith("step 1260 of 10000   9.62 steps/s   615.4 samples/s   round 3")
    assert lines[2] == "13% done, about 18 min left, 10 min so far, about $2.85 in all"
    plain: list[str] = []
    Plain(plain.append, lambda: NOW).status(status(worker(0), **ENDS))
    assert plain[0].startswith("step 1260 of 10000  round 3") and "615.4 samples/s" in plain[0]


def test_a_loss_that_is_no_number_and_what_to_do_about_it_are_shown() -> None:
    diverged = status(worker(0), loss=None, not_finite=41)
    lines = picture(JobPicture(diverged, LOSSES, COST), 110)
    assert any(line.startswith("loss NaN or infinite since step 41") for line in lines)
    (at,) = (n for n, line in enumerate(lines) if line.startswith("The loss is NaN or infinite"))
    assert "checkpoint.restore(step=...)" in " ".join(lines[at + 1 : at + 3])


def test_before_its_first_round_a_job_shows_what_it_waits_for() -> None:
    waiting = status(worker(0, "pending"), round=0, state="pending", reason="nodes are booting")
    assert picture(JobPicture(waiting))[:2] == [
        "demo  nodes are booting",
        "pending: 1 pending worker",
    ]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (40, 12), (60, 8)])
def test_more_nodes_than_lines_are_counted_and_those_in_trouble_stay(
    width: int, height: int
) -> None:
    fleet = [worker(number) for number in range(60)]
    fleet += [worker(60, "draining", NOW + 90), worker(61, "draining", NOW + 9)]
    fleet += [worker(62, "pending"), worker(63, "pending")]
    lines = picture(JobPicture(status(*fleet), LOSSES, COST), width, height)
    assert len(lines) < height, "events have room above it"
    assert max(map(len, lines)) <= width
    table = [line for line in lines if line.startswith("i-0a")]
    left = next(line for line in lines if line.startswith(("…", "nodes  ")))
    counted = sum(int(number) for number in re.findall(r"\d+", left))
    assert len(table) + counted == len(fleet)
    if height >= 24:
        assert table[0].split()[:3] == ["i-0a1b2c3d4e5f60761", "draining,", "leaves"]
        assert [line.split()[1] for line in table[1:4]] == ["draining,", "pending", "pending"]
        assert re.fullmatch(r"… and \d+ more training", left)


def test_long_notes_take_a_quarter_of_the_screen_at_most() -> None:
    slow = tuple(SlowNode(f"i-{n}", "1", 1.0, 3.0, 0.4) for n in range(30))
    lines = picture(JobPicture(status(worker(0), quiet="word " * 400, slow=slow)), 80, 24)
    assert len(lines) < 24
    assert "…" in lines and any(line.startswith("i-0a1b2c3d4e5f60700") for line in lines)


def test_a_silent_cluster_says_since_when() -> None:
    told = "No controller has reported for 1 min 30 s. Training continues without one"
    assert any(line.startswith(told) for line in picture(JobPicture(status(at=NOW - 90.0))))
    ended = status(at=NOW - 90.0, state="succeeded")
    for silent in status(), ended:
        assert not any("No controller" in line for line in picture(JobPicture(silent)))


def test_a_notice_that_has_run_out_and_a_failure_with_its_traceback_take_a_line_each() -> None:
    over = status(worker(0, "draining", NOW - 2.0))
    assert any("draining, may be gone any moment" in line for line in picture(JobPicture(over)))
    failed = status(worker(0), state="failed", reason="rank 0 on i-1\nTraceback ...\nValueError")
    assert picture(JobPicture(failed))[0] == "demo  failed, rank 0 on i-1"


# -- the loss curve --------------------------------------------------------------------------------


def test_the_curve_falls_with_the_loss_and_has_no_more_bars_than_values() -> None:
    assert sparkline([3.0, 2.0, 1.0], 24) == "█▅▁"
    assert sparkline([1.0, 1.0], 24) == "▁▁"
    assert sparkline([], 24) == sparkline([1.0], 24) == sparkline([1.0, 2.0], 0) == ""
    assert sparkline([2.0, float("inf"), float("nan"), 1.0], 24) == "█▁"
    assert len(sparkline(LOSSES, 24)) == 24


def test_a_long_job_keeps_the_form_of_its_curve_in_few_points() -> None:
    series = LossSeries()
    for step in range(20_000):
        series.feed(step + 1, float(step))
        series.feed(step + 1, 0.0)  # the same step again
    values = series.values
    assert len(values) <= MOST_POINTS + 1
    assert list(values) == sorted(values) and values[0] < 40 and values[-1] > 19_000


# -- which view, and what stays --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("term", "is_live"), [("xterm-256color", True), ("dumb", False), ("unknown", False)]
)
def test_a_terminal_that_cannot_move_its_cursor_gets_lines(
    term: str, is_live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = pty.openpty()
    with os.fdopen(leader, "rb"), os.fdopen(follower, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        assert isinstance(view({"TERM": term}), Live if is_live else Plain)


def screen(monkeypatch: pytest.MonkeyPatch, *told: Status) -> str:
    to = io.StringIO()
    console = Console(file=to, force_terminal=True, width=80, height=24, markup=False)
    with Live(console, clock=lambda: NOW) as shown:
        shown.cost(COST)
        for each in told:
            shown.status(each)
    return to.getvalue()


def test_the_last_picture_stays_and_the_cursor_is_shown_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = screen(monkeypatch, status(worker(0)), status(worker(0), step=1300, loss=0.4))
    _, _, last = drawn.rpartition("\x1b[2K")  # nothing is erased after this
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", last)
    assert "step 1300" in text and "i-0a1b2c3d4e5f60700" in text and "$1.34 so far" in text
    assert "checkpoint 1200, 1 min 23 s ago" in text
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("\x1b[?25l"), "the cursor is shown"


def test_who_comes_back_sees_the_curve_from_its_beginning() -> None:
    to = io.StringIO()
    console = Console(file=to, force_terminal=True, width=80, height=24, markup=False)
    with Live(console, clock=lambda: NOW) as shown:
        shown.earlier([Point(step, 9.0 - step, NOW) for step in range(1, 8)])
        shown.status(status(worker(0), loss=1.0))
    assert "█▇▆▅▄▃▂▁" in to.getvalue() or "█▇▆▅" in to.getvalue()


def test_a_cost_is_looked_up_now_and_then_and_a_silent_bucket_holds_up_nothing() -> None:
    now = [100.0]
    answers: list[bytes | Unavailable] = [b"[]", Unavailable("late"), b"[]"]

    def get(key: str) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, Unavailable):
            raise answer
        return answer

    capacity = SimpleNamespace(max_cost=5.0)
    record: Any = SimpleNamespace(
        name="demo",
        objects=SimpleNamespace(get=get, report=lambda: None),
        spec=SimpleNamespace(capacity=capacity),
    )
    costs = CostWatch(lambda: record, lambda: now[0])
    first = costs.due()
    assert first is not None and (first.name, first.max_cost) == ("demo", 5.0)
    assert costs.due() is None and len(answers) == 2, "it is not asked again at once"
    now[0] += COST_EVERY
    assert costs.due() is None and len(answers) == 1
    now[0] += COST_EVERY
    assert costs.due() is not None


def test_without_colours_nothing_is_coloured(monkeypatch: pytest.MonkeyPatch) -> None:
    there = status(worker(0), worker(1, "draining", NOW + 9))
    assert "\x1b[32m" in screen(monkeypatch, there)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", screen(monkeypatch, there))
