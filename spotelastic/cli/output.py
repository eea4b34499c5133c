"""What commands print: JSON for programs, tables for people."""

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from spotelastic.model.progress import Event, Interruption, Report, Status

T = TypeVar("T")
KINDS = {
    "notice": "interrupted with notice",
    "loss": "lost without notice",
    "worker": "worker failed",
    "etcd": "etcd member lost",
}


def console() -> Console:
    """Tables are never cut where nobody looks: a pipe gets as many columns as they need.

    No markup: what is shown comes from outside, and an error message may hold brackets.
    """
    if sys.stdout.isatty():
        return Console(markup=False)
    return Console(width=160, highlight=False, markup=False)


def to_json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def show(value: T, table: Callable[[T], RenderableType], *, as_json: bool) -> None:
    if as_json:
        print(to_json(value))
    else:
        console().print(table(value))


def _table(*columns: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=True)
    return table


# -- status --------------------------------------------------------------------------------------


def status_line(status: Status) -> str:
    """The job in one line: what changes while it trains."""
    if not status.round:
        states = Counter(node.state for node in status.nodes if node.role == "worker")
        waiting = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        return f"{status.state}: {waiting or 'no'} workers"
    training = sum(node.state == "training" for node in status.nodes)
    parts = [
        f"step {status.step}",
        f"round {status.round}",
        f"{training} {'node' if training == 1 else 'nodes'}",
    ]
    if status.loss is not None:
        parts.append(f"loss {status.loss:.3f}")
    if status.step_time:
        parts.append(f"{status.step_time * 1000:.0f} ms/step")
    parts.append(f"checkpoint {status.committed}" if status.committed else "no checkpoint yet")
    return "  ".join(parts)


def status_table(status: Status) -> RenderableType:
    state = f"  {status.state}" if status.round else ""
    head = Text.assemble((status.name, "bold"), state, "  ", status_line(status))
    return Group(head, *([Text(status.reason)] if status.reason else []), nodes_table(status))


def nodes_table(status: Status) -> Table:
    table = _table("node", "role", "state", "zone", "address", "ranks")
    for node in status.nodes:
        ranks = ",".join(str(rank) for rank in node.ranks)
        table.add_row(node.id, node.role, node.state, node.zone, node.address, ranks)
    return table


def names_table(names: Sequence[str]) -> RenderableType:
    return Text("\n".join(names) if names else "no clusters")


# -- events --------------------------------------------------------------------------------------


def clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def event_line(event: Event) -> str:
    return f"{clock(event.at)}  {event.kind:<9} {event.message}"


def events_table(events: Sequence[Event]) -> RenderableType:
    table = _table("time", "kind", "node", "what")
    table.columns[-1].no_wrap = False
    for event in events:
        table.add_row(clock(event.at), event.kind, event.node, event.message)
    return table


# -- report --------------------------------------------------------------------------------------


def report_table(report: Report) -> RenderableType:
    job = report.job
    steps = f"{job.final_step} steps"
    if repeated := job.steps_run - job.final_step:
        steps += f" ({job.steps_run} run, {repeated} of them repeated)"
    lines = Text.assemble((job.state, "bold"), f"  {steps}  goodput {report.goodput:.1%}")
    bill = Text(f"{report.node_hours:.3f} node-hours  {_cost(report)}")
    if not report.interruptions:
        return Group(lines, bill, Text("no interruptions"))
    return Group(lines, bill, _interruptions_table(report.interruptions))


def _cost(report: Report) -> str:
    text = f"{_usd(report.cost_usd)} (estimated)"
    if report.on_demand_usd > 0:
        saved = 1 - report.cost_usd / report.on_demand_usd
        text += f", {_usd(report.on_demand_usd)} on demand ({saved:.0%} saved)"
    return text


def _usd(amount: float) -> str:
    """Two significant digits for the cents of a short job, else two decimals."""
    if 0 < amount < 0.095:
        return f"${amount:.{1 - math.floor(math.log10(amount))}f}"
    return f"${amount:.2f}"


def _interruptions_table(rows: Sequence[Interruption]) -> Table:
    numbers = ("seen after", "saved step", "pause", "steps lost")
    table = _table("interruption", "node", "at", *numbers[:2], "in S3", *numbers[2:], right=numbers)
    for row in rows:
        table.add_row(
            KINDS[row.kind],
            row.node,
            clock(row.at),
            _seconds(row.seen_after_s),
            _or_dash(row.saved_step),
            {True: "yes", False: "no", None: "-"}[row.committed],
            _seconds(row.pause_s),
            _or_dash(row.steps_lost),
        )
    return table


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)
