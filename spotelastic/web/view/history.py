"""How fast a job trained, on how many nodes, how well and at which price, over its time (pure)."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, groupby, pairwise
from statistics import median

from spotelastic.model.counting import dollars
from spotelastic.model.job import ENDED
from spotelastic.model.measured import GPU_MEMORY, GPU_USE, Series
from spotelastic.model.progress import Interruption, Point
from spotelastic.web.view import words
from spotelastic.web.view.chart import (
    AxisTick,
    ChartScale,
    LineChart,
    by_round,
    marks_of,
    places,
    robust_scale,
    value_ticks,
    whole_ticks,
)
from spotelastic.web.view.published import PublishedCluster
from spotelastic.web.view.timeline import round_starts, time_ticks

MOST_POINTS = 300
"""Points that a curve has; it is half as wide as that of the loss."""
PERCENTS = {GPU_USE: "percent, all nodes", GPU_MEMORY: "percent in use, all nodes"}
"""What is measured in percent, and what is told of it."""
FEWER_POINTS = 160
"""Points of a curve of what the script logs, of which there may be many."""
PARTS = 60
"""Parts of the time, of each of which the goodput is told."""


@dataclass(frozen=True, slots=True)
class HistoryChart:
    """A value over the job's time."""

    name: str
    note: str
    chart: LineChart


@dataclass(frozen=True, slots=True)
class _Time:
    """The time that all curves show, with what struck in it."""

    begin: float
    end: float
    struck: Sequence[Interruption]

    def chart(
        self,
        lines: Sequence[Sequence[tuple[float, float]]],
        up: ChartScale,
        summary: str,
        *,
        left: Iterable[AxisTick] | None = None,
        unit: str = "",
        limit: float | None = None,
        most: int = MOST_POINTS,
    ) -> LineChart:
        across = ChartScale(self.begin, self.end)
        struck = ((across.place(row.at), 0.0, row) for row in self.struck)
        return LineChart(
            lines=places(lines, across, up, most),
            across=across,
            up=up,
            bottom=tuple(time_ticks(self.begin, self.end)),
            left=tuple(value_ticks(up, 3) if left is None else left),
            summary=summary,
            marks=marks_of(struck, self.end),
            unit=unit,
            limit=None if limit is None else up.place(limit),
        )


def history(it: PublishedCluster, counts: Sequence[tuple[float, int]]) -> tuple[HistoryChart, ...]:
    """Return the curves of which something is known.

    `counts`: how many nodes train, from each time on.
    """
    executed = sorted(it.points, key=lambda point: point.at)
    times = [*(point.at for point in (*executed[:1], *executed[-1:])), *(at for at, _ in counts)]
    if not times:
        return ()
    is_over = it.status.state in ENDED or it.is_gone
    end = max([*times, *([] if is_over else [it.status.at])])
    begin = min([*times, *(at for at, _ in it.rates[:1])])
    struck = it.report.interruptions if it.report is not None else ()
    shown = _Time(begin, max(end, begin + 1.0), struck)
    rounds = by_round(executed, round_starts(it.events))
    found = (_steps(rounds, shown), _nodes(it, counts, shown), _goodput(rounds, shown))
    curves = (_measured(name, series, shown) for name, series in _in_order(it.measured))
    return tuple(each for each in (*found, _rates(it, shown), *curves) if each is not None)


def _steps(rounds: Sequence[Sequence[Point]], shown: _Time) -> HistoryChart | None:
    line = [(b.at, _gap(a, b)) for its in rounds for a, b in pairwise(its)]
    if not line:
        return None
    values = [value for _, value in line]
    usual = words.step_time(median(values))
    up = robust_scale(values, low=0.0)
    chart = shown.chart([line], up, f"Seconds a step, usually {usual}", unit="s")
    return HistoryChart("Step time", f"seconds; usually {usual}", chart)


def _gap(one: Point, other: Point) -> float:
    """Return the seconds a step between two points of a round, whose clocks may differ."""
    return max(0.0, other.at - one.at) / (other.step - one.step)


def _nodes(
    it: PublishedCluster, counts: Sequence[tuple[float, int]], shown: _Time
) -> HistoryChart | None:
    if not counts:
        return None
    most = max(count for _, count in counts)
    wanted = it.sizes[1] if it.sizes is not None else None
    up = ChartScale(0.0, 1.08 * max(1, most, wanted or 0))
    left = [AxisTick(up.place(at), f"{at:,.0f}") for at in whole_ticks(0.0, up.high, 3)]
    chart = shown.chart(
        [_stairs(counts, shown.end)],
        up,
        f"Nodes that train, {most} at the most" + (f" of {wanted}" if wanted else ""),
        left=left,
        limit=wanted,
    )
    note = f"that train; dashed: the maximum, {wanted}" if wanted else "that train"
    return HistoryChart("Nodes", note, chart)


def _goodput(rounds: Sequence[Sequence[Point]], shown: _Time) -> HistoryChart | None:
    busy = list(_useful(rounds))
    if not busy:
        return None
    begin, end = busy[0][0], max(end for _, end in busy)
    width = (end - begin) / PARTS
    if width <= 0:
        return None
    useful = [0.0] * PARTS
    for since, until in busy:
        left, right = (max(0.0, (at - begin) / width) for at in (since, until))
        for part in range(int(left), min(PARTS, math.ceil(right))):
            useful[part] += width * (min(right, part + 1) - max(left, part))
    line = [(begin + (n + 0.5) * width, min(1.0, each / width)) for n, each in enumerate(useful)]
    each = words.span(width)
    chart = shown.chart(
        [[(at, 100 * share) for at, share in line]],
        ChartScale(0.0, 108.0),
        f"Share of each {each} that went into steps that count",
        unit="%",
    )
    return HistoryChart("Goodput", f"percent of each {each}", chart)


def _useful(rounds: Sequence[Sequence[Point]]) -> Iterator[tuple[float, float]]:
    """Yield the time of each step that no later round has executed again, by its begin and end.

    A round's first step began an ordinary step before its end.
    """
    if not rounds:
        return
    starts = accumulate((its[0].step for its in reversed(rounds[1:])), min)
    later = [*reversed(list(starts)), math.inf]
    for its, kept in zip(rounds, later, strict=True):
        ordinary = median([_gap(a, b) for a, b in pairwise(its)] or [0.0])
        before = Point(its[0].step - 1, None, its[0].at - ordinary)
        for one, other in pairwise(chain((before,), its)):
            if other.step < kept and other.at > one.at:
                yield one.at, other.at


def _rates(it: PublishedCluster, shown: _Time) -> HistoryChart | None:
    if not any(rate for _, rate in it.rates):
        return None
    up = ChartScale(0.0, 1.08 * max(rate for _, rate in it.rates))
    left = [AxisTick(tick.place, f"${tick.label}") for tick in value_ticks(up, 3)]
    last = dollars(it.rates[-1][1])
    chart = shown.chart(
        [_stairs(it.rates, shown.end)], up, f"US dollars an hour, {last} last", left=left, unit="$"
    )
    return HistoryChart("Cost per hour", "US dollars, all nodes", chart)


def _in_order(measured: Mapping[str, Series]) -> list[tuple[str, Series]]:
    """Return what was measured: first the GPUs, and then what the script logs, by name."""
    return sorted(measured.items(), key=lambda its: (its[0] not in PERCENTS, its[0]))


def _measured(name: str, series: Series, shown: _Time) -> HistoryChart | None:
    """Return the curve of a value, with a gap where it is no number."""
    groups = groupby(series, key=lambda each: each.value is None)
    lines = [[(at, value or 0.0) for at, value in its] for is_gap, its in groups if not is_gap]
    if not lines:
        return None
    newest, is_percent = series[-1].value, name in PERCENTS
    told = "NaN last" if newest is None else f"{newest:.4g}{'%' * is_percent} last"
    up = ChartScale(0.0, 108.0)
    if not is_percent:
        up = robust_scale([value for line in lines for _, value in line])
    unit, most = ("%", MOST_POINTS) if is_percent else ("", FEWER_POINTS)
    chart = shown.chart(lines, up, f"{name}, {told}", unit=unit, most=most)
    return HistoryChart(name, PERCENTS.get(name, told), chart)


def _stairs(changes: Sequence[tuple[float, float]], end: float) -> list[tuple[float, float]]:
    """Return the corners of a value that stays until its next change."""
    corners: list[tuple[float, float]] = []
    for at, value in changes:
        if corners:
            corners.append((at, corners[-1][1]))
        corners.append((at, value))
    return [*corners, (max(end, corners[-1][0]), corners[-1][1])]
