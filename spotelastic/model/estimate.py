"""Estimates how far a job is, until when it goes on, and what it costs by then (pure).

What is estimated is told with "about": nobody knows which nodes will be taken.
"""

from dataclasses import dataclass

from spotelastic.model.counting import HOUR, MINUTE, dollars, percent, span
from spotelastic.model.headline import headline
from spotelastic.model.job import ENDED
from spotelastic.model.progress import ClusterSummary, Status


@dataclass(frozen=True, slots=True)
class ProgressEstimate:
    """How far a job is. What is not known is None: a script need not say where it ends."""

    share: float | None = None
    """Of its steps, from 0 to 1."""
    left: float | None = None
    """Seconds until its last step, at the pace of the last hour, pauses included.

    Not known while it makes no step.
    """
    ends_at: float | None = None
    """When that is (epoch seconds)."""
    elapsed: float | None = None
    """Seconds since its first step; of a job that has ended, to its last one."""
    usd: float | None = None
    """US dollars so far."""
    usd_at_end: float | None = None
    """US dollars by then, if as much runs as now."""

    @property
    def percent(self) -> str:
        """The share for people, which is 100% at the last step only."""
        return percent(self.share or 0.0)

    @property
    def line(self) -> str:
        """For people; empty if nothing is known."""
        parts = [f"{self.percent} done" if self.share is not None else ""]
        parts.append(f"about {roughly(self.left)} left" if self.left else "")
        if self.elapsed:
            parts.append(f"{span(int(self.elapsed))} so far")
        if self.usd_at_end is not None:
            parts.append(f"about {dollars(self.usd_at_end)} in all")
        return ", ".join(filter(None, parts))


def roughly(seconds: float) -> str:
    """Return a time that nobody knows exactly, without digits that say nothing."""
    unit = MINUTE if seconds >= 10 * MINUTE else 10.0 if seconds >= MINUTE else 1.0
    return span(max(1, round(seconds / unit)) * unit)


def progress_of(
    status: Status, now: float, spent: tuple[float, float] | None = None
) -> ProgressEstimate:
    """Return how far a job is.

    `spent` is what the cluster has cost and costs an hour, where that is known better than from the
    status, which may be some seconds old.
    """
    usd, per_hour = spent if spent is not None else (status.usd, status.usd_per_hour)
    has_ended = status.state in ENDED
    # The status of a job that has ended stays as fresh as its cluster is up.
    until = (status.stepped_at or status.at) if has_ended else now
    elapsed = max(0.0, until - status.began_at) if status.began_at else None
    share = min(1.0, status.step / status.total) if status.total else None
    left = None
    training = any(node.state == "training" for node in status.nodes)
    # Nobody knows how long it hangs, or waits for nodes.
    stands = status.quiet or (status.short_since is not None and not training)
    has_end = bool(status.total) and not has_ended and not stands
    if has_end and (status.pace or status.step >= status.total):
        left = max(0, status.total - status.step) * status.pace
    return ProgressEstimate(
        share=share,
        left=left,
        ends_at=None if left is None else now + left,
        elapsed=elapsed,
        usd=usd or None,
        usd_at_end=usd + left / HOUR * per_hour if left is not None and usd else None,
    )


def summary(status: Status, now: float) -> ClusterSummary:
    """Return the row of a list of clusters."""
    worst, estimate = headline(status, now), progress_of(status, now)
    return ClusterSummary(
        name=status.name,
        state=status.state,
        nodes=sum(node.role == "worker" and node.state != "gone" for node in status.nodes),
        step=status.step,
        differs=status.differs,
        silent_for=status.silent_for(now),
        total=status.total,
        ends_at=estimate.ends_at,
        usd=status.usd,
        usd_per_hour=status.usd_per_hour,
        headline=worst.line if worst is not None else "",
        kind=worst.kind if worst is not None else "",
        colour=worst.colour if worst is not None else "",
        weight=worst.weight if worst is not None else 0,
    )
