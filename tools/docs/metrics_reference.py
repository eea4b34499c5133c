"""Renders the metrics that nodes serve, from their declarations."""

from collections.abc import Iterator

from command_reference import cell, code

# Whose metrics are declared as they are imported.
from spotelastic.metrics import controller, job, node
from spotelastic.metrics.catalogue import EVERY, SourceOfMetric

_TITLES: dict[SourceOfMetric, str] = {
    "job": "The job: from the controller that leads, and from the dashboard",
    "controller": "Each controller",
    "node": "Each node that trains",
}
DECLARED = (job, controller, node)


def tables() -> str:
    """One table for each that serves metrics."""
    return "\n".join(line for source, title in _TITLES.items() for line in _table(source, title))


def _table(source: SourceOfMetric, title: str) -> Iterator[str]:
    yield f"## {title}\n"
    yield "| metric | labels | |\n|---|---|---|"
    for metric in EVERY:
        if metric.source == source:
            labels = ", ".join(map(code, metric.labels))
            yield f"| {code(metric.full_name)} | {labels} | {cell(metric.help)} |"
    yield ""
