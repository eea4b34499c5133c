"""How fast replicas are sent: begun by the network card, then by what they cost training."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from spotelastic_checkpoints.replicas.rates import (
    ALLOWED,
    LEAST,
    MOST,
    UNKNOWN,
    PullPace,
    Reached,
    usual_rate,
)

BEGUN = 100e6


def test_it_begins_with_a_part_of_the_fastest_network_card(tmp_path: Path) -> None:
    for name, speed in (("lo", "-1"), ("eth0", "10000"), ("eth1", "x")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "speed").write_text(f"{speed}\n")
    assert usual_rate(tmp_path) == 0.1 * 10e9 / 8
    assert usual_rate(tmp_path / "lo") == UNKNOWN


def after(pulls: int, cost: Callable[[float], float], noise: float = 0.0) -> PullPace:
    """The pace after so many pulls, where steps are longer by a share that the rate costs."""
    rng, pace = random.Random(1), PullPace.of(BEGUN)
    for _ in range(pulls):
        beside = 0.2 * (1 + cost(pace.rate)) * (1 + rng.gauss(0, noise))
        pace = pace.after(0.2, beside)
    return pace


def test_what_costs_too_much_becomes_slower_until_it_does_not() -> None:
    pace = after(200, lambda rate: 0.04 * rate / BEGUN)
    assert pace.rate > LEAST * BEGUN and 0.04 * pace.rate / BEGUN <= 1.25 * ALLOWED


def test_what_costs_nothing_becomes_faster_within_limits() -> None:
    assert after(200, lambda _: 0.0).rate == MOST * BEGUN
    assert after(200, lambda _: 1.0).rate == LEAST * BEGUN


@pytest.mark.parametrize("cost", [0.0, 0.01])
def test_noise_does_not_slow_it_down(cost: float) -> None:
    """Steps that vary by a tenth say nothing about a hundredth."""
    assert after(100, lambda _: cost, noise=0.1).rate >= BEGUN / 4


def test_a_few_steps_are_not_measured() -> None:
    begun = Reached(10, 100.0)
    assert begun.mean(Reached(12, 101.0)) == 0.0
    assert begun.mean(Reached(20, 105.0)) == pytest.approx(0.5)
    pace = PullPace.of(BEGUN)
    for _ in range(20):
        pace = pace.after(0.0, 1.0).after(1.0, 0.0)
    assert pace == PullPace.of(BEGUN)
