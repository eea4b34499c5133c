"""The loss curve as values: what is drawn where."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clusters.published_cluster import BEGAN, LOSS, NOTICE, POINTS, STARTS

from spotelastic.model.progress import Point
from spotelastic.web.view.chart import MOST_POINTS, loss_chart, stretches, thinned, ticks


def test_steps_that_ran_twice_are_drawn_twice_and_interruptions_lie_on_the_curve() -> None:
    chart = loss_chart(POINTS, (NOTICE, LOSS), STARTS, BEGAN + 100)
    assert chart is not None
    first, second = chart.lines
    assert first[0][0] == pytest.approx(1 / 120) and second[-1][0] == 1.0
    assert second[0][0] < first[-1][0], "the second stretch begins before the first one's end"
    assert [mark.kind for mark in chart.marks] == ["spot_interruption", "loss"]
    # 30 s after the first step, two steps a second: step 61 of 120.
    assert chart.marks[0].x == pytest.approx(61 / 120)
    assert chart.marks[0].y == pytest.approx(dict(first)[chart.marks[0].x])
    assert chart.marks[1].told.startswith("node lost: i-1 · ")
    assert chart.marks[1].told.endswith(" · paused 3.50 s · 8 steps repeated")
    assert chart.kinds == (("spot_interruption", "spot notice"), ("loss", "node lost"))
    assert [tick.label for tick in chart.steps] == ["0", "25", "50", "75", "100"]
    assert chart.summary == ("Loss from 2.990 at step 1 to 1.800 at step 120, with 2 interruptions")


def test_a_step_of_which_several_nodes_tell_is_drawn_once() -> None:
    """Also if the clock of one is behind, or its report comes late."""
    told = [(1, 0.0), (1, 0.1), (2, 1.0), (1, 1.01), (2, 1.1), (3, 2.0), (2, 5.0), (3, 6.0)]
    points = [Point(step, 10.0 - at, at) for step, at in told]
    assert stretches(points, (4.0,)) == [
        [(1, 10.0), (2, 9.0), (3, 8.0)],
        [(2, 5.0), (3, 4.0)],
    ]


@pytest.mark.parametrize("losses", [(), (1.0,), (None, None, None), (math.nan, math.inf, 1.0)])
def test_without_two_losses_there_is_no_chart(losses: tuple[float | None, ...]) -> None:
    points = [Point(step, loss, float(step)) for step, loss in enumerate(losses, 1)]
    assert loss_chart(points, (), (), 0.0) is None


def test_losses_that_are_no_numbers_are_left_out() -> None:
    losses = (2.0, math.nan, -math.inf, None, 1.0)
    points = [Point(step, loss, float(step)) for step, loss in enumerate(losses, 1)]
    chart = loss_chart(points, (), (), 0.0)
    assert chart is not None
    assert [len(line) for line in chart.lines] == [2]


def test_a_loss_that_falls_by_powers_of_ten_has_a_logarithmic_scale() -> None:
    points = [Point(step, 1000.0 * 0.9**step, float(step)) for step in range(100)]
    chart = loss_chart(points, (), (), 0.0)
    assert chart is not None
    assert chart.is_logarithmic
    assert [tick.label for tick in chart.losses] == ["0.1", "1", "10", "100", "1000"]
    flat = loss_chart([Point(1, 0.5, 1.0), Point(2, 0.5, 2.0)], (), (), 0.0)
    assert flat is not None
    assert {y for line in flat.lines for _, y in line} == {0.5}


@given(
    st.lists(
        st.floats(-1e30, 1e30, allow_nan=False, allow_infinity=False), min_size=2, max_size=60
    ),
    st.integers(0, 10**9),
)
def test_whatever_the_losses_are_all_lies_within_the_chart(losses: list[float], at: int) -> None:
    points = [Point(at + step, loss, float(step)) for step, loss in enumerate(losses)]
    chart = loss_chart(points, (NOTICE,), (), 0.0)
    assert chart is not None
    places = [place for line in chart.lines for place in line]
    places += [(mark.x, mark.y) for mark in chart.marks]
    places += [(tick.place, 0.0) for tick in (*chart.steps, *chart.losses)]
    assert all(0.0 <= share <= 1.0 for place in places for share in place)


def test_a_long_curve_keeps_its_peaks_and_its_ends() -> None:
    run = [(step, math.sin(step / 50)) for step in range(100_000)]
    run[54_321] = (54_321, 9.0)
    few = thinned(run, MOST_POINTS)
    assert len(few) <= MOST_POINTS
    assert (few[0], few[-1]) == (run[0], run[-1])
    assert (54_321, 9.0) in few
    assert list(few) == sorted(few)


def test_short_rounds_leave_a_long_one_its_detail() -> None:
    """Each round has its share of the points, by its length."""
    points = [Point(step, math.sin(step), float(step)) for step in range(5000)]
    chart = loss_chart(points, (), tuple(float(step) for step in range(0, 500, 10)), 0.0)
    assert chart is not None
    assert len(chart.lines) == 50
    assert len(chart.lines[-1]) > MOST_POINTS * 0.8
    assert sum(map(len, chart.lines)) < MOST_POINTS * 1.5


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1000, (0, 200, 400, 600, 800, 1000)),
        (3, 7, (3, 4, 5, 6, 7)),
        (0.5, 0.52, (0.5, 0.505, 0.51, 0.515, 0.52)),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, expected: tuple[float, ...]) -> None:
    assert ticks(low, high, 5) == pytest.approx(expected)
