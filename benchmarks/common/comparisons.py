"""Shows what `in_place.py` has measured."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from common.losses import Sample
from common.step_costs import Cost
from common.systems import System

LEASE = 2.0
EVENTS = {
    "worker": "worker killed",
    "node": "node killed",
    "freeze": "node frozen",
    "arrival": "arrival: longest gap",
}
LIMITS = {"worker": 0.2, "node": 0.2, "freeze": LEASE + 0.2, "arrival": 0.15}
"""Seconds that in-place recovery must reach."""
SHARDED_LIMIT = 1.0
"""Seconds, besides the model's own build, where a model is sharded and no part of it is lost."""
STAGES = ("until proposed", "until started", "until stepped")
"""Of a round. The first one counts from the event; an arrival's from its longest gap."""
OURS, RIVAL, SHARDED = "in-place", "torchft", "built"
"""Names of systems: in-place recovery must not be slower than the rival."""


@dataclass
class Results:
    """What was measured of one system."""

    samples: dict[str, list[Sample]] = field(default_factory=lambda: {e: [] for e in EVENTS})
    failed: dict[str, list[str]] = field(default_factory=lambda: {e: [] for e in EVENTS})
    stages: dict[str, list[list[float]]] = field(default_factory=lambda: {e: [] for e in EVENTS})
    """Seconds of each of STAGES."""


@dataclass
class Kills:
    """What became of a job whose workers were killed, one at a time."""

    system: str
    count: int
    ended: int = 0
    """How often a survivor ended as well."""
    samples: list[Sample] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: one event under one system."""

    event: str
    system: str
    seconds: list[float] = field(default_factory=list)
    median: float | None = None
    steps_lost: int = 0
    """Most of all trials."""
    replaced: int = 0
    refused: int = 0
    failed: list[str] = field(default_factory=list)
    missing: str = ""
    stages: list[float] = field(default_factory=list)
    """Medians of STAGES."""
    ratio: float | None = None
    """How many times as long as in place."""
    bar: str = ""
    met: bool | None = None
    """Whether in-place recovery has reached its bar."""


@dataclass(frozen=True, slots=True)
class Measured:
    """All that was measured."""

    rows: list[Row]
    kills: list[Kills]
    costs: list[Cost]


def rows(found: Sequence[tuple[System, Results]]) -> Iterator[Row]:
    """Yield each event's rows, ours first."""
    for event in EVENTS:
        first: float | None = None
        for system, results in found:
            samples, failed = results.samples[event], results.failed[event]
            if not samples:
                missing = system.missing.get(event, "")
                yield Row(event, system.label, failed=failed, missing=missing)
                continue
            median = statistics.median(sample.seconds for sample in samples)
            lost = max(sample.lost for sample in samples)
            bar, met = "", None
            if system.name == OURS:
                first, replaced = median, sum(sample.replaced for sample in samples)
                bar = f"<= {LIMITS[event]:g} s, 0 lost"
                met = median <= LIMITS[event] and not (lost or replaced or failed)
            elif system.name == SHARDED and event == "worker":
                build = statistics.median(sample.build for sample in samples)
                replaced = sum(sample.replaced for sample in samples)
                bar = f"<= {SHARDED_LIMIT:g} s + build of {build:.2f} s"
                met = median <= SHARDED_LIMIT + build and not (replaced or failed)
            elif system.name == RIVAL and event != "arrival" and first:
                bar, met = "not faster than in place", median >= first
            yield Row(
                event,
                system.label,
                [sample.seconds for sample in samples],
                median,
                lost,
                sum(sample.replaced for sample in samples),
                sum(sample.refused for sample in samples),
                failed,
                stages=[*map(statistics.median, zip(*results.stages[event], strict=True))],
                ratio=median / first if first else None,
                bar=bar,
                met=met,
            )


def show(measured: Measured) -> None:
    print(f"{'event':22} {'system':28} {'seconds':>26} {'lost':>5} {'ratio':>6}  bar")
    for row in measured.rows:
        _show_row(row)
    if any(row.stages for row in measured.rows):
        _show_stages(measured.rows)
    print()
    for kills in measured.kills:
        _show_kills(kills)
    for cost in measured.costs:
        _show_cost(cost)


def _show_stages(rows: Sequence[Row]) -> None:
    heads = " ".join(f"{stage:>14}" for stage in STAGES)
    print(f"\n{'where the time goes':22} {'(medians)':28} {heads}")
    for row in rows:
        if row.stages:
            stages = " ".join(f"{seconds:>14.3f}" for seconds in row.stages)
            print(f"{EVENTS[row.event].partition(':')[0]:22} {row.system:28} {stages}")


def _show_row(row: Row) -> None:
    told, lost, bar = row.missing or "; ".join(row.failed) or "-", "-", ""
    if row.median is not None:
        spread = f"({min(row.seconds):.2f} to {max(row.seconds):.2f}, {len(row.seconds)})"
        told, lost = f"{row.median:.2f} {spread}", str(row.steps_lost)
        if row.failed:
            bar = f"{len(row.failed)} more: {row.failed[0]}"
    if row.met is not None:
        bar = f"{row.bar}: {'met' if row.met else 'MISSED'}  {bar}"
    ratio = "-" if row.ratio is None else f"{row.ratio:.1f}x"
    print(f"{EVENTS[row.event]:22} {row.system:28} {told:>26} {lost:>5} {ratio:>6}  {bar}")


def _show_kills(kills: Kills) -> None:
    seconds = sorted(sample.seconds for sample in kills.samples)
    told = f"{statistics.median(seconds):.2f} s, at most {seconds[-1]:.2f}" if seconds else "-"
    lost = sum(sample.lost for sample in kills.samples)
    replaced = sum(sample.replaced for sample in kills.samples)
    print(
        f"{kills.count} workers killed, {kills.system}: survivors ended {kills.ended} times; "
        f"{told}; {lost} steps lost; {replaced} survivors in new processes"
    )


def _show_cost(cost: Cost) -> None:
    bar = ""
    if cost.sought >= 0.05:
        bar = f"  <= 1 %: {'met' if cost.percent <= 1 else 'MISSED'}"
    print(
        f"a step of {1000 * cost.without:.2f} ms takes {1000 * cost.with_it:.2f} ms with the "
        f"step vote: {cost.percent:+.1f} %{bar}"
    )
