"""What goes wrong is put on record once, and once when it is over; then people are told."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from spotelastic.controller.accounting.troubles import (
    AGAIN,
    KINDS,
    OVER,
    TROUBLE_OVER,
    entries,
    lasting,
)
from spotelastic.model.progress import Event, Status
from spotelastic.notifications.due import NotificationFacts, due, told_before
from spotelastic.notifications.due import record as recorded

WELL = Status("demo", "running", 0.0, round=1, step=213, loss=0.5, committed=200)
FAULTS: dict[str, dict[str, object]] = {
    "loss-not-finite": {"not_finite": 41, "loss": None},
    "no-step": {"quiet": "no step for 22 min", "stepped_at": -1e6},
    "not-committed": {"unsaved": "No space left on device", "committed_at": -1e6},
    "short-of-nodes": {"short_since": -1e6},
    "loss-far-out": {"usual_loss": 0.01, "loss": 0.5},
}


def status(at: float, wrong: set[str]) -> Status:
    changed = {"at": at}
    for each in sorted(wrong):
        changed |= FAULTS[each]  # type: ignore[arg-type]
    return replace(WELL, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(20))
def test_each_trouble_begins_once_and_is_over_once_and_is_told_once(seed: int) -> None:
    draw, events, now = random.Random(seed), list[Event](), 0.0
    wrong, sent = set[str](), list[str]()
    for _ in range(300):
        now += draw.choice([1.0, 60.0, 400.0])
        flips = {each for each in FAULTS if draw.random() < 0.2}
        # A loss that is not finite is not far out as well.
        wrong = (wrong ^ flips) - (
            {"loss-far-out"} if "loss-not-finite" in wrong ^ flips else set()
        )
        new = list(entries(status(now, wrong), events, now))
        # Until they are read back from etcd, what is made again has the same names.
        again = [event.data["id"] for event in entries(status(now + 0.5, wrong), events, now + 0.5)]
        assert again[: len(new)] == [event.data["id"] for event in new] or len(again) > len(new)
        events += new
        open_now = {str(event.data["what"]) for event in lasting(events)}
        assert open_now <= wrong
        facts = NotificationFacts("demo", troubles=lasting(events))
        for each in due(facts, told_before(events), now):
            assert each.type in ("failure", "warning") and "spotelastic status demo" in each.text
            events.append(recorded(each, now))
            sent.append(each.id)
    assert len(set(sent)) == len(sent)
    for what in OVER:
        its = [e for e in events if e.kind in KINDS and e.data["what"] == what]
        assert [each.kind for each in its] == [KINDS[n % 2] for n in range(len(its))]
        for end, begin in pairwise(its):
            assert begin.kind == TROUBLE_OVER or begin.at - end.at >= AGAIN
        assert len({each.data["id"] for each in its}) == len(its) > 0
    assert any("loss-not-finite" in each for each in sent)
    assert not any("short-of-nodes" in each for each in sent)  # it has a notification of its own


def test_a_job_that_has_ended_has_no_troubles_of_training() -> None:
    begun = list(entries(status(1.0, {"loss-not-finite"}), [], 1.0))
    (event,) = begun
    assert (event.data["what"], event.data["colour"]) == ("loss-not-finite", "red")
    assert event.data["step"] == 41
    assert list(entries(replace(status(2.0, set()), state="failed"), begun, 2.0)) == []
    (over,) = entries(status(3.0, set()), begun, 3.0)
    assert (over.message, over.kind) == ("the loss is finite again", TROUBLE_OVER)


def test_a_shortage_of_minutes_is_no_trouble() -> None:
    short = replace(WELL, at=100.0, short_since=10.0, quiet="no step for 1 min", stepped_at=10.0)
    assert list(entries(short, [], 100.0)) == []
    short = replace(short, quiet="")
    (event,) = entries(replace(short, at=1000.0), [], 1000.0)
    assert event.data["what"] == "short-of-nodes"
