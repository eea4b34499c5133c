"""The Lease that lets one process alone run a cluster's etcd and controller.

A Deployment may have two pods for a while: of one on a machine that nobody hears of any more, no
one knows whether it still runs. Each takes the Lease before it starts anything.

Must never happen: two pods of a cluster run an etcd, or a controller that acts. A holder that could
not renew the Lease ends both before anybody else may take it: `HELD_FOR` seconds after its last
renewal was asked for, while others wait for `FREE_AFTER` seconds from when they saw that renewal.
Both are measured by each process's own clock, so that clocks need not agree.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from spotelastic.clock import Clock, steady
from spotelastic.errors import EnvironmentFailure, Unavailable
from spotelastic.kubernetes.pods import Manifest
from spotelastic.kubernetes.provider.api_client import KubeApi
from spotelastic.kubernetes.provider.call_errors import Conflicting, Missing
from spotelastic.kubernetes.provider.kube_names import KubeNames
from spotelastic.kubernetes.provider.pod_groups import owner

HELD_FOR = 10.0
FREE_AFTER = 15.0
RENEW_EVERY = 2.0


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    """A Lease as one process sees it."""

    holder: str
    """The pod that holds it; empty: nobody."""
    version: str
    """Differs after each renewal."""
    since: float
    """When this process saw that version first, by its own steady clock."""


def is_free(seen: LeaseSeen | None, me: str, now: float) -> bool:
    """Whether a process may take or renew the Lease (pure)."""
    return seen is None or seen.holder in ("", me) or now - seen.since >= FREE_AFTER


class LeaseLock:
    """Takes and keeps a Lease, for the pod `me`: that of a cluster, or one of another name."""

    def __init__(
        self, api: KubeApi, cluster: str, me: str, clock: Clock = steady, name: str = ""
    ) -> None:
        """`name`: that of a Lease which belongs to no cluster."""
        self._api = api
        self._its = KubeNames(cluster)
        self._name = name or self._its.control
        self._me = me
        self._clock = clock
        self._seen: LeaseSeen | None = None
        self.held_until = 0.0
        """Until when the Lease is held without being renewed, by the steady clock; 0: it is not."""

    def try_to_hold(self) -> bool:
        """Take the Lease if it is free, or renew it. Returns whether it is held now.

        Raises `Unavailable` and `EnvironmentFailure` if the cluster does not answer, or refuses.
        """
        asked_at = self._clock()
        found = self._api.get("Lease", self._name)
        if not is_free(self._look(found, asked_at), self._me, asked_at):
            self.held_until = 0.0
            return False
        try:
            if found is None:
                made = self._api.create(self._lease(None))
            else:
                made = self._api.replace(self._lease(found))
        except (Conflicting, Missing):
            return False  # another process was faster
        self._look(made, asked_at)
        self.held_until = asked_at + HELD_FOR
        return True

    def acquire(self, over: threading.Event, say: Callable[[str], None]) -> bool:
        """Wait until the Lease is held; return False if `over` is set before."""
        told = ""
        while not over.is_set():
            try:
                if self.try_to_hold():
                    return True
                why = f"another pod holds the Lease {self._name}"
            except (Unavailable, EnvironmentFailure) as error:
                why = str(error)
            if why != told:
                say(why)
            told = why
            over.wait(RENEW_EVERY)
        return False

    def keep(self, over: threading.Event, renewed: Callable[[float], None]) -> bool:
        """Renew the Lease until `over` is set, which returns True, or until it is lost.

        `renewed` is told until when it is held. Whoever called has to end what needs the Lease at
        once when this returns False.
        """
        while not over.wait(RENEW_EVERY):
            try:
                if self.try_to_hold():
                    renewed(self.held_until)
                    continue
            except (Unavailable, EnvironmentFailure):
                pass
            if self._clock() >= self.held_until - RENEW_EVERY:
                return False
        return True

    def keeping(
        self, over: threading.Event, renewed: Callable[[float], None], lost: Callable[[], None]
    ) -> threading.Thread:
        """Start a thread that keeps the Lease. Whatever ends it early calls `lost`."""

        def keep() -> None:
            kept = False
            try:
                kept = self.keep(over, renewed)
            finally:
                if not kept:
                    lost()

        thread = threading.Thread(target=keep, name="lease", daemon=True)
        thread.start()
        return thread

    def release(self) -> None:
        """Let the next pod take the Lease at once."""
        found = self._api.get("Lease", self._name)
        if found is not None and found["spec"].get("holderIdentity") == self._me:
            made = self._lease(found)
            made["spec"]["holderIdentity"] = ""
            self.held_until = 0.0
            self._api.replace(made)

    def _look(self, found: Manifest | None, now: float) -> LeaseSeen | None:
        if found is None:
            self._seen = None
            return None
        version = str(found["metadata"]["resourceVersion"])
        if self._seen is None or self._seen.version != version:
            holder = str(found["spec"].get("holderIdentity") or "")
            self._seen = LeaseSeen(holder, version, now)
        return self._seen

    def _lease(self, found: Manifest | None) -> Manifest:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        if found is not None:
            metadata = found["metadata"]
        elif not self._its.cluster:
            metadata = {"name": self._name}
        else:
            root = self._api.get("ConfigMap", self._its.root)
            owners = [] if root is None else [owner(root)]
            metadata = {
                "name": self._its.control,
                "labels": self._its.labels("control"),
                "ownerReferences": owners,
            }
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": self._me,
                "leaseDurationSeconds": int(FREE_AFTER),
                "renewTime": now,
            },
        }
