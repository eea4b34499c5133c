"""Declares the options of `up` about metrics and messages."""

from collections.abc import Sequence
from dataclasses import dataclass

from spotelastic.client.config.option import option
from spotelastic.client.config.panels import WATCHING


@dataclass(frozen=True, kw_only=True)
class WatchingOptions:
    """How a job is watched from outside."""

    PANEL = WATCHING

    metrics_port: int | None = option(
        None,
        "Port at which nodes serve metrics for Prometheus, inside the cluster's network.",
        metavar="PORT",
        least=1,
        stored=lambda job: job.metrics_port or None,
    )
    notify: Sequence[str] = option(
        (),
        "Where to send notifications: an Apprise URL, sns:ARN, or a variable that holds one.",
        metavar="URL|NAME",
        stored=lambda job: set(job.notify),
        shows_values=False,
        hidden=True,
    )
    notify_digest: str | None = option(
        None,
        "With --notify: also tell once a day, at this time (UTC), how the job is doing.",
        metavar="HH:MM",
        stored=lambda job: job.digest or None,
    )
