"""Declares the options of `up` about regions: where a job begins, and when it moves by itself."""

from collections.abc import Sequence
from dataclasses import dataclass

from spotelastic.client.config.option import option
from spotelastic.client.config.panels import NODES
from spotelastic.model.counting import duration
from spotelastic.model.interval import TIME
from spotelastic.model.job import JobSpec


def _patience(job: JobSpec) -> str | None:
    regions = job.regions
    return None if regions is None or regions.patience is None else duration(regions.patience)


@dataclass(frozen=True, kw_only=True)
class MovingOptions:
    """The regions that a job may be in."""

    PANEL = NODES

    regions: Sequence[str] = option(
        (),
        "In place of one region: several, of which the best is chosen; us, eu and ap name some.",
        metavar="R[,R...]",
        commas=True,
        shown_default="--region",
        stored=lambda job: None if job.regions is None else ",".join(job.regions.names),
    )
    region_patience: str | None = option(
        None,
        "Move to another of --regions after this time with fewer than --min nodes.",
        metavar="TIME",
        pattern=TIME,
        shown_default="the job stays",
        stored=_patience,
    )
    prefer_capacity: bool = option(
        False,
        "Also move while the job trains, if another of --regions is worth more.",
        off="no-prefer-capacity",
        stored=lambda job: job.regions is not None and job.regions.prefer_capacity,
    )
    moves_per_day: int = option(
        12,
        "Most such moves within 24 hours.",
        metavar="N",
        least=1,
        stored=lambda job: None if job.regions is None else job.regions.moves_per_day,
    )
