"""Turns what one controller knows into samples (pure)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from spotelastic.metrics import job
from spotelastic.metrics.catalogue import Metric, Sample
from spotelastic.metrics.job import PublishedFacts

LEADS = Metric(
    "controller_leads",
    "gauge",
    "Whether this controller leads: of one cluster one does.",
    "controller",
)
CALLS = Metric(
    "cloud_calls_total",
    "counter",
    "Calls of this controller to the cloud's services, by outcome.",
    "controller",
    ("service", "outcome"),
)


@dataclass(frozen=True, slots=True)
class ControllerFacts:
    """What one controller knows."""

    leads: bool = False
    calls: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Number of calls, by service and outcome: ok, busy, refused or no answer."""
    published: PublishedFacts | None = None
    """What a leader has published last. Others keep silent about the job, or it counted twice."""


def samples(facts: ControllerFacts) -> Iterator[Sample]:
    """Yield what this controller knows."""
    yield LEADS.sample(facts.leads)
    yield from CALLS.each(sorted(facts.calls.items()))
    if facts.leads and facts.published is not None:
        yield from job.samples(facts.published)
