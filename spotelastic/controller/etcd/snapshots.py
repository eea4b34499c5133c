"""Saves snapshots of etcd to the bucket and finds the newest, in case most disks are lost."""

import logging
import tempfile
import threading
from collections.abc import Sequence

from spotelastic.clock import Clock, wall
from spotelastic.cloud.bucket import ClusterBucket
from spotelastic.controller.etcd.generations import SNAPSHOTS, Generations
from spotelastic.errors import Unavailable, told
from spotelastic.store.etcd_server.process import find_leader
from spotelastic.store.etcd_server.snapshot import take
from spotelastic.store.tls import TlsFiles

logger = logging.getLogger(__name__)

PREFIX = SNAPSHOTS
EVERY = 600.0
"""Seconds between two snapshots, unless others are named."""
RETRY = 30.0
KEPT = 6
LEADS_WITHIN = 2.0


def newest(objects: ClusterBucket) -> str:
    """Return the name of the newest snapshot; empty if there is none."""
    return max(objects.names(PREFIX), default="")


def save(objects: ClusterBucket, endpoints: Sequence[str], tls: TlsFiles | None, now: float) -> str:
    """Take a snapshot from the leading member and remove old ones. Returns the new one's name."""
    leader = find_leader(endpoints, timeout=LEADS_WITHIN, tls=tls)
    if not leader:
        raise Unavailable("there is no snapshot of etcd: it has no leader")
    name = f"{PREFIX}{int(now):012d}.db"
    with tempfile.TemporaryFile() as file:
        take(leader, file, tls)
        file.seek(0)
        objects.put(name, file)
    generation = Generations(objects).newest()
    for old in objects.names(PREFIX)[:-KEPT]:
        if generation is None or old != generation.snapshot:  # which a late member still needs
            objects.delete(old)
    return name


class Snapshots:
    """Saves a snapshot every `every` seconds, on a thread of its own, until `close`."""

    def __init__(
        self,
        objects: ClusterBucket,
        endpoints: Sequence[str],
        tls: TlsFiles | None,
        every: float = EVERY,
        clock: Clock = wall,
    ) -> None:
        self._objects = objects
        self._endpoints = tuple(endpoints)
        self._tls = tls
        self._every = every
        self._clock = clock
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)
        self._thread.start()

    def close(self, timeout: float = 1.0) -> None:
        self._closed.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        wait = 0.0
        while not self._closed.wait(wait):
            try:
                wait = self.turn()
            except Exception as error:
                logger.warning(told(error), exc_info=True)
                wait = RETRY

    def turn(self) -> float:
        """Save a snapshot if it is due, and return the seconds until the next.

        Another leader's snapshots count too.
        """
        now = self._clock()
        last = newest(self._objects).removeprefix(PREFIX).removesuffix(".db")
        due = float(last) + self._every if last else now
        if due <= now:
            save(self._objects, self._endpoints, self._tls, now)
            return self._every
        return min(due - now, self._every)
