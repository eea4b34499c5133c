"""Turns what one controller knows into samples (pure)."""

from collections.abc import Iterator, Mapping

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


def samples(
    calls: Mapping[tuple[str, str], int], published: PublishedFacts | None
) -> Iterator[Sample]:
    """Yield what one controller knows.

    `calls` are their numbers by service and outcome: ok, busy, refused or no answer. `published` is
    what a leader has published last. Others keep silent about the job, or it counted twice.
    """
    yield LEADS.sample(published is not None)
    yield from CALLS.each(sorted(calls.items()))
    if published is not None:
        yield from job.samples(published)
