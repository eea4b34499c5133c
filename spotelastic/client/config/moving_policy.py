"""Reads the options about regions: which they name, and when a job moves between them by itself."""

from collections.abc import Sequence

from spotelastic.client.config.capacity_policy import seconds_left
from spotelastic.client.config.job_config import JobConfig
from spotelastic.errors import UsageError
from spotelastic.model.job import Regions

AREAS = {
    "us": ("us-east-1", "us-east-2", "us-west-2"),
    "eu": ("eu-central-1", "eu-north-1", "eu-west-1", "eu-west-2", "eu-west-3"),
    "ap": ("ap-northeast-1", "ap-northeast-2", "ap-south-1", "ap-southeast-1", "ap-southeast-2"),
}
"""Words for several regions: those that every account has, and that have three zones."""
MOST_REGIONS = 10
"""Most regions of a job that moves by itself: a role's policies, which name their buckets, may have
10,240 characters together.
"""
OF_ONE_REGION = {
    "vpc": "that network is of one region alone",
    "kms_key": "that key is of one region alone",
    "data_key": "those keys are of one region alone",
    "worker_image": "that image is of one region alone",
    "control_image": "that image is of one region alone",
    "control_profile": "its role has no rights in other regions",
    "bucket": "each region has a bucket of its own for the job, the shared one",
}
"""Fields with which a job cannot move by itself, and why."""


def named(words: Sequence[str]) -> tuple[str, ...]:
    """Return the regions that `--regions` names, each once."""
    return tuple(dict.fromkeys(region for word in words for region in AREAS.get(word, (word,))))


def moves_by_itself(config: JobConfig) -> bool:
    """Whether the options ask for that."""
    return config.region_patience is not None or config.prefer_capacity


def regions(config: JobConfig) -> Regions | None:
    """Return between which regions the job moves by itself; None: it stays where it begins.

    Raises `UsageError` for a job that cannot.
    """
    if not moves_by_itself(config):
        return None
    names = named(config.regions)
    patience = config.region_patience
    flag = "--prefer-capacity" if patience is None else f"--region-patience {patience}"
    if len(names) < 2:
        raise UsageError(
            f"{flag}: the job needs regions to move between: give at least two, such as "
            "--regions us-east-1,us-west-2"
        )
    if len(names) > MOST_REGIONS:
        raise UsageError(
            f"--regions {','.join(config.regions)}: these are {len(names)} regions, and a "
            f"job moves between at most {MOST_REGIONS} by itself: name fewer"
        )
    for name, why in OF_ONE_REGION.items():
        if given := getattr(config, name):
            raise UsageError(
                f"{flag}: a job with --{name.replace('_', '-')} {given} cannot move by itself, as "
                f"{why}: remove one of the two"
            )
    return Regions(
        names,
        patience=seconds_left(patience, "--region-patience"),
        prefer_capacity=config.prefer_capacity,
        moves_per_day=config.moves_per_day,
    )
