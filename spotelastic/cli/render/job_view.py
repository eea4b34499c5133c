"""Draws a job as `up` shows it live: progress, checkpoint, cost and nodes, in the space there is.

Pure: the same input gives the same picture.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.text import Text

from spotelastic.cli.render import tables
from spotelastic.cli.render.sparkline import sparkline
from spotelastic.model.counting import counted, dollars, saved
from spotelastic.model.estimate import progress_of
from spotelastic.model.headline import yet
from spotelastic.model.job import ENDED
from spotelastic.model.progress import Cost, NodeStatus, Status
from spotelastic.web.view import rows, words

EVENT_LINES = 6
"""Lines above the picture that are left to events, on a terminal of at least 24 lines."""
HEAD_OF_TABLE = 2
"""Lines of a table before its first node: a blank one, and the columns' names."""
SPARK = 24
"""Most columns of the loss curve."""
NODE = ("node", "state", "type", "zone", "ranks", "address")
WAITS = ("failed", "sick", "draining", "gone", "restarting", "joining", "pending", "waiting")
"""States of nodes that stand before those that train, where not all have room."""


@dataclass(frozen=True, slots=True)
class JobPicture:
    """What is shown of a job at one moment."""

    status: Status
    losses: Sequence[float] = ()
    cost: Cost | None = None
    """None: not known yet."""


def job_view(shown: JobPicture, now: float, width: int, height: int) -> RenderableType:
    """Return the job for a terminal of this size.

    It is lower than the terminal, so that events have room above it. Nodes that have none are
    counted.
    """
    status = shown.status
    told = [*_job_lines(shown, now, width), *_notes(status, now, width, height)]
    told = [_cut(line) for line in told]
    if status.state in ENDED:
        return Group(*told)
    control = [_cut(line) for line in _control_line(status)]
    reserved = EVENT_LINES if height >= 24 else height // 4
    room = height - 1 - reserved - len(told) - len(control)
    workers = [node for node in status.nodes if node.role == "worker"]
    return Group(*[*told, *_nodes(workers, room, now), *control][: max(1, height - 1)])


def _nodes(workers: Sequence[NodeStatus], room: int, now: float) -> list[RenderableType]:
    """Return the nodes in as many lines as there is room for; one line at the least."""
    if not workers:
        return []
    if room < HEAD_OF_TABLE + 2:
        return [_cut(Text(f"nodes  {_by_state(workers)}"))]
    chosen, left = _chosen(workers, room - HEAD_OF_TABLE)
    more = [_cut(Text(f"… and {_by_state(left, 'more ')}", "dim"))] if left else []
    return [Text(), tables.nodes_table(chosen, now, *NODE), *more]


# -- the job ---------------------------------------------------------------------------------------


def _job_lines(shown: JobPicture, now: float, width: int) -> Iterable[Text]:
    status = shown.status
    yield tables.headline(status).split()[0]  # a failure's reason begins with its error
    if not status.round:
        yield Text(tables.status_line(status))
    else:
        yield Text(_progress(status))
        if told := _estimated(shown, now):
            yield Text(told)
        yield from _loss_line(shown, width)
        yield Text(_checkpoint(shown, now))
    if shown.cost is not None and shown.cost.total_usd > 0:
        yield Text(_money(shown.cost))


def _estimated(shown: JobPicture, now: float) -> str:
    cost = shown.cost
    spent = None if cost is None else (cost.total_usd, cost.total_usd_per_hour)
    return progress_of(shown.status, now, spent).line


def _progress(status: Status) -> str:
    parts = [tables.steps(status)]
    if status.step_time:
        parts.append(_rate(status.step_time))
    if status.samples_per_second:
        parts.append(f"{status.samples_per_second:.4g} samples/s")
    parts.append(f"round {status.round}")
    if status.state not in ENDED:
        training = sum(node.state == "training" for node in status.nodes)
        workers = f", {counted(status.world_size, 'worker')}" if training else ""
        parts.append(f"{counted(training, 'node')}{workers}")
    return "   ".join(parts)


def _rate(step_time: float) -> str:
    return f"{1 / step_time:.3g} steps/s" if step_time < 1.0 else f"{step_time:.3g} s/step"


def _loss_line(shown: JobPicture, width: int) -> Iterable[Text]:
    if not (told := tables.told_loss(shown.status)):
        return
    text = f"loss {told}"
    bars = sparkline(shown.losses, min(SPARK, width - len(text) - 3))
    yield Text.assemble(text, *([("   " + bars, "cyan")] if bars else []))


def _checkpoint(shown: JobPicture, now: float) -> str:
    status = shown.status
    text = f"checkpoint {status.committed}" if status.committed else f"no checkpoint{yet(status)}"
    if status.committed_at:
        text += f", {words.ago(status.committed_at, now)}"
    if status.upload is not None:
        text += f"   {rows.upload(status.upload)}"
        left = status.upload.total - status.upload.done
        if status.upload.rate > 0 and left > 0:
            text += f", {words.span(round(left / status.upload.rate))} left"
    return text


def _money(cost: Cost) -> str:
    text = f"{dollars(cost.total_usd)} so far"
    if cost.total_usd_per_hour:
        text += f", {dollars(cost.total_usd_per_hour)} an hour"
    if cost.on_demand_usd > 0:
        told = saved(cost.cost_usd, cost.on_demand_usd)
        text += f"   workers on demand: {dollars(cost.on_demand_usd)} ({told})"
    return text


# -- the nodes -------------------------------------------------------------------------------------


def _chosen(
    workers: Sequence[NodeStatus], room: int
) -> tuple[Sequence[NodeStatus], Sequence[NodeStatus]]:
    """Return the nodes that have room, and the others.

    Those come first that something happens to, and the one that leaves first before all others.
    """
    if len(workers) <= room:
        return workers, ()
    urgent = sorted(workers, key=_urgency)
    return urgent[: room - 1], urgent[room - 1 :]


def _urgency(node: NodeStatus) -> tuple[int, float]:
    leaves = float("inf") if node.leaves_at is None else node.leaves_at
    if node.state in WAITS:
        return WAITS.index(node.state), leaves
    return len(WAITS), leaves


def _by_state(nodes: Sequence[NodeStatus], more: str = "") -> str:
    """Return how many are in each state, most first; `more` goes after the first number."""
    (first, count), *others = Counter(node.state for node in nodes).most_common()
    return ", ".join([f"{count} {more}{first}", *(f"{count} {state}" for state, count in others)])


def _control_line(status: Status) -> Iterable[Text]:
    """Yield the control nodes in one line: which leads, and the others by state."""
    control = [node for node in status.nodes if node.role == "control"]
    if not control:
        return
    states = Counter(node.state for node in control if node.state != "leading")
    leads = [f"{node.id} leading" for node in control if node.state == "leading"]
    counts = [f"{count} {state}" for state, count in states.most_common()]
    yield Text(f"control  {', '.join([*leads, *counts])}")


# -- fitting ---------------------------------------------------------------------------------------


def _cut(line: Text) -> Text:
    """Return a line that ends at the terminal's edge, so that the picture keeps its height."""
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _notes(status: Status, now: float, width: int, height: int) -> list[Text]:
    """Return the lines of the notes, broken between words; the first ones of very many."""
    console, most = Console(width=width), max(1, height // 4)
    lines = [line for note in tables.notes(status, now) for line in note.wrap(console, width)]
    return lines if len(lines) <= most else [*lines[: most - 1], Text("…")]
