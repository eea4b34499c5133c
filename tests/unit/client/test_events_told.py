"""Which events a watcher is told, whatever order they are stored in."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from spotelastic.client.watch import EventsTold
from spotelastic.model.progress import Event


def event(at: float) -> Event:
    return Event(at, "notice", f"at {at}", data={"seconds": at})


@given(st.lists(st.lists(st.integers(0, 5))))
def test_each_event_is_told_once_wherever_it_is_stored(looks: Sequence[Sequence[int]]) -> None:
    """At each look more events are stored, among the earlier ones by their time."""
    told, heard, stored = EventsTold(), list[Event](), list[Event]()
    for more in looks:
        stored = sorted([*stored, *map(event, more)], key=lambda each: each.at)
        heard += told.new(stored)
        assert sorted(heard, key=lambda each: each.at) == stored


def test_what_was_there_before_and_what_is_dropped_later_is_not_told_again() -> None:
    told = EventsTold([event(1), event(2)])
    assert list(told.new([event(1), event(2), event(3)])) == [event(3)]
    assert list(told.new([event(2.5), event(3)])) == [event(2.5)]


def test_what_was_not_asked_for_yet_is_new_at_the_next_look() -> None:
    told = EventsTold()
    assert next(told.new([event(1), event(2)])) == event(1)
    assert list(told.new([event(1), event(2)])) == [event(2)]
