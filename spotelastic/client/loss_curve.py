"""Draws the loss curve of a job, with every interruption marked."""

import bisect
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.progress import Interruption, Point

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 140
COLOURS = {
    InterruptionKind.SPOT_INTERRUPTION: "#e69f00",
    InterruptionKind.LOSS: "#d55e00",
    InterruptionKind.WORKER: "#cc79a7",
    InterruptionKind.UNHEALTHY: "#009e73",
    InterruptionKind.ETCD: "#0072b2",
}
OTHER = "#999999"


def stretches(executed: Iterable[Point]) -> list[list[tuple[int, float]]]:
    """Split executed steps into stretches of (step, loss); a new one begins where steps repeat
    (pure)."""
    found: list[list[tuple[int, float]]] = []
    for point in executed:
        if point.loss is None:
            continue
        if not found or point.step <= found[-1][-1][0]:
            found.append([])
        found[-1].append((point.step, point.loss))
    return found


def draw(points: Sequence[Point], interruptions: Sequence[Interruption], file: Path) -> None:
    """Draw loss over steps into `file`, as a PNG."""
    drawn = figure(points, interruptions)
    file.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(file, dpi=DPI)


def figure(points: Sequence[Point], interruptions: Sequence[Interruption]) -> "Figure":
    """Draw loss over steps. Steps that ran twice are drawn twice."""
    # Figure rather than pyplot: it needs no display and keeps no global state.
    from matplotlib.figure import Figure

    executed = sorted(points, key=lambda point: point.at)
    drawn = Figure(figsize=(9, 4.5), layout="constrained")
    axes = drawn.add_subplot()
    for stretch in stretches(executed):
        axes.plot(*zip(*stretch, strict=True), color="#444444", lw=1.2)
    times = [point.at for point in executed]
    labelled: set[str] = set()
    for row in interruptions:
        before = bisect.bisect_right(times, row.at) - 1
        axes.axvline(
            executed[before].step if before >= 0 else 0,
            color=COLOURS.get(row.kind, OTHER),
            linestyle="--",
            linewidth=1.4,
            label=None if row.kind in labelled else row.kind.traits.label,
        )
        labelled.add(row.kind)
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.set_title("Training loss across interruptions")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    if labelled:
        axes.legend(frameon=False)
    return drawn
