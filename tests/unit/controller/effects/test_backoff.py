"""How rarely what fails is tried again, and how often it is said."""

from spotelastic.controller.effects.backoff import SAID_AGAIN_AFTER, Backoff, Complaint


def test_pauses_grow_up_to_a_bound_and_begin_anew_after_a_success() -> None:
    drawn: list[tuple[float, float]] = []

    def draw(low: float, high: float) -> float:
        drawn.append((low, high))
        return high

    backoff = Backoff(1.0, 5.0, draw)
    assert [backoff.failed() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert all(low == high / 2 for low, high in drawn), "jitter"
    backoff.succeeded()
    assert backoff.failed() == 1.0
    assert all(0.5 <= Backoff(1.0, 5.0).failed() <= 1.0 for _ in range(100))


def test_what_goes_on_is_said_once_a_minute_and_what_is_new_at_once() -> None:
    now, said = 0.0, list[str]()
    complain = Complaint(said.append, lambda: now)
    for line in ("busy", "busy", "denied", "denied"):
        complain(line)
    assert said == ["busy", "denied"]
    now += SAID_AGAIN_AFTER
    complain("denied")
    complain("denied")
    assert said == ["busy", "denied", "denied"]
