"""Hands a process's samples to whoever asked for them: to Prometheus, by OTLP, or to nobody."""

import contextlib
from collections.abc import Iterator, Mapping

from spotelastic.metrics import otlp
from spotelastic.metrics.exposition import Read
from spotelastic.metrics.scrape_server import MetricsServer


@contextlib.contextmanager
def serving(
    where: tuple[str, int] | None, read: Read, variables: Mapping[str, str], instance: str
) -> Iterator[None]:
    """Serve samples at an address and a port, and send them where OpenTelemetry's variables say,
    while the block lasts. `instance` names this process among those of the cluster.
    """
    with contextlib.ExitStack() as stack:
        if where is not None:
            stack.enter_context(MetricsServer(*where, read))
        if otlp.is_wanted(variables):
            stack.enter_context(otlp.sending(read, variables, instance))
        yield
