"""Hands samples to prometheus_client, in registries of our own.

prometheus_client is imported here alone, with the first registry: who serves no metrics does not
pay for it. Its process-wide registry is never used.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from spotelastic.metrics.catalogue import Metric, Sample

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as Family

Read = Callable[[], Iterable[tuple[str, Iterable[Sample]]]]
"""Returns the present samples with their cluster's name, at each scrape, on its thread."""


class SampleCollector:
    """Reads samples at each scrape, as prometheus_client's registries want it."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def describe(self) -> Iterable["Family"]:
        """Nothing: a registry would read all samples to know their names in advance."""
        return ()

    def collect(self) -> Iterable["Family"]:
        """Return the samples as prometheus_client's families, one for each metric."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        found: dict[Metric, CounterMetricFamily | GaugeMetricFamily] = {}
        for cluster, samples in self._read():
            for sample in samples:
                metric = sample.metric
                if metric not in found:
                    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                    labels = ("cluster", *metric.labels)
                    found[metric] = kind(metric.full_name, metric.help, labels=labels)
                found[metric].add_metric((cluster, *sample.labels), sample.value)
        return found.values()


def page(read: Read, accept: str = "") -> tuple[bytes, str]:
    """Return the samples as one page, and its content type.

    `accept` is what the scraper takes, as the header of its request says.

    For a server that is there already:

        page(lambda: [(cluster.name, job.samples(published_facts(cluster.record)))])
    """
    from prometheus_client.exposition import choose_encoder

    encode, content_type = choose_encoder(accept)
    return encode(registry(read)), content_type


def registry(read: Read, *, process: bool = False) -> "CollectorRegistry":
    """Return a registry with these samples, and on demand with those of this process.

    The latter are its memory, CPU time and open files, as Prometheus names them.
    """
    from prometheus_client import CollectorRegistry, ProcessCollector

    made = CollectorRegistry(auto_describe=False)
    made.register(SampleCollector(read))
    if process:
        ProcessCollector(registry=made)
    return made
