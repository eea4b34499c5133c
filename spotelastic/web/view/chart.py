"""The loss curve as values: what is drawn where, in shares of the chart's width and height (pure).

Steps that were executed again appear twice, so the work that an interruption has cost can be seen.
"""

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spotelastic.model.counting import counted, dollars, loss
from spotelastic.model.progress import Interruption, Point
from spotelastic.web.view import words

MOST_POINTS = 1200
"""Points that are drawn. A chart is about as many pixels wide."""
MARGIN = 0.06
"""Share of the range that stays free above and below the curve."""
FAR = 30.0
"""A largest loss this many times the median is drawn on a logarithmic scale."""


@dataclass(frozen=True, slots=True)
class AxisTick:
    """A labelled place on an axis."""

    place: float
    """From 0 (left, or bottom) to 1."""
    label: str


@dataclass(frozen=True, slots=True)
class ChartMark:
    """An interruption on the curve."""

    x: float
    y: float
    kind: str
    """The kind of interruption as a word, by which it is coloured."""
    label: str
    """The kind for people."""
    told: str
    """What it was and what it cost, in one line."""


@dataclass(frozen=True, slots=True)
class LossChart:
    """A loss curve with its interruptions."""

    lines: tuple[tuple[tuple[float, float], ...], ...]
    """Each stretch of steps as places on the chart; (0, 0) is at the bottom left."""
    marks: tuple[ChartMark, ...]
    steps: tuple[AxisTick, ...]
    losses: tuple[AxisTick, ...]
    is_logarithmic: bool
    summary: str
    """The curve in words, for those who do not see it."""

    @property
    def kinds(self) -> tuple[tuple[str, str], ...]:
        """Every kind of mark once, with its label: the legend."""
        return tuple(dict.fromkeys((mark.kind, mark.label) for mark in self.marks))


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.logarithmic:
            low, high, at = math.log10(low), math.log10(high), math.log10(max(value, self.low))
        return min(1.0, max(0.0, (at - low) / (high - low)))


def loss_chart(
    points: Sequence[Point],
    interruptions: Sequence[Interruption],
    starts: Sequence[float],
    now: float,
) -> LossChart | None:
    """Return the chart; None as long as there are not two losses to draw a line between.

    `starts` are the times at which rounds began, in order.
    """
    executed = sorted(points, key=lambda point: point.at)
    drawable = [p for p in executed if p.loss is not None and math.isfinite(p.loss)]
    if len(drawable) < 2:
        return None
    losses = [point.loss for point in drawable if point.loss is not None]
    steps = [point.step for point in drawable]
    first = min(steps)
    last = max(first + 1, *steps)
    across = _Scale(0 if first < last * MARGIN else first, last)
    up = _loss_scale(losses)
    runs = stretches(drawable, starts)
    share = MOST_POINTS / sum(map(len, runs))
    lines = [thinned(run, math.ceil(share * len(run))) for run in runs]
    return LossChart(
        lines=tuple(
            tuple((across.place(step), up.place(value)) for step, value in line) for line in lines
        ),
        marks=tuple(_marks(drawable, interruptions, across, up, now)),
        steps=tuple(
            AxisTick(across.place(at), f"{at:,.0f}") for at in ticks(across.low, across.high, 5)
        ),
        losses=tuple(_loss_ticks(up)),
        is_logarithmic=up.logarithmic,
        summary=_summary(drawable, losses, len(interruptions)),
    )


def stretches(executed: Iterable[Point], starts: Sequence[float]) -> list[list[tuple[int, float]]]:
    """Return the steps of each round with their losses.

    Every node tells of a step, each by its own clock: within a round the first one counts. So a
    step appears twice only if it was executed again.
    """
    rounds: dict[int, dict[int, float]] = {}
    for point in executed:
        if point.loss is not None:
            its = rounds.setdefault(bisect.bisect_right(starts, point.at), {})
            its.setdefault(point.step, point.loss)
    return [sorted(rounds[number].items()) for number in sorted(rounds)]


def thinned(run: Sequence[tuple[int, float]], most: int) -> Sequence[tuple[int, float]]:
    """Return a stretch with at most `most` points that looks the same: of each part of it the
    first, the lowest, the highest and the last point stay.
    """
    if len(run) <= most:
        return run
    size = math.ceil(len(run) / max(1, most // 4))
    kept: list[tuple[int, float]] = []
    for begin in range(0, len(run), size):
        part = run[begin : begin + size]
        low, high = min(part, key=lambda at: at[1]), max(part, key=lambda at: at[1])
        kept += sorted({part[0], low, high, part[-1]})
    return kept


def ticks(low: float, high: float, about: int) -> tuple[float, ...]:
    """Return round numbers between two, about so many of them."""
    raw = (high - low) / max(1, about)
    magnitude = 10.0 ** math.floor(math.log10(raw))
    distance = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= raw * 0.999)
    if distance < 1 and high - low >= about:
        distance = 1.0
    first = math.ceil(low / distance - 1e-9)
    count = math.floor(high / distance + 1e-9) - first
    return tuple((first + index) * distance for index in range(count + 1))


def _loss_scale(losses: Sequence[float]) -> _Scale:
    low, high = min(losses), max(losses)
    middle = sorted(losses)[len(losses) // 2]
    if low > 0 and middle > 0 and high / middle >= FAR:
        return _Scale(low / 1.2, high * 1.2, logarithmic=True)
    room = (high - low) * MARGIN or abs(high) * MARGIN or 1.0
    return _Scale(low - room, high + room)


def _loss_ticks(scale: _Scale) -> Iterable[AxisTick]:
    if not scale.logarithmic:
        found = ticks(scale.low, scale.high, 4)
        digits = max(0, -math.floor(math.log10(found[1] - found[0]) + 1e-9)) if found[1:] else 2
        for at in found:
            yield AxisTick(scale.place(at), f"{at:.{digits}f}" if digits < 5 else f"{at:.3g}")
        return
    for power in range(math.ceil(math.log10(scale.low)), math.floor(math.log10(scale.high)) + 1):
        yield AxisTick(scale.place(10.0**power), f"{10.0**power:g}")


def _marks(
    executed: Sequence[Point],
    interruptions: Sequence[Interruption],
    across: _Scale,
    up: _Scale,
    now: float,
) -> Iterable[ChartMark]:
    times = [point.at for point in executed]
    for row in sorted(interruptions, key=lambda each: each.at):
        last = executed[max(0, bisect.bisect_right(times, row.at) - 1)]
        yield ChartMark(
            across.place(last.step),
            up.place(last.loss or 0.0),
            row.kind.value if row.kind.is_known else "other",
            words.plain(row.kind.traits.label),
            words.plain(told(row, now)),
        )


def told(row: Interruption, now: float) -> str:
    """Return an interruption in one line: what, where, when, and what it cost."""
    parts = [f"{row.kind.traits.label}: {row.node}", words.moment(row.at, now)]
    if row.pause_s is not None:
        parts.append(f"paused {words.span(row.pause_s)}")
    if row.steps_lost is not None:
        parts.append(f"{counted(row.steps_lost, 'step')} repeated")
    if row.usd is not None:
        parts.append(dollars(row.usd))
    return " · ".join(parts)


def _summary(executed: Sequence[Point], losses: Sequence[float], interruptions: int) -> str:
    first, last = executed[0], executed[-1]
    return (
        f"Loss from {loss(losses[0])} at step {first.step} to {loss(losses[-1])} at "
        f"step {last.step}, with {counted(interruptions, 'interruption')}"
    )
