"""Identifies, through etcd, the nodes that form one run, and tells whether an agent of it is alive.

They share one storage: `run_storage.py` asks here before it takes or refuses that.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from spotelastic_checkpoints.addresses import is_loopback, split
from spotelastic_checkpoints.commit.tenancy import machine

from spotelastic.errors import Unavailable
from spotelastic.launcher.etcd_bootstrap import Rendezvous
from spotelastic.store.keys import Keys
from spotelastic.store.port import Compare, Put

if TYPE_CHECKING:
    from spotelastic.store.port import Store


class OtherNodes:
    """The other nodes of a run.

    `group` is the same on all nodes that meet in this etcd under this name, however they spell the
    endpoints. `meets` are the endpoints, for the case that etcd has been emptied.
    """

    def __init__(self, store: "Store", run: str, endpoints: tuple[str, ...]) -> None:
        self._store, self._keys = store, Keys(run)
        self.meets = tuple(_everywhere(endpoint) for endpoint in endpoints)
        self.group = self._group()

    def live(self) -> bool | None:
        """Whether an agent of the run is alive; None if etcd does not answer."""
        try:
            return bool(self._store.range(self._keys.live())[0])
        except Unavailable:
            return None

    def _group(self) -> str:
        key, mine = self._keys.group, secrets.token_hex(8)
        with suppress(Unavailable):  # the agent will report it
            self._store.commit([Compare(key, "created", 0)], [Put(key, mine.encode())])
            value = self._store.get(key)
            return value.data.decode() if value else mine
        return mine


@contextmanager
def others_at(rendezvous: Rendezvous, run: str) -> Iterator[OtherNodes]:
    """Yield the other nodes of the run that meet there."""
    from spotelastic.store.etcd import EtcdStore

    store = EtcdStore(rendezvous.endpoints, timeout=5.0, tls=rendezvous.tls)
    try:
        yield OtherNodes(store, run, rendezvous.endpoints)
    finally:
        store.close()


def _everywhere(endpoint: str) -> str:
    """Return an endpoint that means the same on all machines.

    A loopback address gets the machine's id.
    """
    host, _ = split(endpoint)
    return f"{machine()} {endpoint}" if is_loopback(host) else endpoint
