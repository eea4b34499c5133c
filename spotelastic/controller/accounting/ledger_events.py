"""Turns rows of the ledger into events, each once it is final, and back (pure)."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from spotelastic.cloud.events import WARNED_AHEAD
from spotelastic.model.counting import counted, dollars
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import ENDED
from spotelastic.model.progress import LEDGER, Event, Interruption, Report, row_of

SETTLED_AFTER = 10.0
"""Seconds after the first new step until an interruption's rows are final."""


def entries(report: Report, now: float) -> Iterator[Event]:
    """Yield an event for every settled row; its `data` is the whole row, as in `report --json`.

    Its `id` stays the same when it is made again from a later report, whatever has been added.
    """
    for row in report.interruptions:
        if row.pause_s is None or row.steps_lost is None:
            continue
        if report.job.state in ENDED or now >= _known_at(row) + SETTLED_AFTER:
            nodes = [other.node for other in report.interruptions if _pause(other) == _pause(row)]
            data = {"id": _id(row), "nodes": nodes, "interruption": msgspec.to_builtins(row)}
            yield Event(now, LEDGER, _told(row), row.node, data)


def with_recorded(rows: Sequence[Interruption], events: Iterable[Event]) -> list[Interruption]:
    """Return the rows, where those on record are as they were recorded.

    All rows of a pause are recorded together, so that there is no other one of that pause. A leader
    may have ended in between: the events name the nodes whose rows belong to it.
    """
    recorded: dict[tuple[tuple[str, str], str], Interruption] = {}
    missing: dict[tuple[str, str], set[str]] = {}
    for event in events:
        row = row_of(event)
        if row is not None:
            recorded.setdefault((_pause(row), row.node), row)
            missing.setdefault(_pause(row), set()).update(event.data.get("nodes", ()))
    for pause, node in recorded:
        missing[pause].discard(node)
    others = [
        row
        for row in rows
        if row.pause_s is None or row.node in missing.get(_pause(row), (row.node,))
    ]
    return [*recorded.values(), *others]


def _pause(row: Interruption) -> tuple[str, str]:
    """Return what rows have in common that explain one pause."""
    return _id(row), "" if row.round is not None else row.node


def _known_at(row: Interruption) -> float:
    """Return from when on nothing of the row changes, except which further observers saw it.

    A notice may be withdrawn, and a silent node may come back. That a node never trained is certain
    once it must be gone.
    """
    return row.at + WARNED_AHEAD if _is_idle(row) else row.first_step_at or row.at


def _is_idle(row: Interruption) -> bool:
    """Whether the row is of a node that was taken before it trained."""
    return row.kind is not InterruptionKind.ETCD and row.round is None


def _id(row: Interruption) -> str:
    """Return the row's id.

    It holds the node's name: a node is taken once, while workers die and etcd is away repeatedly.
    """
    if row.kind is InterruptionKind.ETCD:
        return f"etcd {row.at:.0f}"
    return "waited" if row.round is None else f"round {row.round}"


def _told(row: Interruption) -> str:
    what = f"{row.node or 'an unknown node'} ({row.kind.traits.label})"
    if _is_idle(row):
        return f"{what}: it had not trained yet, so nothing was lost"
    parts = [
        f"{what}: training paused {row.pause_s:.2f} s",
        f"{counted(row.steps_lost or 0, 'step')} repeated",
    ]
    if row.usd is not None:
        parts.append(dollars(row.usd))
    if row.saved_step is not None:
        parts.append(f"resumed from step {row.saved_step}")
    return ", ".join(parts)
