"""Tells when the rounds of a run were proposed and started."""

import threading
import time
from collections.abc import Sequence

from spotelastic.model.round import Round
from spotelastic.store.codec import decode
from spotelastic.store.etcd import EtcdStore
from spotelastic.store.keys import Keys
from spotelastic.store.port import Change, WatchItem


class Rounds:
    """Records when each phase of each round became known on this machine."""

    def __init__(self, endpoint: str, run: str) -> None:
        self._keys = Keys(run)
        self._store = EtcdStore([endpoint])
        self._lock = threading.Lock()
        self._phases: list[tuple[float, str]] = []
        self._store.watch(self._keys.round, self._deliver)

    def between(self, start: float, end: float) -> tuple[float, float]:
        """Return when the round that trained at `end` was first proposed after `start`, and when it
        had started."""
        with self._lock:
            inside = [(at, phase) for at, phase in self._phases if start <= at <= end]
        proposed = next((at for at, phase in inside if phase == "proposed"), start)
        started = next((at for at, phase in reversed(inside) if phase == "started"), proposed)
        return proposed, started

    def close(self) -> None:
        self._store.close()

    def _deliver(self, items: Sequence[WatchItem]) -> None:
        now = time.monotonic()
        for item in items:
            if isinstance(item, Change) and item.value is not None:
                with self._lock:
                    self._phases.append((now, decode(item.value.data, Round).phase))
