"""When each node booted, trained, waited, had notice and went, and when rounds began (pure).

It is put together from the events alone, which are all that is known of nodes that are gone.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from spotelastic.model.counting import counted
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import ENDED
from spotelastic.model.progress import Event, Status
from spotelastic.web.view import words
from spotelastic.web.view.chart import AxisTick, ChartScale

MOST_LANES = 40
"""Nodes that are shown: those that are there, then those that went last."""
NARROW = 0.01
"""Share of the width below which rounds that follow each other are drawn as one."""
MOST_SPANS, TOLD_SPANS = 30, 5
"""Spans of a lane of which all are drawn, however short, and those that are told in words."""
COMING = frozenset({"launch", "prepare"})
WARNING = frozenset({"notice", "leave", "unhealthy"})
GOING = frozenset({"loss", "terminate"})
TRAINING = frozenset({"training", "noticed"})
"""States in which a node takes part in a round."""
STATES = {
    "booting": "booting",
    "waiting": "waiting",
    "training": "training",
    "noticed": "has notice",
    "resting": "no job",
}
"""The states of a node on the timeline, as the legend names them."""
NICE = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200)
"""Seconds that may lie between two ticks; longer ones are whole days."""


@dataclass(frozen=True, slots=True)
class LaneSpan:
    """A time in one state, from `begin` to `end` as shares of the timeline's width."""

    begin: float
    end: float
    state: str
    told: str
    """The state and its time, in one line."""
    label: str = ""
    """What stands in it, if there is room."""


@dataclass(frozen=True, slots=True)
class NodeLane:
    """One node's time."""

    node: str
    label: str
    """The node's name, short enough for its column."""
    is_there: bool
    spans: tuple[LaneSpan, ...]
    told: str


@dataclass(frozen=True, slots=True)
class NodeTimeline:
    """The rounds, and below them the nodes."""

    rounds: tuple[LaneSpan, ...]
    lanes: tuple[NodeLane, ...]
    more: int
    """Number of nodes, long gone, that are not shown."""
    ticks: tuple[AxisTick, ...]
    states: tuple[tuple[str, str], ...]
    """The states that occur, with their names: the legend."""
    counts: tuple[tuple[float, int], ...]
    """How many nodes train, from each time on at which that changes."""


@dataclass(slots=True)
class _Track:
    """The states of one node, in the order of their beginnings."""

    changes: list[tuple[float, str]] = field(default_factory=list)

    @property
    def state(self) -> str:
        return self.changes[-1][1] if self.changes else ""

    def turns(self, at: float, state: str) -> None:
        if state != self.state:
            self.changes.append((max(at, self.changes[-1][0] if self.changes else at), state))


def node_timeline(status: Status, events: Sequence[Event]) -> NodeTimeline | None:
    """Return the timeline up to the status; None before anything has happened."""
    ordered = sorted(events, key=lambda event: event.at)
    control = {row.id for row in status.nodes if row.role == "control"}
    tracks = _tracks(ordered, control)
    if not tracks:
        return None
    begin = min(track.changes[0][0] for track in tracks.values())
    end = max(_end(status, ordered), begin + 1.0)
    _leave_what_is_gone(tracks, status, end)
    share = ChartScale(begin, end)
    order = sorted(tracks, key=lambda node: _order(tracks[node], node))
    shown = order[:MOST_LANES]
    lanes = tuple(_lane(node, tracks[node], share) for node in shown)
    found = {span.state for lane in lanes for span in lane.spans}
    return NodeTimeline(
        rounds=tuple(_rounds(ordered, share)),
        lanes=lanes,
        more=len(order) - len(shown),
        ticks=tuple(time_ticks(begin, end)),
        states=tuple((state, name) for state, name in STATES.items() if state in found),
        counts=tuple(_counts(ordered)),
    )


def _counts(ordered: Iterable[Event]) -> Iterator[tuple[float, int]]:
    """Yield how many nodes train, from each time on: the members of a round that are not gone."""
    training: set[str] = set()
    for event in ordered:
        if event.starts_round:
            training = _members(event)
        elif event.kind == "job":
            training = set()
        elif event.node in training and event.kind in GOING and not event.data.get("failed"):
            training.remove(event.node)
        else:
            continue
        yield event.at, len(training)


def _end(status: Status, ordered: Sequence[Event]) -> float:
    """Until when there is something to show: the end of the job, or the newest status."""
    last = ordered[-1].at if ordered else status.at
    if status.state not in ENDED:
        return max(status.at, last)
    over = [event.at for event in ordered if event.kind == "job"]
    return max(over, default=last)


def _tracks(ordered: Iterable[Event], control: set[str]) -> dict[str, _Track]:
    """Follow every worker node through the events."""
    tracks: dict[str, _Track] = {}
    trained: set[str] = set()
    for event in ordered:
        node = event.node
        if event.starts_round:
            trained = _start(tracks, event, trained)
        elif event.kind == "job":
            _finish(tracks, event.at)
            trained = set()
        elif not node or node in control or _is_control(event):
            continue
        elif event.kind in COMING:
            track = tracks.setdefault(node, _Track())
            if not event.data.get("failed") and track.state in ("", "gone"):
                track.turns(event.at, "booting")
        elif event.kind in GOING:
            if node in tracks and not event.data.get("failed"):
                tracks[node].turns(event.at, "gone")
                trained.discard(node)
        elif _has_to_go(event) and node in tracks and tracks[node].state != "gone":
            tracks[node].turns(event.at, "noticed")
    return {node: track for node, track in tracks.items() if track.changes}


def round_starts(events: Iterable[Event]) -> tuple[float, ...]:
    """Return the times at which rounds have started, in order."""
    return tuple(sorted(event.at for event in events if event.starts_round))


def _has_to_go(event: Event) -> bool:
    """Whether a node was told to leave soon."""
    if event.kind not in WARNING:
        return False
    return InterruptionKind(str(event.data.get("kind", ""))).traits.drains


def _is_control(event: Event) -> bool:
    return "-control-" in str(event.data.get("group", ""))


def _start(tracks: dict[str, _Track], event: Event, before: set[str]) -> set[str]:
    """Note that a round has started, and return its members.

    The members train, and the others wait of those that have trained `before`.
    """
    members = _members(event)
    for node in members - before:
        track = tracks.setdefault(node, _Track())
        if track.state not in TRAINING:
            track.turns(event.at, "training")
    for node in before - members:
        if tracks[node].state == "training":
            tracks[node].turns(event.at, "waiting")
    return members


def _finish(tracks: Mapping[str, _Track], at: float) -> None:
    """Note that the job has ended: what is still there has nothing to do."""
    for track in tracks.values():
        if track.state not in ("", "gone"):
            track.turns(at, "resting")


def _members(event: Event) -> set[str]:
    found = event.data.get("members")
    return set(map(str, found)) if isinstance(found, list | tuple) else set()


def _leave_what_is_gone(tracks: Mapping[str, _Track], status: Status, end: float) -> None:
    """End the lanes of nodes that nobody has seen going; nodes that joined wait, not boot."""
    now = {row.id: row.state for row in status.nodes if row.role == "worker"}
    for node, track in tracks.items():
        there = now.get(node, "gone")
        if not now or track.state == "gone":
            continue
        if there == "gone":
            track.turns(track.changes[-1][0] if track.state == "waiting" else end, "gone")
        elif there == "waiting" and track.state == "booting":
            track.turns(end, "waiting")


def _order(track: _Track, node: str) -> tuple[int, float, str]:
    """Those that are there first, as they came; then those that went, the last one first."""
    if track.state == "gone":
        return 1, -track.changes[-1][0], node
    return 0, track.changes[0][0], node


def _lane(node: str, track: _Track, share: ChartScale) -> NodeLane:
    spans = []
    ends = [at for at, _ in track.changes[1:]] + [share.high]
    for (at, state), until in zip(track.changes, ends, strict=True):
        if state == "gone" or until <= at or share.place(at) >= 1.0:
            continue
        name = STATES[state]
        told = f"{node}: {name} for {words.span(until - at)}, {words.moment(at, share.high)} to "
        told += words.zoned(until, share.high)
        spans.append(LaneSpan(share.place(at), share.place(until), state, told))
    there = track.state != "gone"
    if len(spans) > MOST_SPANS:
        spans = [each for each in spans if each.end - each.begin >= NARROW / 2]
    last = [span.told.partition(": ")[2] for span in spans[-TOLD_SPANS:]]
    earlier = ["earlier ones are not told"] if len(spans) > TOLD_SPANS else []
    told = ", ".join([*earlier, *last]) or "nothing"
    return NodeLane(words.plain(node), words.short(node), there, tuple(spans), told)


def _rounds(ordered: Iterable[Event], share: ChartScale) -> Iterator[LaneSpan]:
    """Yield the rounds that have started, each until the next one, or the job's end.

    Those too short to be seen come as one that stands for them.
    """
    marks = [event for event in ordered if event.kind == "job" or event.starts_round]
    ends = [*(event.at for event in marks[1:]), share.high]
    folded: list[Event] = []
    begun = ended = 0.0
    for event, until in zip(marks, ends, strict=False):
        begin, end = share.place(event.at), share.place(until)
        if event.kind == "job" or end <= begin:
            continue
        if folded and end - begun > NARROW:
            yield _round_span(folded, begun, ended, share)
            folded = []
        begun, ended = begun if folded else begin, end
        folded.append(event)
    if folded:
        yield _round_span(folded, begun, ended, share)


def _round_span(folded: Sequence[Event], begin: float, end: float, share: ChartScale) -> LaneSpan:
    first, last = (event.data.get("number", "?") for event in (folded[0], folded[-1]))
    event = folded[-1]
    nodes = counted(len(_members(event)), "node")
    told = (
        f"round {last}, {words.zoned(event.at, share.high)}: {nodes}, from step "
        f"{event.data.get('step', '?')}; {event.message.partition(': ')[2]}"
    )
    if folded[1:]:
        told = f"{len(folded)} rounds, {first} to {last}; the last one: {told}"
    return LaneSpan(begin, end, "round", told, str(first))


def time_ticks(begin: float, end: float) -> Iterator[AxisTick]:
    """Yield a few times of day between two times, at round local times."""
    length = end - begin
    apart = next((nice for nice in NICE if length / nice <= 5), 86_400)
    while length / apart > 6:
        apart *= 2
    offset = words.utc_offset(begin)
    at = math.ceil((begin + offset) / apart) * apart - offset
    while at <= end:
        label = words.moment(at, end) if apart < 60 else words.minute(at, end)
        yield AxisTick(min(1.0, max(0.0, (at - begin) / length)), label, at)
        at += apart
