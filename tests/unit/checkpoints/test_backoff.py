"""How rarely what fails is tried again."""

import random

from spotelastic_checkpoints.backoff import Backoff


def pauses(backoff: Backoff, count: int) -> list[float]:
    found = []
    for _ in range(count):
        backoff = backoff.failed()
        found.append(backoff.bound)
    return found


def test_pauses_grow_up_to_a_bound_and_begin_anew_after_a_success() -> None:
    backoff = Backoff(1.0, 5.0)
    assert backoff.bound == 0.0, "nothing has failed"
    assert pauses(backoff, 5) == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert pauses(Backoff(1.0, 5.0, factor=1.5), 3) == [1.0, 1.5, 2.25]
    assert backoff.failed().failed().succeeded() == backoff


def test_no_pause_is_longer_than_the_longest_however_often_it_fails() -> None:
    assert pauses(Backoff(7.0, 5.0), 2) == [5.0, 5.0], "also the first one"
    assert Backoff(0.001, 5.0, failures=10**9).bound == 5.0
    assert Backoff(1.0, 5.0, failures=-3).bound == 0.0


def test_jitter_is_drawn_between_shares_of_the_bound() -> None:
    drawn: list[tuple[float, float]] = []

    def draw(low: float, high: float) -> float:
        drawn.append((low, high))
        return high

    backoff = Backoff(1.0, 30.0, jitter=(0.5, 1.5)).failed().failed()
    assert backoff.pause(draw) == 3.0
    assert drawn == [(1.0, 3.0)]
    assert all(1.0 <= backoff.pause(random.uniform) <= 3.0 for _ in range(100))
    assert Backoff(1.0, 30.0).failed().pause(random.uniform) == 1.0, "none by itself"
