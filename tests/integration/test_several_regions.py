"""Several regions for one job: each is surveyed, and none is entered while another has the job."""

from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest
from spotelastic_checkpoints.commit.latest import Latest
from spotelastic_checkpoints.types import Commit
from support.aws.cluster_requests import job
from support.clusters.local_cloud import Laptop, environment, running_cloud

from spotelastic.aws.artifacts.code_archive import Archive
from spotelastic.aws.base import account
from spotelastic.aws.planning.type_selection import Requirement
from spotelastic.client.bringing_up import region_choice
from spotelastic.client.bringing_up.plan import RegionPlan
from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.validated_job import ValidatedJob
from spotelastic.client.targets.cloud_target import CloudTarget
from spotelastic.client.targets.find import in_region
from spotelastic.errors import EnvironmentFailure
from spotelastic.local import cloud
from spotelastic.model.job import Settings

EAST, WEST = "us-east-1", "us-west-2"
LATEST = msgspec.json.encode(Latest("kept", 1, Commit(1, 40), "nonce"))


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    with (
        running_cloud(tmp_path_factory.mktemp("home")) as info,
        environment(**cloud.environment(info)),
    ):
        yield Laptop(info)


@pytest.fixture
def targets(laptop: Laptop) -> dict[str, CloudTarget]:
    return {name: in_region(name) for name in (EAST, WEST)}


def wanted(name: str = "demo", *types: str) -> ValidatedJob:
    spec = job(name, settings=Settings(2, 4), instance_types=types or ("g5.xlarge",))
    config = JobConfig(name=name, regions=(EAST, WEST))
    return ValidatedJob(config, spec, Archive("", b"", 0), Requirement(), {})


def test_each_region_is_surveyed_and_the_best_one_entered(
    targets: dict[str, CloudTarget],
) -> None:
    said: list[str] = []
    target, plans = region_choice.choose(wanted(), targets, said.append)
    assert target is targets[plans[0].region]
    assert sorted(each.region for each in plans) == [EAST, WEST]
    assert [bool(each.chosen) for each in plans] == [True, False]
    assert said[:2] == [f"looking at {EAST}", f"looking at {WEST}"]


def test_a_job_that_no_region_can_have_is_told_why_by_each(
    targets: dict[str, CloudTarget],
) -> None:
    with pytest.raises(EnvironmentFailure) as refused:
        region_choice.choose(wanted("demo", "x9.huge"), targets, print)
    text = str(refused.value)
    assert text.startswith("the job can be in none of the regions: ")
    assert f"{EAST}: " in text and f"{WEST}: " in text


def test_a_job_goes_on_where_its_checkpoints_are(targets: dict[str, CloudTarget]) -> None:
    west, run = targets[WEST], wanted("kept")
    account.ensure_bucket(west.aws, west.bucket)
    west.aws.s3.put_object(Bucket=west.bucket, Key="kept/checkpoints/LATEST", Body=LATEST)
    said: list[str] = []
    target, plans = region_choice.choose(run, targets, said.append)
    assert target is west
    assert plans == (RegionPlan(WEST, chosen="its checkpoints are there, the newest of step 40"),)
    assert said[0].startswith(f"goes on in {WEST}: its checkpoints are there")
    fresh = replace(run, config=replace(run.config, fresh=True))
    _, plans = region_choice.choose(fresh, targets, print)
    assert len(plans) == 2
