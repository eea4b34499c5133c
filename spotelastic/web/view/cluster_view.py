"""What a person sees of a cluster, as values (pure). The dashboard and the HTML report show it.

Every text is ready to be shown. It may still hold any printable character, so whoever writes it
into a page escapes it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from spotelastic.model.counting import UNPRICED, counted, dollars, loss, percent
from spotelastic.model.estimate import ProgressEstimate, progress_of, roughly
from spotelastic.model.headline import Headline, headlines, yet
from spotelastic.model.job import ENDED, TAKEN_DOWN
from spotelastic.model.progress import Cost, Report, Status
from spotelastic.web.view import rows, words
from spotelastic.web.view.chart import LineChart, loss_chart
from spotelastic.web.view.columns import GOODPUT, REHEARSAL
from spotelastic.web.view.history import HistoryChart, history
from spotelastic.web.view.published import PublishedCluster
from spotelastic.web.view.rows import CheckpointRow, CostRow, EventRow, InterruptionRow, NodeRow
from spotelastic.web.view.timeline import (
    NodeTimeline,
    node_timeline,
    round_starts,
)

Tone = Literal["good", "busy", "still", "warn", "bad"]
TONES: dict[str, Tone] = {
    "running": "good",
    "succeeded": "good",
    "pending": "busy",
    "stopped": "still",
    TAKEN_DOWN: "still",
    "timed out": "warn",
    "failed": "bad",
}
MOST_ROWS = 100
"""Interruptions and checkpoints that a page shows: the newest."""


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """One number that matters, with what belongs to it."""

    name: str
    value: str
    note: str = ""
    help: str = ""
    """What it says, where the name alone does not."""


@dataclass(frozen=True, slots=True)
class DrawnCurves:
    """What takes longer to make than all the rest where there are many steps."""

    loss: LineChart | None
    timeline: NodeTimeline | None
    history: tuple[HistoryChart, ...]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A cluster as a page shows it, at one time."""

    name: str
    state: str
    tone: Tone
    has_ended: bool
    is_gone: bool
    reason: str
    headline: Headline | None
    """The worst that is wrong; None if nothing is."""
    others: tuple[Headline, ...]
    """What else is wrong, the worst first."""
    regions: str
    script: str
    at: str
    """When the status was published, exactly."""
    zone: str
    """The zone of all times, until the browser shows those of its own."""
    figures: tuple[KeyFigure, ...]
    warnings: tuple[str, ...]
    """What is to be known of the cluster besides."""
    chart: LineChart | None
    history: tuple[HistoryChart, ...]
    timeline: NodeTimeline | None
    interruptions: tuple[InterruptionRow, ...]
    earlier_interruptions: int
    """Number of older ones that are not shown."""
    checkpoints: tuple[CheckpointRow, ...] | None
    costs: tuple[CostRow, ...]
    nodes: tuple[NodeRow, ...]
    events: tuple[EventRow, ...]
    earlier_events: int
    ranks: tuple[int, ...]
    """Ranks of the workers, by which logs can be chosen."""
    sizes: tuple[int, int] | None

    @property
    def title(self) -> str:
        """For a browser's tab, which shows its beginning."""
        short = self.headline.short if self.headline is not None else ""
        return f"{self.name}: {short if short not in ('', self.state) else self.state}"

    @property
    def training(self) -> tuple[str, ...]:
        """The nodes that can be interrupted."""
        return tuple(row.node for row in self.nodes if row.can_be_interrupted)


def curves_of(it: PublishedCluster, now: float) -> DrawnCurves:
    """Return the curves."""
    interruptions = it.report.interruptions if it.report is not None else ()
    starts = round_starts(it.events)
    drawn = loss_chart(it.points, interruptions, starts, now, it.status.not_finite)
    timeline = node_timeline(it.status, it.events)
    return DrawnCurves(drawn, timeline, history(it, timeline.counts if timeline else ()))


def cluster_view(
    it: PublishedCluster,
    now: float,
    *,
    most_events: int = 300,
    most_rows: int = MOST_ROWS,
    drawn: DrawnCurves | None = None,
) -> ClusterView:
    """Return what is to be seen of a cluster at `now`; `drawn`: its curves, if they are known."""
    drawn = drawn if drawn is not None else curves_of(it, now)
    told = rows.in_order(it.events)
    events = tuple(islice(rows.events(reversed(told), now), most_events))
    status, report = it.status, it.report
    interruptions = report.interruptions if report is not None else ()
    # Of a job that has ended nothing changes, so its times are told from its end.
    seen_from = status.at if status.state in ENDED or it.is_gone else now
    wrong = tuple(_wrong(status, seen_from if it.is_gone else now))
    worst = wrong[0] if wrong else None
    return ClusterView(
        name=words.plain(status.name),
        state=words.plain(status.state),
        tone=_tone(status, worst),
        has_ended=status.state in ENDED,
        is_gone=it.is_gone,
        reason=words.plain(status.reason),
        headline=worst,
        others=wrong[1:],
        regions="" if status.state in ENDED else words.plain(it.regions),
        script=words.plain(it.script),
        at=words.exactly(status.at),
        zone=words.zone(now),
        figures=tuple(_figures(it, now)),
        warnings=tuple(map(words.plain, _warnings(it))),
        chart=drawn.loss,
        history=drawn.history,
        timeline=drawn.timeline,
        interruptions=tuple(
            rows.interruption(row, now) for row in interruptions[: -most_rows - 1 : -1]
        ),
        earlier_interruptions=max(0, len(interruptions) - most_rows),
        checkpoints=rows.checkpoints(it.checkpoints, seen_from),
        costs=tuple(rows.costs(it.cost)) if it.cost is not None else (),
        nodes=rows.nodes(status.nodes, seen_from),
        events=events,
        earlier_events=len(told) - sum(row.count for row in events),
        ranks=tuple(sorted({rank for row in status.nodes for rank in row.ranks})),
        sizes=it.sizes,
    )


# -- the figures at the top ----------------------------------------------------------------------


def _figures(it: PublishedCluster, now: float) -> Iterator[KeyFigure]:
    status, report = it.status, it.report
    spent = None if it.cost is None else (it.cost.total_usd, it.cost.total_usd_per_hour)
    estimate = progress_of(status, now, None if it.is_gone else spent)
    yield _step(status)
    if estimate.share is not None and status.state not in ENDED:
        yield _progress(estimate, now)
    if status.not_finite:
        yield KeyFigure("Loss", "NaN", f"or infinite, since step {status.not_finite:,}")
    elif status.loss is not None:
        usual = status.usual_loss
        yield KeyFigure("Loss", loss(status.loss), f"was about {loss(usual)}" if usual else "")
    yield _nodes(it)
    if report is not None and report.job.steps_run:
        yield KeyFigure("Goodput", percent(report.goodput, 1), _repeated(report), GOODPUT)
    yield _checkpoint(it, now)
    if (found := status.rehearsal) is not None:
        note = f"step {found.step:,} was made twice on {counted(found.ranks, 'rank')}"
        yield KeyFigure("Rehearsal", "differs" if found.differs else "the same", note, REHEARSAL)
    if report is not None and report.fingerprint:
        its = words.plain(report.fingerprint)
        yield KeyFigure("Fingerprint", its[:8], its)
    if it.cost is not None and not it.cost.is_priced:
        yield KeyFigure("Node-hours", f"{it.cost.node_hours:.3g}", UNPRICED)
    elif it.cost is not None:
        yield KeyFigure("Cost so far", dollars(it.cost.total_usd), _per_hour(it.cost, estimate))


def _step(status: Status) -> KeyFigure:
    parts = [f"of {status.total:,}"] if status.total else []
    parts += [f"{words.step_time(status.step_time)} a step"] if status.step_time else []
    if status.samples_per_second:
        parts.append(f"{status.samples_per_second:,.0f} samples a second")
    return KeyFigure("Step", f"{status.step:,}", " · ".join(parts))


def _progress(estimate: ProgressEstimate, now: float) -> KeyFigure:
    parts = [f"{words.span(int(estimate.elapsed))} so far"] if estimate.elapsed else []
    if estimate.left is None or estimate.ends_at is None:
        return KeyFigure("Done", estimate.percent, " · ".join(parts))
    until = f"until {words.minute(estimate.ends_at, now)} {words.zone(now)}"
    parts = [f"{estimate.percent} done", *parts, until]
    return KeyFigure("Left, about", roughly(estimate.left), " · ".join(parts))


def _nodes(it: PublishedCluster) -> KeyFigure:
    status = it.status
    sizes, most = "", 0
    if it.sizes is not None:
        low, most = it.sizes
        sizes = str(low) if low == most else f"{low} to {most}"
    if status.state in ENDED:
        nodes = "node" if most == 1 else "nodes"
        # The last one may have been proposed only.
        rounds = len(round_starts(it.events)) or status.round
        return KeyFigure("Rounds", f"{rounds:,}", f"{sizes} {nodes}" if sizes else "")
    wanted = f"{sizes} wanted" if sizes else ""
    training = sum(row.state == "training" for row in status.nodes)
    parts = [f"round {status.round}" if status.round else "", wanted]
    return KeyFigure("Nodes training", str(training), " · ".join(filter(None, parts)))


def _repeated(report: Report) -> str:
    repeated = sum(row.steps_lost or 0 for row in report.interruptions)
    struck = counted(len(report.interruptions), "interruption")
    return f"{struck}, {counted(repeated, 'step')} repeated" if report.interruptions else struck


def _checkpoint(it: PublishedCluster, now: float) -> KeyFigure:
    status = it.status
    # The list of checkpoints is read after the status, and may have a newer one.
    latest = next((each for each in it.checkpoints or () if each.latest), None)
    newest = max(status.committed, latest.step if latest is not None else 0)
    if status.upload is not None and status.upload.total:
        return KeyFigure("Checkpoint", f"{newest:,}" if newest else "–", rows.upload(status.upload))
    if not newest:
        return KeyFigure("Checkpoint", "–", "none in the object store" + yet(status))
    committed = [event.at for event in it.events if event.kind == "committed"]
    if latest is not None and latest.step == newest and latest.written is not None:
        committed = [latest.written.timestamp()]  # the same age as in the table
    age = words.ago(max(committed), now) if committed and status.state not in ENDED else ""
    return KeyFigure("Checkpoint", f"{newest:,}", age)


def _per_hour(cost: Cost, estimate: ProgressEstimate) -> str:
    end = estimate.usd_at_end
    in_all = f"about {dollars(end)} in all" if end is not None else ""
    now = f"{dollars(cost.total_usd_per_hour)} an hour" if cost.total_usd_per_hour else ""
    saved = ""
    if cost.on_demand_usd > 0:
        saved = f"workers {1 - cost.cost_usd / cost.on_demand_usd:.0%} below on demand"
    return " · ".join(filter(None, (in_all, now, saved)))


# -- what is not as it should be ------------------------------------------------------------------


def _wrong(status: Status, now: float) -> Iterator[Headline]:
    for each in headlines(status, now):
        yield replace(each, line=words.plain(each.line), todo=words.plain(each.todo))


def _tone(status: Status, worst: Headline | None) -> Tone:
    """Return the tone of the state, which is never better than what is wrong."""
    if worst is None:
        return TONES.get(status.state, "busy")
    return "bad" if worst.colour == "red" else "warn"


def _warnings(it: PublishedCluster) -> Iterator[str]:
    if it.is_gone:
        yield "This cluster is gone. These are its last records." + _goes_on(it)
    yield from it.warnings


def _goes_on(it: PublishedCluster) -> str:
    """Return how its job goes on; nothing where it is done."""
    if not it.goes_on_by or it.status.state == "succeeded":
        return ""
    step = it.status.committed
    where = f"goes on from step {step:,}" if step else "begins again"
    return f" The same `spotelastic up` as before {where}: {it.goes_on_by}"
