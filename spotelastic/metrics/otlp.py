"""Sends samples by OTLP, where the variables of OpenTelemetry name an endpoint.

OpenTelemetry's SDK is an extra, and is imported here alone. It sends on a thread of its own:
an endpoint that is slow, or gone, costs samples and nothing else.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from spotelastic.clock import Clock, steady
from spotelastic.metrics.catalogue import EVERY, Metric, Sample
from spotelastic.metrics.exposition import Read

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation

logger = logging.getLogger(__name__)

ENDPOINT, METRICS_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
HEADERS, METRICS_HEADERS = "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_METRICS_HEADERS"
PROTOCOL, INTERVAL = "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_METRIC_EXPORT_INTERVAL"
EXPORTER = "OTEL_METRICS_EXPORTER"
EVERY_MS = 15_000.0
SENT_WITHIN = 5.0
"""Seconds that one export may take."""
CLOSED_WITHIN = 2.0
"""Seconds that a process which ends gives to the last samples."""
FRESH = 1.0
"""Seconds for which samples are kept: all metrics of one export are of one moment."""


def is_wanted(variables: Mapping[str, str]) -> bool:
    """Whether metrics are to be sent by OTLP."""
    named = variables.get(METRICS_ENDPOINT) or variables.get(ENDPOINT)
    return bool(named) and variables.get(EXPORTER, "otlp") == "otlp"


@contextlib.contextmanager
def sending(
    read: Read,
    variables: Mapping[str, str],
    instance: str,
    say: Callable[[str], None] = logger.warning,
    closed_within: float = CLOSED_WITHIN,
) -> Iterator[None]:
    """Send samples while the block lasts. `instance` names this process among those of the cluster.

    Where that cannot be, `say` is told why, in one line, and the block goes on without.
    """
    try:
        provider = _provider(read, variables, instance)
    except ModuleNotFoundError as error:
        say(
            f"{ENDPOINT} is set, and no metrics are sent: {error.name} is missing: "
            "pip install 'spotelastic[otlp]'"
        )
        yield
        return
    except Exception as error:  # a process goes on without
        say(f"{ENDPOINT} is set, and no metrics are sent: {error}")
        yield
        return
    try:
        yield
    finally:
        ending = (provider, closed_within)
        last = threading.Thread(target=_close, args=ending, name="otlp-last", daemon=True)
        last.start()
        last.join(closed_within)


class TellsOnce(logging.Filter):
    """Lets each complaint of the SDK through once: it complains at each export."""

    def __init__(self) -> None:
        super().__init__()
        self._told: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        is_new = record.msg not in self._told
        self._told.add(record.msg)
        return is_new


def _close(provider: Any, within: float) -> None:
    with contextlib.suppress(Exception):
        provider.shutdown(timeout_millis=within * 1000)


def _provider(read: Read, variables: Mapping[str, str], instance: str) -> Any:
    protocol = variables.get(PROTOCOL, "http/protobuf")
    if protocol != "http/protobuf":
        raise ValueError(f"{PROTOCOL} {protocol}: expected http/protobuf")
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.util.re import parse_env_headers

    for part in ("exporter.otlp.proto.http.metric_exporter", "sdk.metrics._internal.export"):
        logging.getLogger(f"opentelemetry.{part}").addFilter(TellsOnce())
    base = variables.get(ENDPOINT, "").rstrip("/")
    exporter = OTLPMetricExporter(
        endpoint=variables.get(METRICS_ENDPOINT) or f"{base}/v1/metrics",
        headers=parse_env_headers(
            variables.get(METRICS_HEADERS) or variables.get(HEADERS, ""), liberal=True
        ),
        timeout=SENT_WITHIN,
    )
    interval = float(variables.get(INTERVAL) or EVERY_MS)
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=interval)
    of = {"service.name": "spotelastic", "service.instance.id": instance}
    provider = MeterProvider((reader,), Resource.create(of), shutdown_on_exit=False)
    meter, recent = provider.get_meter("spotelastic"), RecentSamples(read)
    for metric in EVERY:
        make = (
            meter.create_observable_counter
            if metric.kind == "counter"
            else meter.create_observable_gauge
        )
        # Prometheus adds the ending of a counter by itself.
        make(
            metric.full_name.removesuffix("_total"),
            [_observed(metric, recent)],
            description=metric.help,
        )
    return provider


def _observed(
    metric: Metric, recent: "RecentSamples"
) -> "Callable[[CallbackOptions], list[Observation]]":
    from opentelemetry.metrics import Observation

    def observe(_: "CallbackOptions") -> "list[Observation]":
        names = metric.labels
        return [
            Observation(
                sample.value, {"cluster": cluster, **dict(zip(names, sample.labels, strict=True))}
            )
            for cluster, sample in recent.of(metric)
        ]

    return observe


class RecentSamples:
    """Reads the samples of all metrics once, although each metric asks for its own."""

    def __init__(self, read: Read, clock: Clock = steady) -> None:
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._read_at: float | None = None
        self._samples: dict[Metric, list[tuple[str, Sample]]] = {}

    def of(self, metric: Metric) -> list[tuple[str, Sample]]:
        """Return the samples of a metric, each with its cluster."""
        with self._lock:
            now = self._clock()
            if self._read_at is None or now - self._read_at >= FRESH:
                found: dict[Metric, list[tuple[str, Sample]]] = {}
                for cluster, samples in self._read():
                    for sample in samples:
                        found.setdefault(sample.metric, []).append((cluster, sample))
                self._samples, self._read_at = found, now
            return self._samples.get(metric, [])
