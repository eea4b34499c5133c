"""`up`, `down` and other commands, where a job has a cluster in each of two regions."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from spotelastic_checkpoints.commit.latest import LATEST, ForwardPointer
from support.aws.account import NETWORK, REGION, account
from support.aws.cluster_remains import remains

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.clusters import teardown
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.compute import autoscaling, worker_groups
from spotelastic.aws.planning.plan import ClusterSpec
from spotelastic.cli.render.plan_view import plan as shown
from spotelastic.client.bringing_up import bring_up, region_choice
from spotelastic.client.bringing_up.bring_up import PreparedUp
from spotelastic.client.cluster import Cluster
from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.validated_job import ValidatedJob, check
from spotelastic.client.confirmation import agreed
from spotelastic.client.progress import ignored
from spotelastic.client.targets.asleep import sleeps
from spotelastic.client.targets.aws_target import AwsTarget
from spotelastic.client.targets.cloud_target import CloudTarget
from spotelastic.client.targets.find import following
from spotelastic.cloud.bucket import CHECKPOINTS, MOVING, STATUS, STOPPING
from spotelastic.cloud.model import ALIVE, Instance
from spotelastic.errors import EnvironmentFailure, Unavailable, UsageError
from spotelastic.model.progress import Moving, Status

EAST, WEST = REGION, "us-west-2"
NAME = "quokka"
MOVES: dict[str, Any] = {"regions": f"{EAST},{WEST}", "region_patience": "20m"}


class Region(AwsTarget):
    """One whose clusters need no download."""

    def in_region(self, region: str) -> "Region":
        return Region(Aws(region), region)

    def fitted(self, spec: ClusterSpec) -> ClusterSpec:
        return replace(spec, network=NETWORK)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "train.py").write_text("print(1)")
    with account(tmp_path / "account"):
        yield tmp_path


def job(folder: Path, **given: Any) -> ValidatedJob:
    usual = {"name": NAME, "instance_types": "c5.large", "linger": "forever"}
    return check(JobConfig("train.py", **usual | MOVES | given), folder)


def alive(aws: Aws) -> list[Instance]:
    return [each for each in autoscaling.instances(aws, NAME) if each.state in ALIVE]


def east() -> Region:
    return Region(Aws(EAST), EAST)


def west() -> Region:
    return Region(Aws(WEST), WEST)


def prepared(folder: Path, at: CloudTarget, **given: Any) -> PreparedUp:
    wanted = job(folder, **given)
    return bring_up.prepare(at, wanted, bring_up.look(at, wanted, agreed))


def up(folder: Path, at: CloudTarget | None = None, **given: Any) -> None:
    bring_up.carry_out(prepared(folder, at or east(), **given), agreed, ignored)


@pytest.mark.soak  # each `up` makes two clusters
def test_a_job_has_a_cluster_in_each_of_its_regions_and_is_in_one(folder: Path) -> None:
    it = prepared(folder, east())
    told = "\n".join(shown(it.job, it.found, it.plan(), ""))
    assert f"asleep in {WEST} meanwhile" in told
    assert "about 1.92 USD a month" in told
    bring_up.carry_out(it, agreed, ignored)
    there, here = west().cluster(NAME), east().cluster(NAME)
    assert (sleeps(here), sleeps(there)) == (False, True)
    assert (there.spec.regions, there.spec.code) == (here.spec.regions, here.spec.code)
    assert [each.state for each in west().listing()] == ["asleep"]
    notes: list[str] = []
    assert following(west(), there, notes.append).account("").aws.region == EAST
    assert notes == [f"note: {NAME} is asleep in {WEST}, and is in {EAST} now"]
    chosen, _ = region_choice.choose(job(folder), {WEST: west(), EAST: east()}, print)
    assert chosen.aws.region == EAST
    with pytest.raises(UsageError, match=f"{NAME} is asleep in {WEST}: its job is in {EAST}"):
        up(folder, west(), regions=(), region_patience=None)

    west().delete(NAME, print, keep_data=True, bucket=None)  # by hand, and the next `up` mends it
    (folder / "train.py").write_text("print(2)")
    up(folder)
    changed = west().cluster(NAME)
    assert changed.spec.code == east().cluster(NAME).spec.code != there.spec.code
    assert sleeps(changed)

    the_watch_follows_the_job()
    up(folder, regions=(), region_patience=None)  # a job that stays needs it no longer
    assert west().names() == ()
    assert not sleeps(east().cluster(NAME))


def the_watch_follows_the_job() -> None:
    """What a mover writes is in the bucket: the end of a job that is moved is not the job's."""
    here, there = east().cluster(NAME), west().cluster(NAME)
    told = [Status(NAME, "running", 1.0, step=7), Status(NAME, "stopped", 2.0, step=8)]
    here.objects.put(MOVING, msgspec.json.encode(Moving(region=WEST, reason="too few nodes")))
    here.objects.put(STATUS, msgspec.json.encode(told[0]))
    updates = Cluster(east(), here).updates()
    assert next(updates) == told[0]
    here.objects.put(STATUS, msgspec.json.encode(told[1]))
    put_pointer(here, there)
    there.objects.put(STATUS, msgspec.json.encode(Status(NAME, "succeeded", 3.0, step=9)))
    message, last = updates
    assert str(message) == f"{NAME} moves to {WEST}"
    assert isinstance(last, Status) and (last.state, last.step) == ("succeeded", 9)
    for name in (MOVING, STATUS, f"{CHECKPOINTS}{LATEST}"):
        here.objects.delete(name)


def put_pointer(here: ClusterRecord, there: ClusterRecord) -> None:
    pointer = ForwardPointer(NAME, 2, None, "nonce", to=there.spec.storage, region=WEST)
    here.objects.put(f"{CHECKPOINTS}{LATEST}", msgspec.json.encode(pointer))


@pytest.mark.soak  # each `up` makes two clusters
def test_down_ends_it_in_all_regions_and_says_what_it_could_not_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up(folder)
    told: list[str] = []
    delete = AwsTarget.delete

    def refused(at: AwsTarget, *given: Any, **more: Any) -> None:
        if at.aws.region == WEST:
            raise EnvironmentFailure("the stack could not be deleted")
        delete(at, *given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(AwsTarget, "delete", refused)
        with pytest.raises(EnvironmentFailure, match=f"{NAME} is left in {WEST}, where it costs"):
            east().down(NAME, told.append)
    assert f"{WEST}: the stack could not be deleted" in told
    assert (east().names(), west().names()) == ((), (NAME,))
    assert west().cluster(NAME).objects.has(STOPPING)
    east().down(NAME, told.append)
    assert remains(NAME) == []
    with pytest.raises(UsageError, match=f"there is no cluster named {NAME}"):
        east().down(NAME, told.append)


@pytest.mark.soak  # each `up` makes two clusters
def test_a_first_up_that_is_interrupted_leaves_nothing_in_any_region(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure, told = worker_groups.ensure, list[str]()

    def interrupted(aws: Aws, wanted: Any) -> None:
        if aws.region == WEST:
            raise KeyboardInterrupt
        ensure(aws, wanted)

    monkeypatch.setattr(worker_groups, "ensure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        it = prepared(folder, east())
        bring_up.carry_out(it, agreed, lambda update: told.append(str(update)))
    assert f"creating {NAME} was interrupted" in "\n".join(told)
    assert remains(NAME) == []


def test_a_region_that_cannot_have_the_job_is_told_and_the_job_goes_on(folder: Path) -> None:
    name = f"spotelastic-{NAME}"
    of_others = {"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}}
    west().aws.cloudformation.create_stack(StackName=name, TemplateBody=json.dumps(of_others))
    told: list[str] = []
    it = prepared(folder, east())
    bring_up.carry_out(it, agreed, lambda update: told.append(str(update)))
    (warning,) = [line for line in told if "cannot move" in line]
    assert f"{NAME} cannot move to {WEST} for now" in warning
    assert f"the stack {name} was not made by spotelastic" in warning
    here = east().cluster(NAME)
    assert not sleeps(here)
    teardown.delete_from_within(here.aws, NAME, here.bucket, here.spec.service_role)
    assert east().names() == ()
    stacks = west().aws.cloudformation.describe_stacks(StackName=name)["Stacks"]
    assert [stack["StackName"] for stack in stacks] == [name], "it is not the job's"


@pytest.mark.soak  # each `up` makes two clusters
def test_a_region_that_does_not_answer_at_the_end_is_tried_again_but_not_for_ever(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up(folder)
    here = east().cluster(NAME)
    its = here.aws, NAME, here.bucket, here.spec.service_role
    delete = worker_groups.delete

    def unanswered(aws: Aws, *given: Any, **more: Any) -> None:
        if aws.region == WEST:
            raise Unavailable("no answer")
        delete(aws, *given, **more)

    monkeypatch.setattr(worker_groups, "delete", unanswered)
    with pytest.raises(Unavailable, match="no answer"):
        teardown.delete_from_within(*its)
    assert (east().names(), west().names()) == ((NAME,), (NAME,))
    assert {each.role for each in alive(here.aws)} == {"control"}
    teardown.delete_from_within(*its, leave_others=True)
    assert (east().names(), west().names()) == ((), (NAME,))


@pytest.mark.soak  # each `up` makes two clusters
def test_a_job_that_ends_by_itself_ends_in_all_regions_but_one_that_was_left_ends_alone(
    folder: Path,
) -> None:
    up(folder)
    here, there = east().cluster(NAME), west().cluster(NAME)
    put_pointer(here, there)
    teardown.delete_from_within(here.aws, NAME, here.bucket, here.spec.service_role)
    assert (east().names(), west().names()) == ((), (NAME,))
    up(folder, west())
    assert sleeps(east().cluster(NAME))
    teardown.delete_from_within(there.aws, NAME, there.bucket, there.spec.service_role)
    assert (east().names(), west().names()) == ((), ())
    assert remains(NAME) == []
