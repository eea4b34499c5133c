"""Watches etcd for an agent: the run's keys, and the nodes' own keys while it is the holder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spotelastic.rendezvous.view import RunState, forget_nodes
from spotelastic.store.keys import Keys
from spotelastic.store.port import Store, Watch, WatchItem


@dataclass(frozen=True, slots=True)
class StoreChanged:
    """Items that the watch on `prefix` delivered."""

    prefix: str
    items: tuple[WatchItem, ...]


class Watches:
    """The watches of one agent. They call `post` from their own threads, from the beginning on."""

    def __init__(self, store: Store, keys: Keys, post: Callable[[StoreChanged], None]) -> None:
        self._store = store
        self._keys = keys
        self._post = post
        self._run = self._watch(keys.all)
        self._nodes: Watch | None = None

    def follow(self, seen: RunState, *, holds: bool) -> RunState:
        """Start or end the watch on the nodes' keys, and return `seen` accordingly.

        Only the holder watches the nodes' keys, so that events stay linear in their number.
        """
        if holds and self._nodes is None:
            self._nodes = self._watch(self._keys.nodes)
        elif not holds and self._nodes is not None:
            self._nodes.close()
            self._nodes = None
            return forget_nodes(seen)
        return seen

    def close(self) -> None:
        self._run.close()
        if self._nodes is not None:
            self._nodes.close()

    def _watch(self, prefix: str) -> Watch:
        def deliver(items: Sequence[WatchItem]) -> None:
            self._post(StoreChanged(prefix, tuple(items)))

        return self._store.watch(prefix, deliver)
