"""Which rehearsal people are told of, out of a job's events."""

from dataclasses import asdict

from spotelastic.controller.accounting.rehearsals import telling
from spotelastic.model.progress import Event
from spotelastic.model.rehearsal import Rehearsal


def told(step: int, ranks: int, outcome: str) -> Event:
    found = Rehearsal(step, ranks, outcome, (f"step {step}",))
    return Event(float(step), "rehearsed", found.line, "i-a", asdict(found))


def step(*events: Event) -> int | None:
    found = telling(events)
    return None if found is None else found.step


def test_the_newest_counts_and_one_that_differs_before_all_of_other_numbers_of_ranks() -> None:
    assert step() is None
    assert step(Event(1.0, "round", "")) is None
    assert step(told(2, 3, "equal"), told(40, 2, "noise")) == 40
    assert step(told(2, 3, "different"), told(40, 2, "equal")) == 2
    assert step(told(2, 3, "different"), told(40, 2, "different")) == 40


def test_a_later_one_with_as_many_ranks_takes_its_place() -> None:
    """A script that was mended begins at an earlier step, perhaps."""
    assert step(told(50, 3, "different"), told(9, 3, "equal")) == 9


def test_what_another_version_tells_is_left_out() -> None:
    odd = Event(1.0, "rehearsed", "", data={"step": "all"})
    newer = Event(2.0, "rehearsed", "", data={**told(2, 3, "equal").data, "more": [1]})
    assert step(odd) is None
    assert step(odd, newer) == 2
