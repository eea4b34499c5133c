"""The loss curve as values: what is drawn where."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clusters.published_cluster import BEGAN, LOSS, NOTICE, POINTS, STARTS

from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.progress import Interruption, Point
from spotelastic.web.view.chart import (
    MOST_MARKS,
    MOST_POINTS,
    labels,
    loss_chart,
    stretches,
    thinned,
    ticks,
    whole_ticks,
)


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
    assert chart.kinds == (("spot_interruption", "●", "spot notice"), ("loss", "▲", "node lost"))
    assert [tick.label for tick in chart.bottom] == ["0", "25", "50", "75", "100"]
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
    assert chart.up.is_logarithmic
    assert [tick.label for tick in chart.left] == ["0.1", "1", "10", "100", "1,000"]
    flat = loss_chart([Point(1, 0.5, 1.0), Point(2, 0.5, 2.0)], (), (), 0.0)
    assert flat is not None
    assert {y for line in flat.lines for _, y in line} == {0.5}


@given(
    st.lists(
        st.floats(-1e30, 1e30, allow_nan=False, allow_infinity=False), min_size=2, max_size=60
    ),
    st.integers(0, 10**9),
)
def test_whatever_the_losses_are_all_lies_within_the_chart_or_is_marked_at_its_edge(
    losses: list[float], at: int
) -> None:
    points = [Point(at + step, loss, float(step)) for step, loss in enumerate(losses)]
    chart = loss_chart(points, (NOTICE,), (), 0.0)
    assert chart is not None
    beyond = {round(x, 9) for line in chart.lines for x, y in line if not 0.0 <= y <= 1.0}
    assert bool(beyond) == bool(chart.wild)
    assert {round(mark.x, 9) for mark in chart.wild} <= beyond
    places = [(x, 0.0) for line in chart.lines for x, _ in line]
    places += [(mark.x, mark.y) for mark in (*chart.marks, *chart.wild)]
    places += [(tick.place, 0.0) for tick in (*chart.bottom, *chart.left)]
    assert all(0.0 <= share <= 1.0 for place in places for share in place)


@given(
    st.floats(-1e6, 1e6, allow_nan=False),
    st.floats(1e-6, 1e6, allow_nan=False),
    st.integers(1, 8),
)
def test_a_label_says_the_very_value_of_its_tick(low: float, width: float, about: int) -> None:
    """So 7.5 is not labelled 8, nor 0.25 as 0.2; and steps are whole."""
    if width < abs(low) * 1e-9:
        return
    found = ticks(low, low + width, about)
    for value, label in zip(found, labels(found), strict=True):
        assert float(label.replace(",", "")) == pytest.approx(value, rel=0.006, abs=width * 1e-6)
        if "e" not in label:
            assert float(label.replace(",", "")) == pytest.approx(value, abs=width * 1e-6 + 1e-7)
    assert len(set(labels(found))) == len(found) or "e" in "".join(labels(found))
    for at in whole_ticks(int(low), int(low) + max(1, int(width))):
        assert at == int(at)


def test_the_axis_of_a_first_run_is_labelled_as_it_is() -> None:
    """A curve that falls from 11 to 2 has ticks between whole numbers."""
    falls = [Point(step, 2.0 + 9.0 * 0.9**step, float(step)) for step in range(1, 100)]
    chart = loss_chart(falls, (), (), 0.0)
    assert chart is not None
    assert [tick.label for tick in chart.left] == ["2.5", "5.0", "7.5", "10.0"]
    few = loss_chart([Point(step, 1.0, float(step)) for step in range(9)], (), (), 0.0)
    assert few is not None
    assert [tick.label for tick in few.bottom] == ["0", "2", "4", "6", "8"]


def test_a_wild_value_leaves_the_others_their_height() -> None:
    points = [Point(step, 3.0 - step / 100, float(step)) for step in range(200)]
    points[10] = Point(10, 1e6, 10.0)
    chart = loss_chart(points, (), (), 0.0)
    assert chart is not None and not chart.up.is_logarithmic
    usual = [y for x, y in chart.lines[0] if x != chart.across.place(10)]
    assert max(usual) - min(usual) > 0.8
    (mark,) = chart.wild
    assert (mark.x, mark.y, mark.told) == (10 / 199, 1.0, "1,000,000 at step 10: beyond the axis")


def test_a_loss_that_is_no_number_has_a_band_to_the_last_step() -> None:
    """JSON has no such numbers: they come as losses that are not known."""
    points = [
        Point(step, 1.0 / step if step <= 40 else None, float(step)) for step in range(1, 201)
    ]
    struck = Interruption(InterruptionKind.LOSS, "i-1", 150.5, None, None, None, None, None)
    chart = loss_chart(points, (struck,), (), 0.0, not_finite=41)
    assert chart is not None
    (band,) = chart.bands
    assert (band.begin, band.end) == (41 / 200, 1.0)
    assert band.told == "the loss is NaN or infinite since step 41"
    assert chart.summary.endswith("not a number since step 41, with 1 interruption")
    assert chart.marks[0].x == 150 / 200, "where it struck, not where the curve ends"
    never = loss_chart([replace(each, loss=None) for each in points], (), (), 0.0, not_finite=1)
    assert never is not None and never.lines == () and len(never.bands) == 1
    again = [*points, *(Point(step, 0.1, float(step)) for step in range(201, 300))]
    came_back = loss_chart(again, (), (), 0.0)
    assert came_back is not None
    assert [each.told for each in came_back.bands] == ["no finite loss is known of steps 41 to 200"]
    seldom = [Point(step, 1.0 if step % 50 == 0 else None, float(step)) for step in range(300)]
    told_seldom = loss_chart(seldom, (), (), 0.0)
    assert told_seldom is not None and told_seldom.bands == ()


def test_a_curve_goes_on_through_rounds_and_is_broken_only_where_steps_ran_again() -> None:
    steps = [*range(1, 34), *range(34, 70), *range(60, 90)]
    points = [Point(step, 1.0, float(at)) for at, step in enumerate(steps)]
    chart = loss_chart(points, (), (33.0, 69.0), 0.0)
    assert chart is not None
    ends = [(line[0][0] * 89, line[-1][0] * 89) for line in chart.lines]
    assert [(round(a), round(b)) for a, b in ends] == [(1, 69), (60, 89)]


def test_many_interruptions_leave_the_curve_to_be_seen_and_are_all_counted() -> None:
    points = [Point(step, 1.0, float(step)) for step in range(1000)]
    kinds = (InterruptionKind.SPOT_INTERRUPTION, InterruptionKind.LOSS)
    rows = [
        Interruption(kinds[n % 2], f"i-{n}", n * 2.0, None, None, None, 0.5, 1, usd=0.01)
        for n in range(400)
    ]
    chart = loss_chart(points, rows, (), 0.0)
    assert chart is not None and len(chart.marks) <= MOST_MARKS
    told = [int(mark.told.split()[0]) for mark in chart.marks]
    assert sum(told) == 400
    assert "spot notice" in chart.marks[0].told and "node lost" in chart.marks[0].told
    few = loss_chart(points, rows[:MOST_MARKS], (), 0.0)
    assert few is not None and len(few.marks) == MOST_MARKS


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
    steps = [*(step for _ in range(50) for step in range(10)), *range(10, 5000)]
    points = [Point(step, math.sin(step), float(at)) for at, step in enumerate(steps)]
    chart = loss_chart(points, (), tuple(float(at) for at in range(0, 510, 10)), 0.0)
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
