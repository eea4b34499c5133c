"""Looks at a cluster for all pages that show it, and tells since when it cannot be seen."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spotelastic.client.published import is_news
from spotelastic.client.targets.cloud_target import CloudEnded
from spotelastic.clock import Clock, steady, wall
from spotelastic.errors import SpotelasticError
from spotelastic.model.progress import ClusterSummary
from spotelastic.web.page.render import sections
from spotelastic.web.view import words
from spotelastic.web.view.cluster_view import ClusterView, DrawnCurves, cluster_view, curves_of
from spotelastic.web.view.published import PublishedCluster

EVERY = 1.0
"""Seconds for which all pages are shown the same look."""


@dataclass(frozen=True, slots=True)
class LiveLook:
    """What a page shows at one time."""

    sections: Mapping[str, str] = field(default_factory=dict)
    """HTML, by the id of its element; empty if nothing was seen yet."""
    trouble: str = ""
    """Why this is not new, and since when; empty if it is."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the controls depend on."""


def facts(view: ClusterView) -> dict[str, Any]:
    """Return what the controls of a page depend on."""
    return {
        "title": f"{view.title} – spotelastic",
        "tone": view.tone,
        "ended": view.has_ended,
        "gone": view.is_gone,
        "nodes": view.training,
        "ranks": view.ranks,
        "sizes": view.sizes,
    }


def list_facts(clusters: Sequence[ClusterSummary]) -> dict[str, Any]:
    """Return the title of a list, and its tone: that of what has failed within a day."""
    bad = [each for each in clusters if each.colour == "red" and is_news(each, wall())]
    if not bad:
        return {"title": "Clusters – spotelastic", "tone": "still"}
    more = f" and {len(bad) - 1} more" if bad[1:] else ""
    short = bad[0].kind.replace("-", " ")
    return {"title": f"{words.plain(bad[0].name)}: {short}{more} – spotelastic", "tone": "bad"}


class ClusterFeed:
    """One cluster, as it was seen last. Threads may look at the same time."""

    def __init__(
        self,
        read: Callable[[], PublishedCluster],
        clock: Clock = steady,
        now: Callable[[], float] = wall,
    ) -> None:
        self._read = read
        self._clock = clock
        self._now = now
        self._lock = threading.Lock()
        self._looked_at: float | None = None
        self._failing_since: float | None = None
        self._last = LiveLook()
        self._drawn: tuple[PublishedCluster, DrawnCurves] | None = None

    def look(self) -> LiveLook:
        """Return what is to be seen; asks the cluster if the last look is not of this second."""
        with self._lock:
            if self._looked_at is None or self._clock() >= self._looked_at + EVERY:
                self._last = self._new()
                self._looked_at = self._clock()
            return self._last

    def _view(self, it: PublishedCluster, now: float) -> ClusterView:
        """Return the view; the curve is drawn anew only if something of it has been read anew."""
        if self._drawn is None or not _is_drawn_alike(self._drawn[0], it):
            self._drawn = it, curves_of(it, now)
        return cluster_view(it, now, drawn=self._drawn[1])

    def _new(self) -> LiveLook:
        began = self._clock()
        try:
            view = self._view(self._read(), self._now())
        except CloudEnded as error:
            return LiveLook(self._last.sections, str(error), self._last.facts)
        except Exception as error:  # a page that shows what was seen last beats none
            if self._failing_since is None:
                self._failing_since = began
            waited = self._clock() - self._failing_since
            since = f" for {words.span(int(waited))}" if waited >= 1.0 else ""
            trouble = f"Cannot see the cluster{since}: {_told(error)}"
            return LiveLook(self._last.sections, trouble, self._last.facts)
        self._failing_since = None
        return LiveLook(sections(view), "", facts(view))


def _is_drawn_alike(one: PublishedCluster, other: PublishedCluster) -> bool:
    """Whether the curves are made from the very same objects."""
    names = ("points", "report", "events", "rates", "measured")
    return all(getattr(one, name) is getattr(other, name) for name in names)


def _told(error: Exception) -> str:
    is_ours = isinstance(error, SpotelasticError)
    return words.plain(str(error) if is_ours else f"{type(error).__name__}: {error}")
