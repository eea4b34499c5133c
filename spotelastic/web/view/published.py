"""What a page is made from: everything that a cluster has published, read at one time."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from spotelastic_checkpoints.catalog.catalog import StepEntry

from spotelastic.model.measured import Series
from spotelastic.model.progress import Cost, Event, Point, Report, Status


@dataclass(frozen=True, slots=True)
class PublishedCluster:
    """A cluster's objects in its bucket, and what is stored beside them."""

    status: Status
    events: tuple[Event, ...] = ()
    points: tuple[Point, ...] = ()
    report: Report | None = None
    """None before the first round."""
    cost: Cost | None = None
    checkpoints: tuple[StepEntry, ...] | None = None
    """None if they were not listed."""
    script: str = ""
    sizes: tuple[int, int] | None = None
    """The fewest and the most nodes that are wanted."""
    warnings: tuple[str, ...] = ()
    """What the client itself warns of."""
    regions: str = ""
    """Why a job that moves by itself stays in its region, or moved last; empty for any other."""
    is_gone: bool = False
    """Whether the cluster was taken down, and this is what it has left."""
    goes_on_by: str = ""
    """The command that goes on from the newest checkpoint of a cluster that is gone."""
    measured: Mapping[str, Series] = field(default_factory=dict)
    """What the script logs, and how busy GPUs are, over the run's time."""
    rates: tuple[tuple[float, float], ...] = ()
    """US dollars an hour, from each time on at which they have changed."""
