"""Finds out which etcd member leads."""

from collections.abc import Sequence

from spotelastic.clock import steady
from spotelastic.store.etcd_server.process import find_leader
from spotelastic.store.tls import TlsFiles

FRESH_FOR = 1.0
"""Seconds for which an answer is reused."""


class EtcdLeader:
    """Returns the name of the leading member. It asks the last known leader first."""

    def __init__(
        self, endpoints: Sequence[str], members: Sequence[str], tls: TlsFiles | None = None
    ) -> None:
        self._tls = tls
        self._members = dict(zip(endpoints, members, strict=True))
        self._order = list(endpoints)
        self._leader = ""
        self._asked_at = float("-inf")

    def __call__(self) -> str:
        if steady() - self._asked_at > FRESH_FOR:
            found = find_leader(self._order, timeout=0.5, tls=self._tls)
            self._leader = self._members.get(found, "")
            if found:
                self._order.sort(key=lambda endpoint: endpoint != found)
            self._asked_at = steady()
        return self._leader
