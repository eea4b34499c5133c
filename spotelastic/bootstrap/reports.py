"""Tells the run what a node does before it joins, so that nobody gives the node up meanwhile.

Each report is an event `prepare`, from which the controller counts the node's time anew.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spotelastic.clock import wall
from spotelastic.errors import Unavailable
from spotelastic.model.job import JobSpec
from spotelastic.model.progress import Event
from spotelastic.store.tls import TlsFiles

if TYPE_CHECKING:
    from spotelastic.store.keys import Keys
    from spotelastic.store.port import Store

logger = logging.getLogger(__name__)

RECORD_TIMEOUT = 10.0
AGAIN = 240.0
"""Seconds after which a node reports again that it is preparing. The controller gives up a node
that has reported nothing for `HousekeepingPolicy.boot_within`.
"""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BootReports:
    """Reports of one node to its run."""

    store: "Store"
    keys: "Keys"
    node: str

    def tell(self, line: str, data: Mapping[str, object] | None = None) -> None:
        """Record a line, on the console and with the run, if the run can be reached."""
        from spotelastic.rendezvous.membership import record

        logger.info(line)
        event = Event(wall(), "prepare", f"{self.node}: {line}", self.node, dict(data or {}))
        with suppress(Unavailable):
            record(self.store, self.keys, event)

    def fail(self, reason: str) -> None:
        """End the job as failed, unless it had begun before."""
        from spotelastic.rendezvous.membership import fail

        fail(self.store, self.keys, f"on {self.node}: {reason}", wall())


@contextmanager
def reporting(spec: JobSpec, node: str, tls: TlsFiles | None = None) -> Iterator[BootReports]:
    """Yield the node's reports to the run of the job."""
    from spotelastic.store.etcd import EtcdStore
    from spotelastic.store.keys import Keys

    store = EtcdStore(spec.etcd, timeout=RECORD_TIMEOUT, tls=tls)
    try:
        yield BootReports(store, Keys(spec.run), node)
    finally:
        store.close()


@contextmanager
def repeated(tell: Say, every: float) -> Iterator[Say]:
    """Yield a `tell` that keeps repeating its last message every so many seconds."""
    over, last = threading.Event(), list[str]()

    def told(line: str) -> None:
        last[:] = [line]
        tell(line)

    def repeat() -> None:
        while not over.wait(every):
            for line in last:
                with suppress(Exception):  # it is only told once more
                    tell(f"still {line}")

    thread = threading.Thread(target=repeat, name="preparing", daemon=True)
    thread.start()
    try:
        yield told
    finally:
        over.set()
        thread.join()
