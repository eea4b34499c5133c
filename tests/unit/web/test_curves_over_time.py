"""Speed, nodes, goodput and price over a job's time, against what they are made from."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotelastic_checkpoints.types import TimedValue
from support.clusters.published_cluster import BEGAN, EVENTS, NEW, POINTS, PUBLISHED, STATUS, began

from spotelastic.controller.accounting.usage import Before, Usage, rates
from spotelastic.model.measured import GPU_MEMORY, GPU_USE
from spotelastic.model.progress import Point
from spotelastic.web.view.chart import LineChart
from spotelastic.web.view.cluster_view import curves_of

RATES = ((BEGAN, 0.4), (BEGAN + 41, 0.6), (BEGAN + 55, 0.4), (BEGAN + 70, 0.2))


def charts(**changes: object) -> dict[str, LineChart]:
    it = replace(PUBLISHED, rates=RATES, **changes)  # type: ignore[arg-type]
    return {each.name: each.chart for each in curves_of(it, BEGAN + 101).history}


def value_at(chart: LineChart, at: float) -> float:
    """The value that a curve shows at a time: that of its last corner before."""
    x = chart.across.place(at)
    corners = [y for line in chart.lines for other, y in line if other <= x]
    return chart.up.low + corners[-1] * (chart.up.high - chart.up.low)


def test_nodes_and_price_are_what_they_were_at_each_time() -> None:
    found = charts()
    nodes, price = found["Nodes"], found["Cost per hour"]
    for after, count, usd in ((5, 0, 0.4), (20, 2, 0.4), (45, 2, 0.6), (60, 2, 0.4), (90, 1, 0.2)):
        if after > 10:
            assert value_at(nodes, BEGAN + after) == pytest.approx(count)
        assert value_at(price, BEGAN + after) == pytest.approx(usd)
    assert nodes.limit == pytest.approx(2 / nodes.up.high), "the most that are wanted"
    assert [each.label for each in price.left] == ["$0.00", "$0.25", "$0.50"]


def test_all_curves_show_the_same_time_with_what_struck_in_it() -> None:
    found = charts()
    assert list(found) == ["Step time", "Nodes", "Goodput", "Cost per hour"]
    assert len({chart.across for chart in found.values()}) == 1
    for chart in found.values():
        assert [mark.x for mark in chart.marks] == [
            chart.across.place(BEGAN + at) for at in (40, 70)
        ]
        assert all(0.0 <= x <= 1.0 for line in chart.lines for x, _ in line)
    assert value_at(found["Step time"], BEGAN + 30) == pytest.approx(0.5)


def test_goodput_is_what_the_steps_that_count_took_of_the_time() -> None:
    """Two rounds of 100 s, the second one of which repeats half of the first one's steps."""
    points = [Point(step, 1.0, BEGAN + step) for step in range(1, 101)]
    points += [Point(step, 1.0, BEGAN + 150 + step) for step in range(51, 151)]
    events = (began(0, 1, "i-1"), began(200, 2, "i-1", step=50))
    chart = charts(points=tuple(points), events=events)["Goodput"]
    (line,) = chart.lines
    mean = sum(y for _, y in line) / len(line) * chart.up.high
    assert mean == pytest.approx(100 * 150 / 300, abs=1.0)
    assert value_at(chart, BEGAN + 30) == pytest.approx(100, abs=2)
    assert value_at(chart, BEGAN + 80) == pytest.approx(0, abs=2), "these steps ran again"


@given(
    st.lists(
        st.tuples(st.floats(0, 1e5), st.floats(0, 1e5), st.floats(0.01, 50), st.booleans()),
        min_size=1,
        max_size=12,
    )
)
def test_rates_add_up_to_the_bill(drawn: list[tuple[float, float, float, bool]]) -> None:
    bill = {}
    for number, (start, lasts, usd, changes) in enumerate(drawn):
        earlier = (Before(start + lasts / 2, usd / 3),) if changes else ()
        name = f"i-{number}"
        bill[name] = Usage(name, "m5", True, start, start + lasts, usd, usd, earlier=earlier)
    found = rates(bill)
    ends = [at for at, _ in found[1:]] + [found[-1][0]]
    total = sum(rate * (end - at) / 3600 for (at, rate), end in zip(found, ends, strict=True))
    expected = sum(item.usd(item.start, 3e5) for item in bill.values())
    assert total == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert found[-1][1] == pytest.approx(0.0, abs=1e-6), "all have ended"


def test_what_a_script_logs_has_a_curve_with_gaps_where_it_is_no_number() -> None:
    series = [TimedValue(BEGAN + 10 + n, None if n == 20 else 0.1 * n) for n in range(60)]
    found = charts(measured={"norm": tuple(series), "bad": (TimedValue(BEGAN + 9, None),)})
    assert list(found)[-1] == "norm", "what never was a number has no curve"
    for after in (5, 15, 25, 55):
        assert value_at(found["norm"], BEGAN + 10 + after) == pytest.approx(0.1 * after)
    assert len(found["norm"].lines) == 2
    assert [mark.x for mark in found["norm"].marks] == [mark.x for mark in found["Nodes"].marks]
    drawn = curves_of(replace(PUBLISHED, measured={"norm": tuple(series)}), BEGAN + 101).history
    assert {each.name: each.note for each in drawn}["norm"] == "5.9 last"


def test_gpus_are_told_in_percent_and_before_what_is_logged() -> None:
    series = tuple(TimedValue(BEGAN + 10 + n, 50.0 + n % 3) for n in range(60))
    found = charts(measured={"a_value": series, GPU_MEMORY: series, GPU_USE: series})
    assert list(found)[-3:] == ["GPU memory", "GPU use", "a_value"]
    assert (found["GPU use"].up.low, found["GPU use"].unit) == (0.0, "%")
    assert value_at(found["GPU use"], BEGAN + 11) == pytest.approx(51.0)


def test_before_anything_is_known_there_is_no_curve() -> None:
    assert curves_of(NEW, BEGAN).history == ()
    (only,) = curves_of(replace(NEW, events=EVENTS, status=STATUS), BEGAN + 101).history
    assert only.name == "Nodes"


def test_a_job_that_has_ended_ends_with_its_last_step_or_node() -> None:
    later = replace(STATUS, state="failed", at=BEGAN + 9999)
    for chart in charts(status=later).values():
        assert chart.across.high <= max(POINTS[-1].at, BEGAN + 74)
