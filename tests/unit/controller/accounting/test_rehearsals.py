"""Which rehearsal people are told of, out of a job's events."""

from dataclasses import asdict, replace

from spotelastic.controller.accounting.rehearsals import (
    audit,
    fingerprint,
    proof,
    skipped,
    telling,
)
from spotelastic.model.in_place import AUDITED, SICK, SKIPPED, Rehearsal, Skipped
from spotelastic.model.progress import Event


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


def test_each_node_proves_its_part_of_the_first_commit() -> None:
    whole = replace(told(10, 3, "equal"), kind="proven")
    damaged = replace(told(10, 3, "different"), kind="proven")
    assert proof([told(10, 3, "different")]) is None
    assert proof([whole, damaged, whole]) == Rehearsal(10, 3, "different", ("step 10",))
    assert step(damaged) is None
    of_a_later_run = replace(told(20, 3, "equal"), kind="proven")
    assert proof([damaged, of_a_later_run]) == Rehearsal(20, 3, "equal", ("step 20",))


def test_the_fingerprint_is_of_the_last_step() -> None:
    first, last = (replace(told(at, 3, f"{at:064x}"), kind="fingerprint") for at in (10, 20))
    assert fingerprint([first, last, told(30, 3, "equal")], 20) == last.data["outcome"]
    assert fingerprint([first, last], 10) == ""
    assert fingerprint([], 20) == ""
    assert step(first) is None and proof([first]) is None


def test_skipped_steps_are_counted_and_the_last_is_told() -> None:
    its = [("skipped", 5), ("skipped", 6), ("back", 7), ("skipped", 6)]
    events = [
        Event(100.0 + at, SKIPPED, "", "n1", asdict(Rehearsal(step, 2, outcome, (f"at {step}",))))
        for at, (outcome, step) in enumerate(its)
    ]
    assert skipped([]) == Skipped()
    found = skipped([*events, Event(200.0, SKIPPED, "of another version")])
    assert found == Skipped(4, 1, 103.0, "at 6")
    assert "by --guard: 4, and the run has gone back (times: 1); the last: at 6" in found.text


def test_the_newest_audit_in_which_ranks_differ_is_told_as_all_have_seen_it() -> None:
    told = [Rehearsal(9, 3, "different", ("a",)), Rehearsal(9, 3, SICK, ("b",))]
    later = [Rehearsal(12, 3, SICK, ("c",)), Rehearsal(12, 3, "different", ("d",))]
    events = [Event(1.0, AUDITED, "", "n1", asdict(each)) for each in (*told, *later)]
    assert audit(events) == later[1]
    assert audit(events[:2]) == told[0]
    assert audit([]) is None
