"""The other nodes of a run, as the etcd where they meet shows them."""

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
    """`group` is the same on all nodes that meet there under this name, however they spell the
    endpoints; `meets` are these, for an etcd that was emptied meanwhile."""

    def __init__(self, store: "Store", run: str, endpoints: tuple[str, ...]) -> None:
        self._store, self._keys = store, Keys(run)
        self.meets = tuple(_everywhere(endpoint) for endpoint in endpoints)
        self.group = self._group()

    def live(self) -> bool | None:
        """Whether an agent of the run is there; None: etcd does not answer."""
        try:
            return bool(self._store.range(self._keys.live())[0])
        except Unavailable:
            return None

    def _group(self) -> str:
        key, mine = self._keys.group, secrets.token_hex(8)
        with suppress(Unavailable):  # the agent says so
            self._store.commit([Compare(key, "created", 0)], [Put(key, mine.encode())])
            value = self._store.get(key)
            return value.data.decode() if value else mine
        return mine


@contextmanager
def others_at(place: Rendezvous, run: str) -> Iterator[OtherNodes]:
    from spotelastic.store.etcd import EtcdStore

    store = EtcdStore(place.endpoints, timeout=5.0, tls=place.tls)
    try:
        yield OtherNodes(store, run, place.endpoints)
    finally:
        store.close()


def _everywhere(endpoint: str) -> str:
    """One of this machine's own is another one elsewhere."""
    host, _ = split(endpoint)
    return f"{machine()} {endpoint}" if is_loopback(host) else endpoint
