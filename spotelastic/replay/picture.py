"""Draws a replay as a picture: the nodes on the market, and what each policy made of them."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from spotelastic.errors import EnvironmentFailure
from spotelastic.replay.outcome import HOUR, ReplayOutcome, RunSpan, kept
from spotelastic.replay.trace import Trace

MARKET, TRAINS, REPEATED = "#d9d9d9", "#0072b2", "#d55e00"


def draw(trace: Trace, outcomes: Sequence[ReplayOutcome], file: Path) -> None:
    """Write a PNG with one panel per policy.

    It shows the nodes over hours, training that counts, and steps that were repeated.

    Raises `EnvironmentFailure` where matplotlib is missing or the file cannot be written.
    """
    try:
        # `Figure` is used without pyplot: no display is needed, and no state outlives the picture.
        from matplotlib.figure import Figure
    except ImportError:
        raise EnvironmentFailure(
            "--picture needs matplotlib: pip install 'spotelastic[local]'"
        ) from None
    figure = Figure(figsize=(10, 1.0 + 1.9 * len(outcomes)), layout="constrained")
    panels = figure.subplots(len(outcomes), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    hours, nodes = zip(*_market(trace), strict=True)
    for axes, outcome in zip(panels, outcomes, strict=True):
        axes.fill_between(hours, nodes, step="post", color=MARKET, lw=0, label="on the market")
        for colour, label, bars in (
            (TRAINS, "trains", [_counted(s, k) for s, k in _with_kept(outcome)]),
            (REPEATED, "executed again later", [_repeated(s, k) for s, k in _with_kept(outcome)]),
        ):
            axes.bar(
                [start / HOUR for start, _, _ in bars],
                [nodes for _, _, nodes in bars],
                [(end - start) / HOUR for start, end, _ in bars],
                align="edge",
                color=colour,
                lw=0,
                label=label,
            )
        title = f"{outcome.policy}: goodput {outcome.goodput:.1%}, {outcome.steps_lost} steps lost"
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_ylabel("nodes")
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel(f"hours of {trace.name}")
    panels[0].legend(frameon=False, ncols=3, loc="upper right", bbox_to_anchor=(1.0, 1.25))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=110, format="png")
    except OSError as error:
        raise EnvironmentFailure(f"--picture {file}: {error.strerror or error}") from None


def _market(trace: Trace) -> Iterator[tuple[float, int]]:
    """Yield the hour of each change and the number of nodes from then on."""
    changes = [0.0, *trace.changes(), trace.length]
    for at, after in pairwise(changes):
        if at < after:
            yield at / HOUR, sum(span.start <= at < span.end for span in trace.spans)
    yield trace.length / HOUR, 0


def _with_kept(outcome: ReplayOutcome) -> list[tuple[RunSpan, int]]:
    return list(zip(outcome.stretches, kept(outcome.stretches), strict=True))


def _counted(stretch: RunSpan, steps: int) -> tuple[float, float, int]:
    return stretch.start, _until(stretch, steps), stretch.nodes


def _repeated(stretch: RunSpan, steps: int) -> tuple[float, float, int]:
    return _until(stretch, steps), stretch.end, stretch.nodes


def _until(stretch: RunSpan, steps: int) -> float:
    """Return when the span had executed this number of steps."""
    share = steps / (stretch.last - stretch.first) if stretch.last > stretch.first else 1.0
    return stretch.start + share * (stretch.end - stretch.start)
