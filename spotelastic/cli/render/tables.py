"""Formats status, events, reports and costs: as JSON for programs, as tables for people."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from spotelastic.client.published import by_urgency
from spotelastic.clock import wall
from spotelastic.controller.model.regions import RegionsRecord
from spotelastic.model.counting import UNPRICED, counted, dollars, loss, percent, saved
from spotelastic.model.estimate import progress_of
from spotelastic.model.headline import headline as worst
from spotelastic.model.headline import headlines, yet
from spotelastic.model.in_place import Rehearsal
from spotelastic.model.job import ENDED
from spotelastic.model.progress import (
    ClusterSummary,
    Cost,
    Event,
    Interruption,
    NodeStatus,
    Report,
    Status,
)
from spotelastic.web.view import columns, rows, words

T = TypeVar("T")
NUMBERS = tuple(
    name
    for table in (columns.CLUSTERS, columns.INTERRUPTIONS, columns.COSTS)
    for column in table
    for name in (column.typed, column.name.lower())
    if column.is_number
)
"""The columns that are aligned to the right."""


def console() -> Console:
    """Return a console for stdout.

    It is wide enough for any table in a pipe, and as wide as the terminal otherwise.

    Markup is off: the texts come from outside, and an error message may hold brackets.
    """
    if sys.stdout.isatty():
        return Console(markup=False)
    return Console(width=160, highlight=False, markup=False)


def to_json(value: object) -> str:
    """Return the value as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def json_line(value: object) -> str:
    """Return the value as JSON in one line."""
    return msgspec.json.encode(value).decode()


def whole_status(
    status: Status, regions: RegionsRecord | None, now: float | None = None
) -> dict[str, object]:
    """Return the status for programs.

    It also tells how far the job is, what is wrong, and what a job that moves by itself knows of
    its regions.
    """
    now = wall() if now is None else now
    more = {
        "progress": progress_of(status, now),
        "headline": worst(status, now),
        "regions": regions,
    }
    return {**msgspec.to_builtins(status), **msgspec.to_builtins(more)}


def show(value: T, table: Callable[[T], RenderableType], *, as_json: bool) -> None:
    """Print a value, as JSON or as a table."""
    if as_json:
        print(to_json(value))
    else:
        display(table(value))


def display(shown: RenderableType) -> None:
    """Print a table to stdout, without trailing blanks unless stdout is a terminal."""
    to = console()
    if sys.stdout.isatty():
        to.print(shown)
        return
    with to.capture() as captured:
        to.print(shown)
    print("\n".join(line.rstrip() for line in captured.get().split("\n")), end="")


def table_of(*columns: str, right: Sequence[str] = ()) -> Table:
    """Return an empty table with these columns; those in `right` are aligned to the right."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, vertical="bottom", no_wrap=True)
        if name in right:
            table.columns[-1].justify = "right"
    return table


@dataclass(frozen=True, slots=True)
class Fitting:
    """Renders the first of its tables that fits the width, else the last.

    The widest comes first.
    """

    tables: tuple[RenderableType, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        anywhere = options.update(max_width=sys.maxsize)
        for table in self.tables[:-1]:
            if console.measure(table, options=anywhere).maximum <= options.max_width:
                yield table
                return
        yield self.tables[-1]


# -- status --------------------------------------------------------------------------------------


def status_line(status: Status) -> str:
    """Return the job in one line of about 80 columns: the values that change during training."""
    if not status.round:
        states = Counter(node.state for node in status.nodes if node.role == "worker")
        waiting = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        began = f"{waiting or 'no'} worker{'' if states.total() == 1 else 's'}"
        if status.state in ENDED:
            began = "no round has begun"
        return f"{status.state}: {began}"
    training = sum(node.state == "training" for node in status.nodes)
    parts = [f"{steps(status):<9}", f"round {status.round}"]
    if status.state not in ENDED:
        parts.append(counted(training, "node"))
    if told := told_loss(status):
        parts.append(f"loss {told}")
    if status.step_time:
        parts.append(f"{status.step_time * 1000:>4.0f} ms/step")
    if status.samples_per_second:
        parts.append(f"{status.samples_per_second:.4g} samples/s")
    parts.append(
        f"checkpoint {status.committed}" if status.committed else f"no checkpoint{yet(status)}"
    )
    if status.upload is not None:
        parts[-1] += f", {rows.upload(status.upload)}"
    return "  ".join(parts)


def steps(status: Status) -> str:
    """Return the step, and of how many it is where the script says."""
    return f"step {status.step} of {status.total}" if status.total else f"step {status.step}"


def told_loss(status: Status) -> str:
    """Return the loss, also one that is no number; empty if the script tells none."""
    if status.not_finite:
        return f"NaN or infinite since step {status.not_finite}"
    return "" if status.loss is None else loss(status.loss)


def status_table(status: Status, regions: RegionsRecord | None = None) -> RenderableType:
    """Return the job, why its round began (or how it ended), its regions and its nodes.

    Nodes are left out if the job has none.
    """
    now = wall()
    parts: list[RenderableType] = [headline(status), Text(status_line(status))]
    if line := progress_of(status, now).line:
        parts.append(Text(line))
    parts += notes(status, now)
    if regions is not None:
        parts.append(Text(f"regions: {regions.reason}"))
    if status.nodes:
        columns = ("node", "role", "state", "type", "zone", "ranks", "address")
        parts += [Text(), nodes_table(status.nodes, status.at, *columns)]
    return Group(*parts)


def headline(status: Status) -> Text:
    """Return the job's name, its state, and why its round began or how it ended.

    The error comes first, then its traceback.
    """
    state = f"{status.state}, " if status.round or status.state in ENDED else ""
    is_said = status.error in status.reason.partition("\n")[0]
    why = status.reason if is_said else f"{status.error}\n{status.reason}"
    return Text.assemble((status.name, "bold"), f"  {state}{why}".rstrip(" ,"))


def notes(status: Status, now: float) -> list[Text]:
    """Return what else there is to know about the job, as a text for each thing.

    The worst that is wrong comes first, with what to do about it.
    """
    lines: list[Text] = []
    for number, each in enumerate(headlines(status, now)):
        is_said = each.kind in ("failed", "timed-out")  # by the job's state and its reason
        lines += [] if is_said else [Text(each.line, each.colour)]
        lines += [Text(each.todo)] if each.todo and not number else []
    lines += [Text(status.network)] if status.network else []
    if status.replica:
        lines.append(Text(_replicated(status)))
    for found in (status.rehearsal, status.proof):
        if found is not None and not found.differs:
            lines.append(Text(found.text))
    if status.skipped.steps and not any(each.plain == status.skipped.text for each in lines):
        lines.append(Text(status.skipped.text))
    if odd := _not_understood(status):
        lines.append(Text(odd))
    return lines


def _rehearsed(rehearsal: Rehearsal | None) -> list[Text]:
    """Return what a step has shown that was made again, or read back: in red if it differs."""
    if rehearsal is None:
        return []
    return [Text(rehearsal.text, "red" if rehearsal.differs else "")]


def _replicated(status: Status) -> str:
    """Return how old the newest step is that survives the loss of any node."""
    steps = max(0, status.step - status.replica)
    age = f"{counted(steps, 'step')} ago"
    if status.step_time:
        age += f", {steps * status.step_time:.0f} s"
    return f"each node's shards of step {status.replica} are on another node, too ({age})"


def _not_understood(status: Status) -> str:
    """Return a note on dropped AWS events.

    Events of other instances are not counted: an account has many of them.
    """
    kinds = [(status.messages.get(kind, 0), kind) for kind in ("unknown", "malformed")]
    told = " and ".join(f"{count} {kind}" for count, kind in kinds if count)
    return f"dropped events from AWS: {told}" if told else ""


SPARED = ("address", "type", "zone", "role")
"""Columns that are left out if the table is too wide, the first one first.

The node's name is never cut: it is needed as an argument of other commands.
"""
SPARED_OF_CLUSTERS = ("per_hour", "began", "left", "nodes", "seen")
WRONG_WIDTH = 40
"""Letters of what is wrong with a cluster on one line of its row."""
COLOURS = {
    "training": "green",
    "draining": "yellow",
    "sick": "yellow",
    "failed": "red",
    "gone": "red",
}


def nodes_table(nodes: Sequence[NodeStatus], now: float, *columns: str) -> Fitting:
    """Return the table of nodes, with as many of the columns as fit."""

    def table(kept: Sequence[str]) -> Table:
        made = table_of(*kept)
        for row in (rows.node(node, now) for node in nodes):
            state = Text(
                ", ".join(filter(None, (row.state, row.leaves))), COLOURS.get(row.state, "")
            )
            made.add_row(*(state if name == "state" else getattr(row, name) for name in kept))
        return made

    return _fitting(columns, SPARED, table)


def _fitting(
    columns: Sequence[str], spared: Sequence[str], table: Callable[[Sequence[str]], Table]
) -> Fitting:
    """Return tables with fewer and fewer columns: those that are `spared` go in their order."""
    kept = ([each for each in columns if each not in spared[:n]] for n in range(len(spared) + 1))
    return Fitting(tuple(map(table, kept)))


def listing_table(clusters: Sequence[ClusterSummary]) -> RenderableType:
    """Return the table of clusters."""
    if not clusters:
        return Text("no clusters")
    now = wall()
    shown = [rows.cluster(each, now) for each in by_urgency(clusters, now)]
    names = {each.key: each.name.lower() for each in columns.CLUSTERS}

    def table(kept: Sequence[str]) -> Table:
        made = table_of(*(names[key] for key in kept), "what is wrong", right=NUMBERS)
        made.columns[-1].no_wrap, made.columns[-1].max_width = False, WRONG_WIDTH
        for column in made.columns:
            column.vertical = "top"  # what is wrong may take several lines
        for row in shown:
            colours = {"state": row.colour}
            cells = (Text(getattr(row, key), colours.get(key, "")) for key in kept)
            made.add_row(*cells, Text(row.wrong, row.colour))
        return made

    fitting = _fitting(tuple(names), SPARED_OF_CLUSTERS, table).tables
    return Fitting((*fitting, _narrow_listing(shown)))


def _narrow_listing(shown: Sequence[rows.ClusterRow]) -> RenderableType:
    """Return clusters for a narrow terminal: long names are folded, what is wrong is below."""
    table = table_of("cluster", "state", "step", "cost", right=NUMBERS)
    table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
    for column in table.columns:
        column.vertical = "top"
    for row in shown:
        table.add_row(row.name, Text(row.state, row.colour), row.step, row.cost)
    wrong = [Text(f"{row.name}: {row.wrong}", row.colour) for row in shown if row.wrong]
    return Group(table, *([Text(), *wrong] if wrong else []))


def trials_table(results: Mapping[str, str]) -> RenderableType:
    """Return the table of receivers that were tried, each with why it has not taken the trial."""
    table = table_of("receiver", "result")
    table.columns[-1].no_wrap = False
    for receiver, why in results.items():
        table.add_row(receiver, Text(why or "delivered"))
    return table


# -- events --------------------------------------------------------------------------------------


KIND_WIDTH = 10
"""Letters of the kinds that come often; a longer one is shown whole and moves its message."""


def clock(at: float) -> str:
    """Return the local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def event_line(event: Event) -> str:
    """Return an event as one line."""
    row = rows.event(event, event.at)
    return f"{clock(event.at)}  {row.kind:<{KIND_WIDTH}}  {row.message}"


def event_row(event: Event) -> Table:
    """Return an event for a terminal, where a long message continues below its beginning."""
    row = Table.grid(padding=(0, 2, 0, 0))
    row.add_column(width=8)
    row.add_column(min_width=KIND_WIDTH, no_wrap=True)  # a longer kind is never cut
    row.add_column(overflow="fold")
    shown = rows.event(event, event.at)
    row.add_row(clock(event.at), shown.kind, Text(shown.message))
    return row


def events_table(events: Sequence[Event], *, every: bool = False) -> RenderableType:
    """Return the table of events.

    Routine events that follow each other have one row, unless `every` one is wanted.
    """
    if not events:
        return Text("no events yet")
    now = wall()
    table = table_of(f"time ({words.zone(now)})", "event", "what happened")
    table.columns[-1].no_wrap = False
    for column in table.columns:
        column.vertical = "top"  # a message may take several lines
    ordered = sorted(events, key=lambda each: each.at) if every else rows.in_order(events)
    for row in reversed(list(rows.events(reversed(ordered), now, every=every))):
        table.add_row(row.at, row.kind, Text(row.message))
    return table


# -- report --------------------------------------------------------------------------------------


def report_table(report: Report) -> RenderableType:
    """Return the report: result, bill and interruptions."""
    job = report.job
    steps = counted(job.final_step, "step")
    if job.steps_run != job.final_step:  # some were repeated, or came from an earlier job
        repeated = sum(row.steps_lost or 0 for row in report.interruptions)
        again = f", {repeated:,} of them repeated" if repeated else ""
        steps += f" ({job.steps_run:,} run{again})"
    lines = Text.assemble((job.state, "bold"), f"  {steps}")
    if job.steps_run:  # else nothing is known of its time
        lines.append(f"  goodput {percent(report.goodput, 1)}")
    bill = Text(f"workers  {report.node_hours:.3f} node-hours  {_cost(report)}")
    if report.control_usd:
        bill.append(f"\n{_with_control(report)}")
    head = [lines, bill, *_rehearsed(report.rehearsal), *_rehearsed(report.proof)]
    head += [Text(f"fingerprint {report.fingerprint}")] if report.fingerprint else []
    head += [Text(report.skipped.text)] if report.skipped.steps else []
    head += [Text(report.audit.text, "red")] if report.audit is not None else []
    if not report.interruptions:
        return Group(*head, Text("no interruptions"))
    return Group(*head, Text(), _interruptions_table(report.interruptions), Text())


def _cost(report: Report) -> str:
    if not report.is_priced:
        return UNPRICED
    text = f"{dollars(report.cost_usd)} (estimated)"
    if report.usd_per_hour and report.job.state not in ENDED:
        text += f", {dollars(report.usd_per_hour)} an hour now"
    if report.on_demand_usd > 0:
        dated = f", prices of {report.prices_of}" if report.prices_of else ""
        told = saved(report.cost_usd, report.on_demand_usd)
        text += f", {dollars(report.on_demand_usd)} on demand ({told}{dated})"
    interruptions = sum(row.usd or 0.0 for row in report.interruptions)
    return f"{text}; {dollars(interruptions)} for interruptions" if interruptions else text


def _with_control(report: Report) -> str:
    total, control = dollars(report.total_usd), dollars(report.control_usd)
    text = f"total    {total}, {control} of it for control nodes"
    if report.traffic_usd:
        text += f", {dollars(report.traffic_usd)} for traffic between zones"
    if report.total_usd_per_hour and report.job.state not in ENDED:
        text += f", {dollars(report.total_usd_per_hour)} an hour now"
    return text


def cost_table(cost: Cost) -> RenderableType:
    """Return the costs of a cluster, so far and per hour."""
    table = table_of(
        *(column.name.lower() for column in columns.COSTS), "", right=("so far", "per hour")
    )
    for row in rows.costs(cost):
        table.add_row(row.name.lower(), row.so_far, row.per_hour, row.note)
    return Group(Text(cost.name, "bold"), table)


def _interruptions_table(interruptions: Sequence[Interruption]) -> Fitting:
    now = wall()
    ledger = columns.INTERRUPTIONS
    zone = f" ({words.zone(now)})"
    names = tuple(column.typed + zone * (column.key == "at") for column in ledger)
    wide, narrow = table_of(*names, right=NUMBERS), table_of(*_stacked(names))
    for column in narrow.columns:
        column.vertical = "top"
        column.no_wrap = column.header not in ("interruption", "resumed\nfrom")
    for each in interruptions:
        row = rows.interruption(each, now)
        cells = tuple(getattr(row, column.key) for column in ledger)
        wide.add_row(*cells)
        narrow.add_row(*_stacked(cells))
    return Fitting((wide, narrow))


def _stacked(cells: Sequence[str]) -> tuple[str, ...]:
    """Put cells below others, for a narrow table.

    The node is below the kind, the repeated steps below the pause, the cost below the time, and the
    delay below who has told.
    """
    kind, at, pause, again, cost, node, resumed, stored, teller, after = cells
    below = f"{kind}\n{node}", f"{at}\n{cost}", f"{pause}\n{again}"
    return *below, resumed, stored, f"{teller}\n{after}"
