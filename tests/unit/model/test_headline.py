"""What is wrong with a job is seen at once, everywhere alike, and how far it is."""

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from rich.console import Console

from spotelastic.cli.render import tables
from spotelastic.client.last_status import last_status
from spotelastic.controller.accounting import training_pace
from spotelastic.controller.accounting.status import Account, status
from spotelastic.controller.model.observation import Records
from spotelastic.metrics import job as metrics
from spotelastic.metrics.job import PublishedFacts
from spotelastic.model.estimate import progress_of, roughly, summary
from spotelastic.model.headline import KINDS, headline, headlines
from spotelastic.model.in_place import Rehearsal, Skipped
from spotelastic.model.job import Failure, Job
from spotelastic.model.progress import NodeStatus, Point, Progress, SlowNode, Status
from spotelastic.web.page.render import sections
from spotelastic.web.view.cluster_view import cluster_view
from spotelastic.web.view.published import PublishedCluster

NOW = 1_800_000_000.0
WELL = Status("demo", "running", NOW - 1.0, round=1, step=213, loss=0.5, committed=200)
ENDED: dict[str, Any] = {
    "state": "failed",
    "error": "OutOfMemoryError: CUDA out of memory",
    "ends_at": NOW + 90,
}
FAULTS: dict[str, dict[str, Any]] = {
    "failed": ENDED,
    "timed-out": {"state": "timed out", "reason": "the deadline has come"},
    "loss-not-finite": {"not_finite": 41, "loss": None},
    "differs": {"rehearsal": Rehearsal(2, 3, "different", ("step 2 differs",))},
    "audit-differs": {"audit": Rehearsal(9, 3, "different", ("step 9: ranks differ",))},
    "no-step": {"quiet": "no step for 22 min: rank 3 stands in all_reduce"},
    "no-controller": {"at": NOW - 60.0},
    "short-of-nodes": {"short_since": NOW - 30.0},
    "not-committed": {"unsaved": "/checkpoints: No space left on device"},
    "loss-far-out": {"usual_loss": 0.01},
    "steps-skipped": {"skipped": Skipped(2, 0, NOW - 60.0, "step 7 was skipped")},
    "slow-node": {"slow": (SlowNode("i-3", "1", NOW, 3.0, 0.4),)},
    "warning": {"warnings": ("certificates expire",)},
}
OF_THE_END = {"failed", "timed-out"}
ALWAYS = {"differs", "audit-differs", "warning", "loss-not-finite"}


def status_with(faults: set[str]) -> Status:
    changed: dict[str, Any] = {}
    for fault in faults:
        changed |= FAULTS[fault]
    return replace(WELL, **changed)


def drawn(count: int) -> list[set[str]]:
    draw = random.Random(41)
    return [{each for each in FAULTS if draw.random() < 0.3} for _ in range(count)]


def expected(faults: set[str]) -> set[str]:
    """What is to be told: the end of a job, or what keeps it from training well."""
    if ends := faults & OF_THE_END:
        last = [fault for fault in FAULTS if fault in ends]
        return {last[-1]} | (faults & ALWAYS)
    hidden = {"loss-far-out"} if "loss-not-finite" in faults else set()
    return faults - hidden


def test_every_kind_of_fault_is_drawn() -> None:
    assert set(FAULTS) == set(KINDS)


def names(faults: set[str]) -> str:
    return ",".join(sorted(faults)) or "nothing"


@pytest.mark.parametrize("faults", [set(), *({each} for each in FAULTS), *drawn(150)], ids=names)
def test_all_that_is_wrong_is_told_the_worst_first_and_alike_everywhere(faults: set[str]) -> None:
    # Of two ends the last one that is written into the status counts.
    faults = faults - {"failed"} if faults >= OF_THE_END else faults
    status = status_with(faults)
    found = headlines(status, NOW)
    assert {each.kind for each in found} == expected(faults)
    assert all(one.weight >= other.weight for one, other in pairwise(found))
    colours = [each.colour for each in found]
    assert colours == sorted(colours)  # red before yellow
    worst = headline(status, NOW)
    seen = {name: look(status) for name, look in VIEWS.items()}
    assert seen == dict.fromkeys(VIEWS, None if worst is None else worst.colour)
    told = {
        sample.labels[0]: sample.value
        for sample in metrics.samples(PublishedFacts("demo", status, now=NOW))
        if sample.metric is metrics.HEADLINE
    }
    assert {kind for kind, value in told.items() if value} == {each.kind for each in found}
    assert set(told) == set(KINDS)


def _in_a_list(status: Status) -> str | None:
    row = summary(status, NOW)
    assert bool(row.headline) == bool(row.colour) == bool(row.weight)
    return row.colour or None


def _on_a_page(status: Status) -> str | None:
    view = cluster_view(PublishedCluster(status), NOW)
    by_tone = {"bad": "red", "warn": "yellow", "good": None}
    assert view.tone in by_tone
    assert (view.headline is None) == (by_tone[view.tone] is None)
    return by_tone[view.tone]


def _for_programs(status: Status) -> str | None:
    told = msgspec.json.decode(msgspec.json.encode(tables.whole_status(status, None, NOW)))
    return None if told["headline"] is None else str(told["headline"]["colour"])


VIEWS: dict[str, Callable[[Status], str | None]] = {
    "list": _in_a_list,
    "page": _on_a_page,
    "json": _for_programs,
}


def shown(renderable: object) -> str:
    console = Console(width=200, markup=False, highlight=False)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def test_the_error_comes_before_its_traceback_and_with_what_to_do() -> None:
    trace = "rank 0 on i-1\nTraceback (most recent call last):\n  File …\nOutOfMemoryError: CUDA"
    status = replace(status_with({"failed"}), reason=trace)
    lines = [line.strip() for line in shown(tables.status_table(status)).splitlines()]
    assert lines[0] == "demo  failed, OutOfMemoryError: CUDA out of memory"
    assert lines[1] == "rank 0 on i-1"
    worst = headline(status, NOW)
    assert worst is not None
    assert worst.line == "The job has failed: OutOfMemoryError: CUDA out of memory"
    assert "`spotelastic restart demo` goes on from step 200" in worst.todo
    assert "ends by itself in 1 min 30 s" in worst.todo
    gone = headline(status, NOW + 91)
    assert gone is not None and "`spotelastic up` with the same name" in gone.todo


def test_whoever_goes_on_from_a_checkpoint_that_is_nan_is_told_so() -> None:
    for state in ("failed", "stopped", "succeeded"):
        found = headlines(replace(WELL, state=state, not_finite=41), NOW)
        assert {each.colour for each in found} == {"red"}
        assert any("restore(step=...)" in each.todo for each in found)
    failed = headline(replace(WELL, state="failed", not_finite=41), NOW)
    assert failed is not None and "from step 200, where the loss is not finite." in failed.todo
    before = headline(replace(WELL, state="failed", not_finite=201), NOW)
    assert before is not None and "from step 200." in before.todo


def test_a_yellow_headline_becomes_red_if_it_lasts() -> None:
    silent = [headlines(replace(WELL, at=NOW - 60), now) for now in (NOW, NOW + 2000)]
    assert [[each.colour for each in found] for found in silent] == [["yellow"], ["red"]]
    boots = replace(WELL, round=0, state="pending", short_since=NOW - 30.0)
    assert [headline(replace(boots, at=now), now) is None for now in (NOW, NOW + 2000)] == [
        True,
        False,
    ]
    for wrong in (
        {"quiet": "no step", "stepped_at": NOW - 60},
        {"unsaved": "no space", "committed_at": NOW - 60},
        {"unsaved": "no space", "began_at": NOW - 60},
    ):
        both = [replace(WELL, at=now, **wrong) for now in (NOW, NOW + 2000)]  # type: ignore[arg-type]
        found = [headlines(each, each.at)[0].colour for each in both]
        assert found == ["yellow", "red"]
    short = replace(WELL, short_since=NOW - 30.0)
    assert [headlines(replace(short, at=now), now)[0].colour for now in (NOW, NOW + 2000)] == [
        "yellow",
        "red",
    ]


# -- how far ---------------------------------------------------------------------------------------


def executed(draw: random.Random, steps: int, seconds: float) -> list[Point]:
    """Steps of a run that pauses now and then, and repeats some of them."""
    at, step, points = NOW, 0, list[Point]()
    while step < steps:
        step += 1
        at += seconds
        points.append(Point(step, 1.0, at))
        if draw.random() < 0.02:
            at += 20 * seconds
            step -= min(step - 1, 5)
    return points


@pytest.mark.parametrize("seed", range(10))
def test_the_estimate_counts_pauses_and_repeated_steps(seed: int) -> None:
    draw = random.Random(seed)
    total, seconds = 4000, draw.choice([0.05, 0.5, 2.0])
    points = executed(draw, total, seconds)
    for share in (0.5, 0.8):
        until = next(i for i, point in enumerate(points) if point.step >= share * total)
        last = points[until]
        told = replace(
            WELL,
            step=last.step,
            total=total,
            at=last.at,
            began_at=points[0].at,
            pace=training_pace.pace(points[: until + 1]),
            usd=10.0,
            usd_per_hour=3600.0,
        )
        estimate = progress_of(told, last.at)
        really = points[-1].at - last.at
        assert estimate.left == pytest.approx(really, rel=0.35)
        assert estimate.left is not None and estimate.usd_at_end is not None
        assert estimate.usd_at_end == pytest.approx(10.0 + estimate.left)
        assert estimate.share == pytest.approx(share, abs=0.01)


def test_the_pace_of_a_restarted_job_leaves_out_that_it_stood_still() -> None:
    before = [Point(step, 1.0, NOW + step) for step in range(1, 21)]
    after = [Point(20 + step, 1.0, NOW + 1800 + step) for step in range(1, 21)]
    assert training_pace.pace([*before, *after], restarted=NOW + 1790) == 1.0
    assert training_pace.pace(before, restarted=NOW + 1790) == 0.0, "not known yet"


def test_a_run_without_a_known_end_has_none() -> None:
    estimate = progress_of(replace(WELL, pace=1.0, began_at=NOW - 65, usd=1.0), NOW)
    assert (estimate.share, estimate.left, estimate.ends_at, estimate.usd_at_end) == (None,) * 4
    assert estimate.line == "1 min 5 s so far"
    unknown_pace = progress_of(replace(WELL, total=1000, usd=1.0), NOW)
    assert (unknown_pace.share, unknown_pace.left) == (0.213, None)
    over = progress_of(replace(WELL, state="succeeded", step=9, total=9, pace=1.0), NOW)
    assert (over.share, over.left) == (1.0, None)


def test_no_end_is_foretold_of_a_job_that_makes_no_step() -> None:
    goes = replace(WELL, total=1000, pace=1.0, usd=1.0, usd_per_hour=1.0)
    assert progress_of(goes, NOW).left == 787
    node = NodeStatus("i-1", "worker", "waiting", "a", "b")
    for stands in (
        replace(goes, quiet="no step for 22 min: rank 3 stands in all_reduce"),
        replace(goes, short_since=NOW - 60, nodes=(node,)),
    ):
        assert (progress_of(stands, NOW).left, progress_of(stands, NOW).usd_at_end) == (None, None)
    shorter = replace(goes, short_since=NOW - 60, nodes=(replace(node, state="training"),))
    assert progress_of(shorter, NOW).left == 787


def test_only_a_job_at_its_last_step_is_wholly_done() -> None:
    for step, shown in ((0, "0%"), (2899, "29%"), (9899, "99%"), (9999, "99%"), (10_000, "100%")):
        told = replace(WELL, step=step, total=10_000, pace=1.0)
        assert progress_of(told, NOW).line.startswith(f"{shown} done")
        page = sections(cluster_view(PublishedCluster(told), NOW))["figures"]
        assert f"{shown} done" in page


def test_commands_are_code_on_a_page_and_whatever_else_is_escaped() -> None:
    def page(reason: str, section: str = "head") -> str:
        told = PublishedCluster(replace(WELL, reason=reason), is_gone=True, goes_on_by="up")
        return sections(cluster_view(told, NOW))[section]

    assert "the same <code>a &lt;b&gt;</code> goes on" in page("the same `a <b>` goes on")
    assert "an odd ` &lt;b&gt;" in page("an odd ` <b>")
    assert "The same <code>spotelastic up</code> as before" in page("", "warnings")


def test_no_checkpoint_is_waited_for_once_a_job_has_ended(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def shown(state: str) -> tuple[bool, bool]:
        told = replace(WELL, state=state, committed=0)
        Console(width=300).print(tables.status_table(told))
        page = sections(cluster_view(PublishedCluster(told), NOW))["figures"]
        return "no checkpoint yet" in capsys.readouterr().out, "object store yet" in page

    assert shown("running") == (True, True)
    assert shown("failed") == (False, False)
    unsaved = headline(replace(WELL, committed=0, unsaved="AccessDenied"), NOW)
    assert unsaved is not None and "there is none: AccessDenied" in unsaved.line


def test_a_job_that_has_ended_gets_no_older_while_its_cluster_waits() -> None:
    failed = replace(WELL, state="failed", began_at=NOW - 65, stepped_at=NOW - 50, ends_at=NOW + 9)
    for waited in (0, 60, 600):
        assert progress_of(replace(failed, at=NOW + waited), NOW + waited).elapsed == 15


def test_a_cluster_that_is_gone_is_not_offered_a_restart_or_said_to_end() -> None:
    failed = replace(WELL, reason="UsageError: no: it would fail again", **ENDED)
    assert "`spotelastic restart demo`" in str(headline(failed, NOW))
    assert "ends by itself in 1 min 30 s" in str(headline(failed, NOW))
    gone = headline(last_status(failed, 0), NOW)
    assert gone is not None
    assert gone.todo.endswith("Then `spotelastic up` with the same name goes on from step 200.")


def test_an_error_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    """By our own exceptions, whose traceback is one line, and by a reason that quotes them."""
    error = "UsageError: call init_process_group first"
    failure = Failure("1", "i-1", "r", 0, 0, NOW, 1, error, error)
    records = Records(job=Job("failed", NOW, f"{error}: it would fail again", failure=failure))
    told = status("demo", Account(records), "", NOW)
    Console(width=300).print(tables.status_table(told))
    assert capsys.readouterr().out.count(error) == 1
    assert sections(cluster_view(PublishedCluster(told), NOW))["head"].count(error) == 1


def test_what_nobody_knows_exactly_has_no_digits_that_say_nothing() -> None:
    assert [roughly(each) for each in (0.2, 42.4, 95.0, 754.0, 7384.0)] == [
        "1 s",
        "42 s",
        "1 min 40 s",
        "13 min",
        "2 h 3 min",
    ]


# -- losses ----------------------------------------------------------------------------------------


def curve(*losses: float | None) -> list[Point]:
    return [Point(step, value, NOW + step) for step, value in enumerate(losses, 1)]


def test_a_loss_that_is_finite_again_is_not_told_of() -> None:
    def since(points: list[Point], *told: tuple[int, float]) -> int:
        reports = [
            Progress(str(n), 1, 9, NOW, not_finite=step, not_finite_at=NOW + at)
            for n, (step, at) in enumerate(told)
        ]
        return training_pace.not_finite_since(reports, points)

    assert since(curve(1.0, None, None), (2, 2.0), (0, 0.0)) == 2
    assert since(curve(1.0, None, None), (3, 2.9), (2, 0.5)) == 2  # by a clock that is behind
    assert since(curve(None, None), (0, 0.0)) == 0  # the script tells none
    assert since([], (7, 7.0)) == 7
    # Only one node reports losses, and that is another one since.
    went_on = [Point(step, 0.5, NOW + 100 + step) for step in range(3, 9)]
    assert since([*curve(1.0, None), *went_on], (2, 2.0), (0, 0.0)) == 0
    # The run was sent back, and diverges earlier than the steps that were finite before.
    again = [Point(step, None, NOW + 500 + step) for step in range(41, 50)]
    assert since([*curve(*[1.0] * 213), *again], (41, 541.0)) == 41


@pytest.mark.parametrize("seed", range(5))
def test_only_losses_that_stay_far_above_their_history_are_unusual(seed: int) -> None:
    draw = random.Random(seed)
    falling = [5.0 / (1 + step / 50) + draw.gauss(0, 0.05) for step in range(600)]
    for length in range(1, 601, 7):
        assert training_pace.usual_loss(curve(*falling[:length])) is None
    spiky = [value * (30 if draw.random() < 0.05 else 1) for value in falling]
    assert training_pace.usual_loss(curve(*spiky)) is None
    far = [*falling, *(8.0 + draw.random() for _ in range(10))]
    usual = training_pace.usual_loss(curve(*far))
    assert usual is not None and 0.1 < usual < 5.0
    assert training_pace.usual_loss(curve(*far[:-9])) is None  # one spike
