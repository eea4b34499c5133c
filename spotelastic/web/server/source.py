"""What the dashboard shows, and where it comes from: the clusters of one account or namespace."""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from spotelastic.client import logs
from spotelastic.client.cluster import Cluster
from spotelastic.client.logs import Wanted
from spotelastic.client.progress import Say
from spotelastic.client.published import GONE_FOR, by_urgency, published_facts
from spotelastic.client.targets.cloud_target import CloudEnded, ClusterTarget
from spotelastic.client.targets.find import here_now, located
from spotelastic.clock import steady, wall
from spotelastic.errors import SpotelasticError, UsageError
from spotelastic.metrics import exposition
from spotelastic.metrics.job import samples
from spotelastic.model.progress import ClusterSummary
from spotelastic.web.reading import OFTEN, SELDOM, ClusterReader, KeptAnswer
from spotelastic.web.server.actions import ACTIONS
from spotelastic.web.server.feed import ClusterFeed, LiveLook
from spotelastic.web.view import words

MOST_LINES = 500
"""Most lines of output in one answer: the newest."""
AT_FIRST = 900.0
"""Seconds of output that a page shows when it is opened."""
LATE = 5000
"""Milliseconds by which a line may arrive after younger ones."""


class TargetSource:
    """The clusters of AWS, the local cloud or a namespace on Kubernetes, by the client.

    Its methods may block, and are called on threads.
    """

    def __init__(self, target: ClusterTarget) -> None:
        self._target = target
        self._changes = 0
        """How often clusters were commanded, or found to be elsewhere: all is asked anew then."""
        self._listed = KeptAnswer(OFTEN, self._list, steady)
        self._ended = KeptAnswer(SELDOM, self._list_ended, steady)
        self._shown: dict[str, tuple[ClusterReader, ClusterFeed]] = {}
        self._lock = threading.Lock()

    def clusters(self) -> Sequence[ClusterSummary]:
        """Return a summary of every cluster, also of those that have ended in the last days."""
        self._follow()
        there = self._listed.get(of=self._changes)
        names = frozenset(each.name for each in there)
        ended = self._ended.get(of=hash((self._changes, names)))
        return by_urgency((*there, *(each for each in ended if each.name not in names)), wall())

    def _list(self) -> tuple[ClusterSummary, ...]:
        return self._target.listing()

    def _list_ended(self) -> tuple[ClusterSummary, ...]:
        with suppress(SpotelasticError):  # those that are there are shown all the same
            return self._target.ended(wall() - GONE_FOR)
        return ()

    def _follow(self) -> None:
        """Look where clusters are now: a local cloud may have ended since, or begun."""
        try:
            self._target.check()
        except CloudEnded:
            self._target = here_now()
            self._changes += 1
            with self._lock:
                self._shown.clear()

    def look(self, name: str) -> LiveLook:
        """Return what is to be seen of a cluster. Raises `UsageError` if there is none."""
        return self._cluster(name)[1].look()

    def output(self, name: str, rank: int | None, since: int) -> dict[str, Any]:
        """Return the workers' `lines` since then, and the `next` time to ask for more from.

        Both times are in milliseconds since the epoch; 0: those of the last time.
        """
        now = wall()
        cluster = self._cluster(name)[0].cluster
        if not since:
            last = min(now, cluster.status().at)
            since = int(1000 * max(last - AT_FIRST, 0.0))
        found = deque(logs.since(cluster.record, Wanted(rank), since), maxlen=MOST_LINES)
        lines = [
            {
                "id": id,
                "at": line.at,
                "node": words.short(line.node),
                "rank": line.rank,
                "text": words.plain(line.text),
            }
            for id, line in found
        ]
        newest = max((int(line.at * 1000) for _, line in found), default=since + LATE)
        return {"lines": lines, "next": max(since, newest - LATE)}

    def act(self, name: str, action: str, given: Mapping[str, Any], say: Say) -> str:
        """Carry out a command, and return what was done."""
        carry_out = ACTIONS.get(action)
        if carry_out is None:
            raise UsageError(f"there is no command {action!r}")
        cluster = Cluster(*located(self._target, name, lambda _: None))
        done = carry_out(cluster, given, say)
        self._changes += 1
        with self._lock:
            self._shown.pop(name, None)  # its description may have changed
        return done

    def metrics(self, accepted: str) -> tuple[bytes, str]:
        """Return the metrics of all clusters as one page, and its content type."""
        self._follow()
        known = (self._target.known(name) for name in self._target.names())
        facts = [published_facts(record) for record in known if record is not None]
        return exposition.page(lambda: [(each.cluster, samples(each)) for each in facts], accepted)

    def _cluster(self, name: str) -> tuple[ClusterReader, ClusterFeed]:
        """Return the cluster, or what one that is gone has left."""
        self._follow()
        with self._lock:
            known = self._shown.get(name)
        if known is not None:
            return known
        reader = ClusterReader(self._found(name))
        with self._lock:
            return self._shown.setdefault(name, (reader, ClusterFeed(reader.read)))

    def _found(self, name: str) -> Cluster:
        return Cluster(*located(self._target, name, lambda _: None, gone=True))
