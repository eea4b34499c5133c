"""A job that moves between regions by itself: what it needs, and what cannot move."""

from pathlib import Path
from typing import Any

import pytest

from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.validated_job import check
from spotelastic.errors import UsageError
from spotelastic.model.job import Regions

TWO = "us-east-1,us-west-2"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").touch()
    return tmp_path


def regions(folder: Path, **given: Any) -> Regions | None:
    return check(JobConfig("train.py", **given), folder).spec.regions


def test_a_job_stays_where_it_begins_unless_it_is_told_when_to_move(folder: Path) -> None:
    assert regions(folder) is None
    assert regions(folder, regions=TWO) is None
    assert regions(folder, regions=TWO, moves_per_day=3) is None
    names = ("us-east-1", "us-west-2")
    assert regions(folder, regions=TWO, region_patience="20m") == Regions(names, 1200.0)
    assert regions(folder, regions=TWO, prefer_capacity=True, moves_per_day=3) == Regions(
        names, patience=None, prefer_capacity=True, moves_per_day=3
    )
    us = regions(folder, regions="us", region_patience="90s", local=True)
    assert us == Regions(("us-east-1", "us-east-2", "us-west-2"), 90.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "--region-patience 20m: the job needs regions to move between"),
        ({"regions": "us-east-1"}, "--region-patience 20m: the job needs regions to move between"),
        (
            {"regions": "us-east-1", "region_patience": None, "prefer_capacity": True},
            "--prefer-capacity: the job needs regions to move between",
        ),
        (
            {"regions": "us,eu,ap"},
            "--regions us,eu,ap: these are 13 regions, and a job moves between",
        ),
        ({"regions": TWO, "region_patience": "soon"}, "--region-patience soon: expected a time"),
        ({"regions": TWO, "moves_per_day": 0}, "--moves-per-day 0: needs to be at least 1"),
        (
            {"regions": TWO, "vpc": "vpc-1", "subnets": "subnet-1"},
            "a job with --vpc vpc-1 cannot move by itself, as that network is of one region alone",
        ),
        (
            {"regions": TWO, "kms_key": "alias/mine"},
            "a job with --kms-key alias/mine cannot move by itself",
        ),
        ({"regions": TWO, "bucket": "ours"}, "a job with --bucket ours cannot move by itself"),
        (
            {"regions": "us-east-1,eu-west-1", "local": True},
            "--regions eu-west-1: the local cloud has us-east-1, us-east-2, us-west-2",
        ),
    ],
)
def test_what_cannot_move_is_refused_with_its_reason(
    given: dict[str, Any], message: str, folder: Path
) -> None:
    with pytest.raises(UsageError) as refused:
        regions(folder, **{"region_patience": "20m"} | given)
    assert message in str(refused.value)
