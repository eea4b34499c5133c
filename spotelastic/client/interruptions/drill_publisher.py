"""Publishes how far a drill is, so that others than its own terminal see what will come."""

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from spotelastic.clock import Clock, wall
from spotelastic.cloud.bucket import DRILL, ClusterBucket
from spotelastic.errors import SpotelasticError
from spotelastic.model.progress import DRILL_STALE, DueInterruption, RemainingDrill

EVERY = DRILL_STALE / 4
"""Seconds after which it is written again although nothing has changed."""


class DrillPublisher:
    """Keeps a cluster's `drill.json` as it is now; closing it removes the object.

    A drill never fails or waits because the bucket does not answer.
    """

    def __init__(self, objects: ClusterBucket, clock: Clock = wall) -> None:
        self._objects = objects
        self._clock = clock
        self._told: RemainingDrill | None = None

    def publish(self, caused: int, due: Sequence[DueInterruption]) -> None:
        """Write it, if it has changed or the last time is a while ago."""
        now = RemainingDrill(self._clock(), caused, tuple(due))
        told = self._told
        changed = told is None or (told.caused, told.due) != (now.caused, now.due)
        if told is not None and not changed and now.at < told.at + EVERY:
            return
        self._told = now
        with suppress(SpotelasticError):
            self._objects.put(DRILL, msgspec.json.encode(now))

    def close(self) -> None:
        """Remove the object: nothing more will come."""
        with suppress(SpotelasticError):
            if self._told is not None:
                self._objects.delete(DRILL)
