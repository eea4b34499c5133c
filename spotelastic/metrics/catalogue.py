"""Describes metrics: what each is called, what it says, and the labels that it has.

A metric is declared once, beside the facts that it is made of. The declarations are listed in
`EVERY`, from which the reference page is made, and against which dashboards and alerts are checked.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

PREFIX = "spotelastic_"
SourceOfMetric = Literal["job", "controller", "node"]
"""Who serves a metric: the leading controller and the dashboard, each controller, or each agent."""
EVERY: list["Metric"] = []
"""All metrics, in the order of their declaration."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. Counters end in `_total`, all others in their unit, if they have one."""

    name: str
    """Without the prefix."""
    kind: Literal["counter", "gauge"]
    help: str
    source: SourceOfMetric
    labels: tuple[str, ...] = ()
    """Besides `cluster`, which each has. Each has few values, such as words of the product."""

    def __post_init__(self) -> None:
        assert all(other.name != self.name for other in EVERY), self.name
        EVERY.append(self)

    @property
    def full_name(self) -> str:
        return PREFIX + self.name

    def sample(self, value: float, *labels: str) -> "Sample":
        assert len(labels) == len(self.labels), self.name
        return Sample(self, float(value), labels)

    def each(self, values: Iterable[tuple[tuple[str, ...], float]]) -> Iterable["Sample"]:
        """Yield a sample for each tuple of labels and its value."""
        for labels, value in values:
            yield self.sample(value, *labels)


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric."""

    metric: Metric
    value: float
    labels: tuple[str, ...] = ()
