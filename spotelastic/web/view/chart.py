"""Curves as values: what is drawn where, in shares of a chart's width and height (pure).

Steps that were executed again appear twice, so the work that an interruption has cost can be seen.

What must never happen:

* A loss that is no number looks like a curve that ends. Its steps count for the axis, and have a
  band of their own.
* One wild value makes a flat line of all others. The axis is made for the others, and a mark at its
  edge says how far the value lies beyond.
* Marks hide the curve. Many of them become few, each of which stands for several.
"""

import bisect
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from spotelastic.model.counting import counted, dollars, loss
from spotelastic.model.progress import Interruption, Point
from spotelastic.web.view import words

MOST_POINTS = 1200
"""Points that are drawn. A chart is about as many pixels wide."""
MOST_MARKS = 30
"""Marks that are drawn each by itself; more are drawn as one for each such part of the width."""
MARGIN = 0.06
"""Share of the range that stays free above and below the curve."""
FAR = 30.0
"""A largest loss this many times the median is drawn on a logarithmic scale."""
WILD = 12.0
"""A curve this many times as high as nine tenths of its values is has wild ones among them."""
MISSING = 10
"""Steps without a loss that are not told: losses of GPUs come later than their steps."""
SHAPES = {"spot_interruption": "●", "loss": "▲", "by_hand": "▲", "worker": "■", "unhealthy": "✖"}
"""What a kind of interruption is drawn as, so that kinds differ by more than their colours."""
OTHER_SHAPE = "◆"


@dataclass(frozen=True, slots=True)
class AxisTick:
    """A labelled place on an axis."""

    place: float
    """From 0 (left, or bottom) to 1."""
    label: str
    at: float = 0.0
    """The time that it stands for (epoch seconds); 0: it stands for none."""


@dataclass(frozen=True, slots=True)
class ChartMark:
    """An interruption on the curve, several of them, or a value beyond the axis."""

    x: float
    y: float
    kind: str
    """The kind of interruption as a word, by which it is coloured."""
    label: str
    told: str
    """What it was and what it cost, in one line."""
    at: float = 0.0
    """When it was, or one of several, and on which node: its event is found by these."""
    node: str = ""

    @property
    def shape(self) -> str:
        """The character that it is drawn as."""
        return SHAPES.get(self.kind, OTHER_SHAPE)


@dataclass(frozen=True, slots=True)
class ChartBand:
    """A part of the width in which there is nothing to draw, and why."""

    begin: float
    end: float
    told: str


@dataclass(frozen=True, slots=True)
class ChartScale:
    """The values of an axis, from one end to the other."""

    low: float
    high: float
    is_logarithmic: bool = False

    def beyond(self, value: float) -> float:
        """Return where a value lies; below 0 or above 1 if that is beyond the axis."""
        low, high, at = self.low, self.high, value
        if self.is_logarithmic:
            low, high, at = math.log10(low), math.log10(high), math.log10(max(value, self.low))
        return (at - low) / (high - low)

    def place(self, value: float) -> float:
        """Return where a value lies, at most at an end of the axis."""
        return min(1.0, max(0.0, self.beyond(value)))


Line = Sequence[tuple[float, float]]
Struck = tuple[float, float, Interruption]
"""An interruption with its place on a chart."""


@dataclass(frozen=True, slots=True)
class LineChart:
    """A curve with its interruptions."""

    lines: tuple[tuple[tuple[float, float], ...], ...]
    """Each stretch as places on the chart; (0, 0) is at the bottom left. Wild values lie beyond."""
    across: ChartScale
    up: ChartScale
    bottom: tuple[AxisTick, ...]
    left: tuple[AxisTick, ...]
    summary: str
    """The curve in words, for those who do not see it."""
    marks: tuple[ChartMark, ...] = ()
    bands: tuple[ChartBand, ...] = ()
    wild: tuple[ChartMark, ...] = ()
    """Values beyond the axis, at its edge."""
    unit: str = ""
    """What is written behind a value."""
    limit: float | None = None
    """Where a line marks the most that there can be."""

    @property
    def kinds(self) -> tuple[tuple[str, str, str], ...]:
        """Every kind of mark once, with its shape and label: the legend."""
        return tuple(dict.fromkeys((mark.kind, mark.shape, mark.label) for mark in self.marks))


def loss_chart(
    points: Sequence[Point],
    interruptions: Sequence[Interruption],
    starts: Sequence[float],
    now: float,
    not_finite: int = 0,
) -> LineChart | None:
    """Return the loss over steps; None as long as there are not two losses.

    `starts` are the times at which rounds began, in order. `not_finite` is the step since which the
    loss is no number, 0 if it is: points have no such losses, as JSON has none.
    """
    executed = sorted(points, key=lambda point: point.at)
    drawable = [p for p in executed if p.loss is not None and math.isfinite(p.loss)]
    if len(executed) < 2 or (len(drawable) < 2 and not not_finite):
        return None
    steps = [point.step for point in executed]
    first = min(steps)
    last = max(first + 1, *steps)
    across = ChartScale(0 if first < last * MARGIN else first, last)
    runs = joined(stretches(drawable, starts))
    up = robust_scale([value for run in runs for _, value in run])
    return LineChart(
        lines=places(runs, across, up),
        across=across,
        up=up,
        bottom=tuple(
            AxisTick(across.place(at), f"{at:,.0f}") for at in whole_ticks(across.low, across.high)
        ),
        left=tuple(value_ticks(up)) if drawable else (),
        summary=_summary(executed, drawable, len(interruptions), not_finite),
        marks=marks_of(_struck(executed, interruptions, across, up), now),
        bands=tuple(_bands(executed, drawable, across, not_finite)),
        wild=tuple(_wild(runs, across, up)),
    )


def places(
    runs: Sequence[Line], across: ChartScale, up: ChartScale, most: int = MOST_POINTS
) -> tuple[tuple[tuple[float, float], ...], ...]:
    """Return the lines of a chart, which share its points by their lengths."""
    share = most / max(1, sum(map(len, runs)))
    lines = [thinned(run, math.ceil(share * len(run))) for run in runs]
    return tuple(tuple((across.place(x), up.beyond(y)) for x, y in line) for line in lines)


def stretches(executed: Iterable[Point], starts: Sequence[float]) -> list[list[tuple[int, float]]]:
    """Return the steps of each round with their losses.

    Every node tells of a step, each by its own clock: within a round the first one counts. So a
    step appears twice only if it was executed again.
    """
    return [
        [(point.step, point.loss or 0.0) for point in its]
        for its in by_round((p for p in executed if p.loss is not None), starts)
    ]


def by_round(executed: Iterable[Point], starts: Sequence[float]) -> list[list[Point]]:
    """Return the steps that each round has executed, in order, once each."""
    rounds: dict[int, dict[int, Point]] = {}
    for point in executed:
        its = rounds.setdefault(bisect.bisect_right(starts, point.at), {})
        its.setdefault(point.step, point)
    return [[rounds[n][step] for step in sorted(rounds[n])] for n in sorted(rounds)]


def joined(runs: Iterable[list[tuple[int, float]]]) -> list[list[tuple[int, float]]]:
    """Return the stretches, joining one that goes on where the last one ended to that one.

    Only steps that were executed again begin another line.
    """
    lines: list[list[tuple[int, float]]] = []
    for run in runs:
        if lines and run[0][0] > lines[-1][-1][0]:
            lines[-1] += run
        else:
            lines.append(list(run))
    return lines


def thinned(run: Line, most: int) -> Line:
    """Return a stretch with at most `most` points that looks the same.

    Of each part of it the first, the lowest, the highest and the last point stay.
    """
    if len(run) <= most:
        return run
    size = math.ceil(len(run) / max(1, most // 4))
    kept: list[tuple[float, float]] = []
    for begin in range(0, len(run), size):
        part = range(begin, min(begin + size, len(run)))
        low = min(part, key=lambda at: run[at][1])
        high = max(part, key=lambda at: run[at][1])
        kept += [run[at] for at in sorted({part[0], low, high, part[-1]})]
    return kept


# -- axes ------------------------------------------------------------------------------------------


def ticks(low: float, high: float, about: int) -> tuple[float, ...]:
    """Return round numbers between two, about so many of them."""
    raw = (high - low) / max(1, about)
    magnitude = 10.0 ** math.floor(math.log10(raw))
    distance = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= raw * 0.999)
    first = math.ceil(low / distance - 1e-9)
    count = math.floor(high / distance + 1e-9) - first
    return tuple((first + index) * distance for index in range(count + 1))


def whole_ticks(low: float, high: float, about: int = 5) -> tuple[float, ...]:
    """Return round whole numbers between two, about so many of them."""
    found = [at for at in ticks(low, high, about) if at == int(at)]
    return tuple(found) if found[1:] else ticks(low, high, max(1, int(high - low)))


def labels(values: Sequence[float]) -> list[str]:
    """Return the values of an axis in one notation, each as exact as it is round."""
    if any(value and not 1e-4 <= abs(value) < 1e7 for value in values):
        return [f"{value:.3g}" for value in values]
    told = [f"{value:.7f}".rstrip("0") for value in values]
    digits = max((len(text.partition(".")[2]) for text in told), default=0)
    return [f"{value:,.{digits}f}" for value in values]


def value_ticks(scale: ChartScale, about: int = 4) -> Iterable[AxisTick]:
    """Yield the ticks of an axis."""
    found: Sequence[float] = ticks(scale.low, scale.high, about)
    if not scale.is_logarithmic:
        for at, label in zip(found, labels(found), strict=True):
            yield AxisTick(scale.place(at), label)
        return
    low, high = math.ceil(math.log10(scale.low)), math.floor(math.log10(scale.high))
    each = 1 + (high - low) // 6
    is_plain = low > -4 and high < 5
    for power in range(low, high + 1, each):
        label = f"{10.0**power:,.{max(0, -power)}f}" if is_plain else f"1e{power}"
        yield AxisTick(scale.place(10.0**power), label)


def robust_scale(values: Sequence[float], *, low: float | None = None) -> ChartScale:
    """Return the scale for these values, for the usual ones if some are wild; `low`: its lower end.

    It is logarithmic where the usual ones are of several magnitudes, and holds them all then.
    """
    usual = _usual(sorted(values)) if values else [0.0, 1.0]
    middle = usual[len(usual) // 2]
    if low is None and values and min(values) > 0 and usual[-1] / middle >= FAR:
        return ChartScale(min(values) / 1.2, max(values) * 1.2, is_logarithmic=True)
    bottom = usual[0] if low is None else min(low, usual[0])
    room = (usual[-1] - bottom) * MARGIN or abs(usual[-1]) * MARGIN or 1.0
    return ChartScale(bottom - room if low is None else bottom, usual[-1] + room)


def _usual(ordered: Sequence[float]) -> Sequence[float]:
    """Return the values that lie within reach of nine tenths of them; all if none is wild."""
    low, high = ordered[round(0.05 * len(ordered))], ordered[int(0.95 * (len(ordered) - 1))]
    if len(ordered) < 8 or not high > low or ordered[-1] - ordered[0] <= WILD * (high - low):
        return ordered
    reach = 2.0 * (high - low)
    return [value for value in ordered if low - reach <= value <= high + reach]


# -- what lies on the curve ------------------------------------------------------------------------


def _bands(
    executed: Sequence[Point],
    drawable: Sequence[Point],
    across: ChartScale,
    not_finite: int,
) -> Iterable[ChartBand]:
    """Yield the stretches of steps without a loss that is a number, where it is told more often."""
    told = sorted({point.step for point in drawable})
    apart = [b - a for a, b in pairwise(told)]
    usual = 2 * median(apart) + MISSING if apart else 0
    last = max(point.step for point in executed)
    ends = list(pairwise([*told, last + 1]))
    for before, after in ends:
        first, end = before + 1, after - 1
        if after - before <= usual or (not_finite and end >= not_finite):
            continue
        yield _band(across, first, end, f"no finite loss is known of steps {first:,} to {end:,}")
    if not_finite:
        text = f"the loss is NaN or infinite since step {not_finite:,}"
        yield _band(across, not_finite, last, text)


def _band(across: ChartScale, first: int, last: int, told: str) -> ChartBand:
    begin = min(across.place(first), 0.996)
    return ChartBand(begin, max(across.place(last), begin + 0.004), told)


def _wild(runs: Sequence[Line], across: ChartScale, up: ChartScale) -> Iterable[ChartMark]:
    """Yield a mark at the edge for each group of values beyond it: of the farthest."""
    found: dict[tuple[int, bool], tuple[float, float]] = {}
    for x, y in (point for run in runs for point in run):
        if not up.low <= y <= up.high:
            part = int(across.place(x) * MOST_MARKS), y > up.high
            farthest = max(found.get(part, (x, y)), (x, y), key=lambda at: abs(at[1] - up.low))
            found[part] = farthest
    for (_, is_above), (x, y) in found.items():
        told = f"{y:,.9g} at step {x:,.0f}: beyond the axis"
        yield ChartMark(across.place(x), float(is_above), "wild", "beyond the axis", told)


def _struck(
    executed: Sequence[Point],
    interruptions: Iterable[Interruption],
    across: ChartScale,
    up: ChartScale,
) -> Iterable[Struck]:
    times = [point.at for point in executed]
    for row in interruptions:
        last = executed[max(0, bisect.bisect_right(times, row.at) - 1)]
        height = last.loss if last.loss is not None and math.isfinite(last.loss) else up.low
        yield across.place(last.step), up.place(height), row


def marks_of(struck: Iterable[Struck], now: float) -> tuple[ChartMark, ...]:
    """Return a mark for each interruption, or few that stand for those which lie side by side."""
    each = sorted(struck, key=lambda placed: placed[2].at)
    if len(each) <= MOST_MARKS:
        return tuple(_mark(x, y, row, told(row, now)) for x, y, row in each)
    folds: dict[int, list[Struck]] = {}
    for placed in each:
        folds.setdefault(int(placed[0] * MOST_MARKS), []).append(placed)
    return tuple(_one_of(fold, now) for fold in folds.values())


def _mark(x: float, y: float, row: Interruption, text: str) -> ChartMark:
    kind = row.kind.value if row.kind.is_known else "other"
    label, node = words.plain(row.kind.traits.label), words.plain(row.node)
    return ChartMark(x, y, kind, label, words.plain(text), row.at, node)


def _one_of(fold: Sequence[Struck], now: float) -> ChartMark:
    """Return one mark for several: of the kind that most of them have."""
    rows = [row for _, _, row in fold]
    if len(rows) == 1:
        return _mark(*fold[0], told(rows[0], now))
    kinds = Counter(row.kind for row in rows).most_common()
    parts = [f"{count} {kind.traits.label}" for kind, count in kinds]
    paused = sum(row.pause_s or 0.0 for row in rows)
    repeated = sum(row.steps_lost or 0 for row in rows)
    spent = dollars(sum(row.usd or 0.0 for row in rows))
    text = (
        f"{counted(len(rows), 'interruption')} ({', '.join(parts)}) · "
        f"paused {words.span(paused)} · {counted(repeated, 'step')} repeated · {spent}"
    )
    x, y, _ = fold[len(fold) // 2]
    return _mark(x, y, next(row for row in rows if row.kind == kinds[0][0]), text)


def told(row: Interruption, now: float) -> str:
    """Return an interruption in one line: what, where, when, and what it cost."""
    parts = [f"{row.kind.traits.label}: {row.node}", words.zoned(row.at, now)]
    if row.pause_s is not None:
        parts.append(f"paused {words.span(row.pause_s)}")
    if row.steps_lost is not None:
        parts.append(f"{counted(row.steps_lost, 'step')} repeated")
    if row.usd is not None:
        parts.append(dollars(row.usd))
    return " · ".join(parts)


def _summary(
    executed: Sequence[Point], drawable: Sequence[Point], interruptions: int, not_finite: int
) -> str:
    struck = f", with {counted(interruptions, 'interruption')}"
    if not drawable:
        return f"The loss is not a number up to step {executed[-1].step}{struck}"
    first, end = drawable[0], drawable[-1]
    text = (
        f"Loss from {loss(first.loss or 0.0)} at step {first.step} to {loss(end.loss or 0.0)} at "
        f"step {end.step}"
    )
    if not_finite:
        text += f", and not a number since step {not_finite}"
    return text + struck
