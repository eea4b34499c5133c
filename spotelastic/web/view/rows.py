"""What a page and a terminal tell alike (pure): rows of tables, and what is not as it should be."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from spotelastic_checkpoints.catalog.catalog import StepEntry

from spotelastic.model.counting import UNPRICED, counted, dollars, saved, size
from spotelastic.model.headline import TROUBLE
from spotelastic.model.in_place import PROVEN, REHEARSED
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.progress import (
    ClusterSummary,
    Cost,
    Event,
    GpuUse,
    Interruption,
    NodeStatus,
    Upload,
)
from spotelastic.web.view import words
from spotelastic.web.view.chart import OTHER_SHAPE, SHAPES
from spotelastic.web.view.columns import EVENTS

NONE = "–"
"""Stands where something is not known, or does not apply."""
STORED = {True: "yes", False: "no", None: "not yet"}
ALERTS = frozenset(
    {"notice", "rebalance", "leave", "unhealthy", "loss", "failure", "etcd", "limit", "boot"}
    | {TROUBLE}
)
"""Kinds of events that tell of a fault, or of one to come."""
MILESTONES = frozenset({"job", "stop", "restart", "scale", "down", "round"})
"""Kinds of events at which the job itself changes."""
ROUTINE = frozenset({"committed", "schedule", "restored"})
"""Kinds of events that come again and again while all is well."""
AFTER_A_LOSS = 30.0
"""Seconds after a node was lost in which workers fail because of that."""
FIRST = {"pending": 0, "joining": 0, "draining": 0, "sick": 0, "failed": 0, "training": 2}
"""The order of nodes in a table, by their states: first those that something happens to."""


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """A cluster in a list."""

    name: str
    state: str
    colour: str
    step: str
    left: str
    nodes: str
    began: str
    seen: str
    cost: str
    per_hour: str
    wrong: str
    """The worst that is wrong, in one line."""
    is_gone: bool


@dataclass(frozen=True, slots=True)
class InterruptionRow:
    """An interruption and what it has cost."""

    kind: str
    shape: str
    """The character by which the kind is marked."""
    label: str
    node: str
    at: str
    at_exactly: str
    source: str
    seen_after: str
    resumed_from: str
    is_in_store: str
    pause: str
    repeated: str
    cost: str


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A stored checkpoint."""

    step: str
    epoch: str
    state: str
    age: str
    at_exactly: str
    size: str
    ranks: str
    verified: str
    marks: tuple[str, ...]
    """What sets it apart: "latest", "pinned", or "abandoned": the run did not go on from it."""


@dataclass(frozen=True, slots=True)
class CostRow:
    """A part of the bill."""

    name: str
    so_far: str
    per_hour: str
    note: str = ""
    is_total: bool = False


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node that is there, or has just gone."""

    node: str
    role: str
    state: str
    leaves: str
    """How soon it may be gone: "leaves in 40 s"; empty: nothing is announced."""
    type: str
    zone: str
    address: str
    ranks: str
    gpu: str
    can_be_interrupted: bool


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event. `weight` says how much it matters: "alert", "milestone" or "detail"."""

    at: str
    at_exactly: str
    kind: str
    message: str
    weight: str
    count: int = 1
    """How many events it stands for."""


def cluster(row: ClusterSummary, now: float) -> ClusterRow:
    """Return the row of a cluster."""
    of = f" of {row.total:,}" if row.total else ""
    left = None if row.ends_at is None or row.is_gone else max(0, round(row.ends_at - now))
    return ClusterRow(
        name=words.plain(row.name),
        state=words.plain(row.state),
        colour=row.colour,
        step=f"{row.step:,}{of}" if row.at or row.step else NONE,
        left=NONE if left is None else words.span(left),
        nodes=NONE if row.is_gone else _number(row.nodes),
        began=words.ago(row.began_at, now) if row.began_at else NONE,
        seen=words.ago(row.at, now) if row.at else NONE,
        cost=dollars(row.usd) if row.usd else NONE,
        per_hour=dollars(row.usd_per_hour) if row.usd_per_hour else NONE,
        wrong=words.plain(row.headline.partition("\n")[0]),
        is_gone=row.is_gone,
    )


def total(clusters: Sequence[ClusterSummary]) -> tuple[str, str]:
    """Return what all clusters have cost together, and cost an hour now."""
    spent, per_hour = (sum(each.usd for each in clusters), sum(c.usd_per_hour for c in clusters))
    return dollars(spent), dollars(per_hour)


def interruption(row: Interruption, now: float) -> InterruptionRow:
    """Return the row of an interruption."""
    return InterruptionRow(
        kind=row.kind.value if row.kind.is_known else "other",
        shape=SHAPES.get(row.kind, OTHER_SHAPE),
        label=words.plain(row.kind.traits.label),
        node=words.plain(row.node) or NONE,
        at=words.moment(row.at, now),
        at_exactly=words.exactly(row.at),
        source=words.plain(row.told_by) or NONE,
        seen_after=_seconds(row.seen_after_s),
        resumed_from=_resumed(row),
        is_in_store=NONE if row.saved_step is None else STORED[row.committed],
        pause=_seconds(row.pause_s),
        repeated=_number(row.steps_lost),
        cost=NONE if row.usd is None else dollars(row.usd),
    )


def _resumed(row: Interruption) -> str:
    """Return the step, and how long the slowest node restored it from where, if that is known."""
    took = "" if row.restore_s is None else _seconds(row.restore_s)
    told = ", ".join(filter(None, (words.plain(row.source), took)))
    return _number(row.saved_step) + (f" ({told})" if told else "")


def checkpoints(
    entries: Sequence[StepEntry] | None, now: float
) -> tuple[CheckpointRow, ...] | None:
    """Return the stored checkpoints, the newest first; None if they were not listed."""
    if entries is None:
        return None
    first: dict[int, int] = {}
    """The lowest step of each epoch."""
    for entry in entries:
        first[entry.epoch] = min(entry.step, first.get(entry.epoch, entry.step))
    return tuple(
        # A newer epoch that has this step, or an earlier one, did not go on from here.
        _checkpoint(
            entry,
            now,
            is_abandoned=any(
                epoch > entry.epoch and step <= entry.step for epoch, step in first.items()
            ),
        )
        for entry in sorted(entries, key=lambda each: (each.epoch, each.step), reverse=True)
        if entry.state != "retired"
    )


def _checkpoint(entry: StepEntry, now: float, *, is_abandoned: bool) -> CheckpointRow:
    written = entry.written.timestamp() if entry.written is not None else None
    verified = entry.verified.timestamp() if entry.verified is not None else None
    marks = {"latest": entry.latest, "pinned": entry.pinned, "abandoned": is_abandoned}
    return CheckpointRow(
        step=f"{entry.step:,}",
        epoch=str(entry.epoch),
        state=entry.state,
        age=NONE if written is None else words.ago(written, now),
        at_exactly="" if written is None else words.exactly(written),
        size=size(entry.nbytes) if entry.nbytes else NONE,
        ranks=str(entry.world_size) if entry.world_size else NONE,
        verified=NONE if verified is None else words.ago(verified, now),
        marks=tuple(word for word, is_so in marks.items() if is_so),
    )


def costs(cost: Cost) -> Iterator[CostRow]:
    """Yield the parts of the bill."""
    hours = f"{cost.spot_hours:.3g} spot"
    if cost.on_demand_hours:
        hours += f", {cost.on_demand_hours:.3g} on-demand"
    if not cost.is_priced:
        yield CostRow("Workers", NONE, NONE, f"{hours} node-hours; {UNPRICED}")
        return
    yield CostRow(
        "Workers", dollars(cost.cost_usd), dollars(cost.usd_per_hour), f"{hours} node-hours"
    )
    yield CostRow("Control nodes", dollars(cost.control_usd), dollars(cost.control_usd_per_hour))
    if cost.traffic_usd:
        so_far, now = dollars(cost.traffic_usd), dollars(cost.traffic_usd_per_hour)
        yield CostRow("Traffic", so_far, now, "measured, from zone to zone")
    total, per_hour = dollars(cost.total_usd), dollars(cost.total_usd_per_hour)
    yield CostRow("Total", total, per_hour, "estimated", is_total=True)
    if cost.max_cost is not None:
        left = "" if cost.hours_left is None else f"reached in {cost.hours_left:.1f} h"
        yield CostRow("Limit", dollars(cost.max_cost), "", left)
    if cost.interruptions_usd:
        yield CostRow("Interruptions", dollars(cost.interruptions_usd), "", "part of the workers'")
    if cost.on_demand_usd > 0:
        told = saved(cost.cost_usd, cost.on_demand_usd)
        dated = f", prices of {words.plain(cost.prices_of)}" if cost.prices_of else ""
        yield CostRow("Workers on demand", dollars(cost.on_demand_usd), "", f"{told}{dated}")


def node(row: NodeStatus, now: float) -> NodeRow:
    """Return the row of a node."""
    is_worker, leaves = row.role == "worker", ""
    if row.leaves_at is not None and row.state != "gone":
        left = row.leaves_at - now
        leaves = f"leaves in {words.span(int(left))}" if left >= 1.0 else "may be gone any moment"
    return NodeRow(
        node=words.plain(row.id),
        role=words.plain(str(row.role)),
        state=words.plain(row.state),
        leaves=leaves,
        type=words.plain(row.type) or NONE,
        zone=words.plain(row.zone),
        address=words.plain(row.address),
        ranks=words.ranks(row.ranks) or NONE,
        gpu=_gpu(row.gpu),
        can_be_interrupted=is_worker and row.state in ("training", "waiting", "joining"),
    )


def _gpu(use: GpuUse | None) -> str:
    if use is None:
        return ""
    memory = f"{size(use.memory)} of {size(use.memory_total)}"
    return f"{use.busy:.0%}, {memory}"


def nodes(given: Sequence[NodeStatus], now: float) -> tuple[NodeRow, ...]:
    """Return the rows of nodes: first those that something happens to, workers before others."""
    ordered = sorted(given, key=lambda row: (row.role != "worker", FIRST.get(row.state, 1)))
    return tuple(node(row, now) for row in ordered)


def in_order(told: Iterable[Event]) -> list[Event]:
    """Return events by their time, without a round's proposal where its start follows."""
    ordered = sorted(told, key=lambda event: event.at)
    started = {each.data.get("incarnation") for each in ordered if each.starts_round} - {None}

    def is_told_again(event: Event) -> bool:
        is_proposal = event.kind == "round" and event.data.get("phase") == "proposed"
        return is_proposal and event.data.get("incarnation") in started

    return [each for each in ordered if not is_told_again(each)]


def events(newest: Iterable[Event], now: float, *, every: bool = False) -> Iterator[EventRow]:
    """Yield the rows of events, the newest first.

    Unless `every` one is wanted, what is routine and follows each other is one row, and so is told
    what a lost node's peers say of it.
    """
    ordered = list(newest)
    lost = [each.at for each in ordered if each.kind == "loss"]
    routine: list[Event] = []
    for each in ordered:
        if each.kind in ROUTINE and not every:
            routine.append(each)
            continue
        yield from _routine(routine, now)
        routine = []
        row = event(each, now)
        if each.data.get("lost_peer") and any(abs(each.at - at) <= AFTER_A_LOSS for at in lost):
            row = replace(row, weight="detail")
        yield row
    yield from _routine(routine, now)


def _routine(its: Sequence[Event], now: float) -> Iterator[EventRow]:
    """Yield one row for routine events that follow each other, the newest first."""
    if len(its) < 2:
        yield from (event(each, now) for each in its)
        return
    counts = Counter(each.kind for each in its)
    steps = [each.data.get("step", "?") for each in its if each.kind == "committed"]
    parts = []
    if steps:
        span = f"steps {steps[-1]} to {steps[0]}" if steps[1:] else f"step {steps[0]}"
        parts.append(f"{counted(len(steps), 'checkpoint')} saved, {span}")
    if counts["schedule"]:
        parts.append(f"{counted(counts['schedule'], 'change')} of the intervals between saves")
    if counts["restored"]:
        parts.append(f"{counted(counts['restored'], 'round')} restored")
    row = event(its[0], now)
    kind = row.kind if len(counts) == 1 else "routine"
    yield replace(row, kind=kind, message=words.plain("; ".join(parts)), count=len(its))


def event(row: Event, now: float) -> EventRow:
    """Return the row of an event."""
    unnamed = row.kind == "failure" and row.node not in row.message
    kind = InterruptionKind(str(row.data.get("kind", "")))
    asked = row.kind == "notice" and kind.is_known and kind.traits.is_asked_for
    differs = row.kind in (REHEARSED, PROVEN) and row.data.get("outcome") == "different"
    weight = "milestone" if row.kind in MILESTONES else "detail"
    return EventRow(
        at=words.moment(row.at, now),
        at_exactly=words.exactly(row.at),
        kind=_called(row, kind, is_asked=asked),
        message=words.plain(f"{row.node} {row.message}" if unnamed else row.message),
        weight="alert" if (row.kind in ALERTS and not asked) or differs else weight,
    )


def _called(row: Event, kind: InterruptionKind, *, is_asked: bool) -> str:
    """Return what the event is called: as in the table of interruptions, where it is of one."""
    if is_asked:
        return InterruptionKind.PLANNED.traits.label
    if row.kind in ("notice", "loss") and kind.is_known:
        return kind.traits.label
    return EVENTS.get(row.kind, words.plain(row.kind))


def _seconds(value: float | None) -> str:
    return NONE if value is None else words.span(value)


def _number(value: int | None) -> str:
    return NONE if value is None else f"{value:,}"


def upload(row: Upload) -> str:
    """Return how far an upload is: "25% of step 120 at 45 MB/s"."""
    share = row.done / row.total if row.total else 0.0
    return f"{share:.0%} of step {row.step} at {size(row.rate)}/s"
