"""Every boto3 call of `up` and of `down` goes wrong once, in every way that calls go wrong.

The calls are found by recording, not by a list. After each fault what was begun is begun again:
it succeeds, or one clear error stops it; and `down` leaves nothing, whatever had happened.

Of `up`'s and `down`'s calls each third one meets one of the faults in each turn of `make soak`,
whose turns go round all of them; `make test` tries a quarter of those of `up`.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest
from support.aws.account import (
    DENIED,
    EMPTY,
    EXPIRED,
    FAULTS,
    NETWORK,
    Fault,
    Killed,
    Laptop,
    account,
    forget,
    is_kind,
    truth,
)
from support.aws.cluster_remains import kinds, remains
from support.aws.cluster_requests import changed as changed_request
from support.aws.cluster_requests import job, request
from support.aws.own_network import ZONES, Own
from support.clusters.local_cloud import until
from support.repo.soak import meets

from spotelastic.aws.artifacts.code_archive import Archive
from spotelastic.aws.base.names import SWITCH, Names
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.clusters import teardown
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.compute import autoscaling
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.aws.network import cloudformation, shared_network
from spotelastic.aws.planning.plan import ClusterSpec
from spotelastic.aws.planning.survey import survey
from spotelastic.aws.planning.type_selection import Requirement
from spotelastic.client.bringing_up import preflight
from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.validated_job import ValidatedJob
from spotelastic.client.confirmation import nobody_asked
from spotelastic.client.targets.aws_target import AwsTarget
from spotelastic.cloud.bucket import STATUS
from spotelastic.errors import SpotelasticError, UsageError
from spotelastic.model.job import AccountDemands, Capacity, JobSpec
from spotelastic.model.progress import Status

pytestmark = [pytest.mark.faults, pytest.mark.every_turn]

NAME = "quokka"
"""Nothing else in an account has this in its name."""
TURN = int(os.environ.get("SOAK_TURN", "0"))
PARTS = 4
"""Tests that share the pairs of `up`."""


@dataclass(frozen=True)
class Trial:
    laptop: Laptop
    request: ClusterSpec
    keep_data: bool = True

    def up(self) -> ClusterRecord:
        return clusters.create(self.request, lambda _: None, self.laptop.aws)

    def down(self) -> None:
        keep, bucket = self.keep_data, self.request.bucket
        teardown.delete(NAME, bucket=bucket, keep_data=keep, aws=self.laptop.aws)

    def command_down(self) -> None:
        """As the command: with a look at what there is, and one at what stays."""
        AwsTarget(self.laptop.aws).down(NAME, lambda _: None, keep_data=self.keep_data)

    def nothing_is_left(self, told: str = "") -> None:
        assert remains(NAME) == [], told
        forget()

    def attempt(self, what: Callable[[], object], fault: Fault, at: int, of: str = "") -> str:
        """How it ended: succeeded, killed, or the line that a user reads."""
        with self.laptop.trial(fault, at, of):
            try:
                what()
            except Killed:
                return "killed"
            except SpotelasticError as error:
                return str(error)
            # It may have taken fewer calls than the time before, which made what an account keeps.
            lasted = fault is EXPIRED and len(self.laptop.calls) >= at
        return "succeeded with expired credentials" if lasted else "succeeded"

    def calls(self, what: Callable[[], object]) -> list[str]:
        with self.laptop.trial():
            what()
            return list(self.laptop.calls)


REQUEST = request(NAME, 2, instance_types=("c5.large", "m5.large"))


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    with account(tmp_path):
        yield Trial(Laptop(), REQUEST)


def pairs(calls: list[str]) -> Iterator[tuple[int, Fault]]:
    for at in range(1, len(calls) + 1):
        for number, fault in enumerate(FAULTS):
            if meets(at, number, len(FAULTS), TURN):
                yield at, fault


def test_what_a_cluster_leaves_would_be_found(trial: Trial) -> None:
    """The search itself: after `up` it finds every kind of thing that `up` makes."""
    trial.up()
    assert kinds(NAME) >= {
        "autoscaling.autoscaling_groups",
        "autoscaling.lifecycle_hooks",
        "autoscaling.scheduled_actions",
        "cloudformation.stacks",
        "ec2.enis",
        "ec2.launch_templates",
        "ec2.reservations",
        "ec2.volumes",
        "iam.instance_profiles",
        "iam.roles",
        "sqs.queues",
    }
    trial.down()
    trial.nothing_is_left()


def test_a_cluster_with_many_network_cards_has_a_private_network_that_goes_with_it(
    trial: Trial,
) -> None:
    request = changed_request(REQUEST, instance_types=("p4d.24xlarge",))
    cluster = clusters.create(request, lambda _: None, trial.laptop.aws)
    assert kinds(NAME) >= {"ec2.nat_gateways", "ec2.addresses"}
    assert cluster.spec.nat_gateways == 1, "on the bill"
    ec2 = trial.laptop.aws.ec2
    (version,) = ec2.describe_launch_template_versions(LaunchTemplateName=Names(NAME).workers)[
        "LaunchTemplateVersions"
    ]
    cards = version["LaunchTemplateData"]["NetworkInterfaces"]
    assert [card["NetworkCardIndex"] for card in cards] == [0, 0, 1, 2, 3]
    assert [card["DeviceIndex"] for card in cards] == [0, 1, 0, 0, 0]
    assert [card["InterfaceType"] for card in cards] == ["interface", *["efa-only"] * 4]
    trial.down()
    trial.nothing_is_left()


def test_an_up_that_is_interrupted_leaves_alone_what_another_one_has_made(trial: Trial) -> None:
    """Of two at once, with one name."""
    told = list[str]()

    def say(line: str) -> None:
        told.append(line)
        if line.startswith("bucket "):
            trial.up()
        if line.startswith("workers "):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        clusters.create(REQUEST, say, trial.laptop.aws)
    assert told[-1] == f"another `up` has made {NAME} in the meantime: it is left as it is"
    with truth():
        found = cloudformation.describe(trial.laptop.aws, Names(NAME).stack)
        assert found is not None and cloudformation.stands(found)
        assert autoscaling.group(trial.laptop.aws, Names(NAME).workers) is not None
    trial.down()
    trial.nothing_is_left()


@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=pytest.mark.soak) for part in range(PARTS - 1)] + [PARTS - 1]
)
def test_an_up_that_goes_wrong_anywhere_can_be_run_again_and_taken_down(
    trial: Trial, part: int
) -> None:
    shared_network.ensure(trial.laptop.aws, NETWORK, (), lambda _: None)
    calls = trial.calls(trial.up)
    trial.down()
    assert len(calls) > 30
    for at, fault in list(pairs(calls))[part::PARTS]:
        told = f"{fault.name} at call {at}, {calls[at - 1]}"
        outcome = trial.attempt(trial.up, fault, at)
        clear(outcome, fault, told)
        if outcome not in ("killed", "succeeded") and fault is not EXPIRED:
            trial.nothing_is_left(f"{told}: {outcome}")  # it cleans up after itself
        if at % 2:
            trial.up()
            complete(trial, told)
        trial.down()
        trial.nothing_is_left(told)


def test_the_shared_network_that_goes_wrong_anywhere_is_whole_the_next_time(trial: Trial) -> None:
    aws = trial.laptop.aws

    def make() -> None:
        shared_network.ensure(aws, NETWORK, (), lambda _: None)

    def remove() -> None:
        shared_network.remove(aws, lambda _: None)

    of_making, of_removal = trial.calls(make), trial.calls(remove)
    assert {"cloudformation.CreateStack", "ec2.DescribeVpcs"} <= set(of_making)
    assert "cloudformation.DeleteStack" in of_removal
    for what, calls in ((make, of_making), (remove, of_removal)):
        for at, fault in pairs(calls):
            told = f"{fault.name} at call {at}, {calls[at - 1]}"
            if what is remove:
                make()
            clear(trial.attempt(what, fault, at), fault, told)
            make()
            with truth():
                assert shared_network.look(aws) is not None, told
            remove()
            with truth():
                assert shared_network.look(aws) is None, told
                assert [vpc["IsDefault"] for vpc in aws.ec2.describe_vpcs()["Vpcs"]] == [True], told
            forget()


@pytest.mark.soak
def test_an_up_again_that_goes_wrong_anywhere_keeps_the_nodes_and_can_be_run_again(
    trial: Trial,
) -> None:
    trial.up()
    complete(trial, "at first")
    nodes = living(trial)
    calls = (changed := changing(trial, 1)).calls(changed.up)
    assert {
        "autoscaling.UpdateAutoScalingGroup",
        "cloudformation.UpdateStack",
        "ec2.CreateLaunchTemplateVersion",
        "s3.PutObject",
    } <= set(calls)
    changed = changing(trial, 2)
    repeated = changed.calls(changed.up)
    assert repeated == calls or not is_kind()  # so that a number means one call
    for number, (at, fault) in enumerate(pairs(calls), 3):
        told = f"{fault.name} at call {at}, {calls[at - 1]}"
        changed = changing(trial, number)
        clear(changed.attempt(changed.up, fault, at), fault, told)
        assert living(trial) == nodes, told
        changed.up()
        as_asked(changed, told)
        complete(changed, told)
        assert living(trial) == nodes, told
    trial.down()
    trial.nothing_is_left()


def changing(trial: Trial, number: int) -> Trial:
    """Other code and another tag each time, so another launch template; to and fro in all else."""
    odd = number % 2
    wanted = changed_request(
        trial.request,
        code=f"c0de{number}",
        demands=AccountDemands(tags={"change": str(number)}),
        settings=replace(trial.request.job.settings, max_nodes=2 + odd),
        instance_types=("m5.large", "c5.large") if odd else ("c5.large", "m5.large"),
        read=("datasets/train/",) if odd else (),
    )
    return replace(trial, request=wanted)


@truth()
def living(trial: Trial) -> set[str]:
    found = autoscaling.instances(trial.laptop.aws, NAME)
    return {machine.id for machine in found if machine.state != "terminated"}


@truth()
def as_asked(trial: Trial, told: str) -> None:
    """The group, what it launches, and what its nodes are told."""
    aws, wanted, name = trial.laptop.aws, trial.request.job, Names(NAME).workers
    (group,) = aws.autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])[
        "AutoScalingGroups"
    ]
    template = group["MixedInstancesPolicy"]["LaunchTemplate"]
    types = tuple(each["InstanceType"] for each in template["Overrides"])
    assert (group["MaxSize"], types) == (wanted.settings.max_nodes, wanted.instance_types), told
    (version,) = aws.ec2.describe_launch_template_versions(
        LaunchTemplateName=name, Versions=[template["LaunchTemplateSpecification"]["Version"]]
    )["LaunchTemplateVersions"]
    assert version["LaunchTemplateData"]["InstanceType"] == types[0], told
    cluster = clusters.find(NAME, aws)
    assert cluster is not None, told
    spec = cluster.spec
    assert (spec.code, spec.read, spec.instance_types) == (wanted.code, wanted.read, types), told
    assert cluster.objects.has(f"code/{spec.code}.tar.gz"), told
    policy = cloudformation.parameters(cloudformation.describe(aws, Names(NAME).stack) or {})[
        "ReadObjects"
    ]
    assert ("datasets" in policy) == bool(wanted.read), told


@pytest.mark.soak
def test_a_down_that_goes_wrong_anywhere_can_be_run_again(trial: Trial) -> None:
    trial.up()
    calls = trial.calls(trial.command_down)
    assert len(calls) > 10
    for at, fault in pairs(calls):
        told = f"{fault.name} at call {at}, {calls[at - 1]}"
        trial.up()
        clear(trial.attempt(trial.command_down, fault, at), fault, told)
        if remains(NAME):
            trial.command_down()
        trial.nothing_is_left(told)


@pytest.mark.soak
def test_what_only_other_flags_call_may_go_wrong_as_well(trial: Trial) -> None:
    """A network and a bucket of the user's, a placement group, and the end of the checkpoints."""
    usual = {*trial.calls(trial.up), *trial.calls(trial.down)}
    own = of_ones_own(trial)
    of_up = own.calls(own.up)
    stock(own)
    of_down = own.calls(own.down)
    own.nothing_is_left()
    assert {*of_up, *of_down} - usual >= {
        "ec2.DescribeRouteTables",
        "s3.AbortMultipartUpload",
        "s3.DeleteObjects",
    }
    for at, fault in (each for each in one_each(of_up) if of_up[each[0] - 1] not in usual):
        told = f"{fault.name} at call {at} of up, {of_up[at - 1]}"
        clear(own.attempt(own.up, fault, at), fault, told)
        own.up()
        own.down()
        own.nothing_is_left(told)
    for at, fault in (each for each in one_each(of_down) if of_down[each[0] - 1] not in usual):
        told = f"{fault.name} at call {at} of down, {of_down[at - 1]}"
        own.up()
        stock(own)
        clear(own.attempt(own.down, fault, at), fault, told)
        own.down()
        own.nothing_is_left(told)
        listed = own.laptop.aws.s3.list_objects_v2(Bucket=own.request.bucket)
        assert listed["KeyCount"] == 0, told


def of_ones_own(trial: Trial) -> Trial:
    aws = trial.laptop.aws
    network = Own(aws)
    aws.s3.create_bucket(Bucket="our-team")
    wanted = network.request(NAME, bucket="our-team", placement="cluster", zones=ZONES)
    return replace(trial, request=wanted, keep_data=False)


def stock(trial: Trial) -> None:
    """What a job leaves in the bucket: a checkpoint, and one that was never finished."""
    s3, bucket = trial.laptop.aws.s3, trial.request.bucket
    s3.put_object(Bucket=bucket, Key=f"{NAME}/checkpoints/1/step-1/.metadata", Body=b"weights")
    s3.create_multipart_upload(Bucket=bucket, Key=f"{NAME}/checkpoints/1/step-2/0.distcp")


def one_each(calls: list[str]) -> Iterator[tuple[int, Fault]]:
    """Every call with one of the faults, which is another one in another turn."""
    for at in range(1, len(calls) + 1):
        yield at, FAULTS[(at + TURN) % len(FAULTS)]


def test_a_look_at_the_account_that_goes_wrong_is_one_line(trial: Trial) -> None:
    """What `up` asks before it makes anything: types, quotas, prices, zones, the user's network."""
    own = of_ones_own(trial).request.job
    theirs = job(NAME, 2, vpc=own.vpc, subnets=own.subnets, capacity=Capacity(zones="spread"))
    for wanted, placed in ((job(NAME, 2), False), (theirs, True)):

        def look(wanted: JobSpec = wanted, placed: bool = placed) -> None:
            survey(trial.laptop.aws, wanted, placed=placed)

        calls = trial.calls(look)
        assert len(calls) > 5
        for at, fault in (*pairs(calls), *((n, EMPTY) for n in range(1, len(calls) + 1))):
            outcome = trial.attempt(look, fault, at)
            if not outcome.startswith("succeeded"):  # as without today's prices
                clear(outcome, fault, f"{fault.name} at call {at}, {calls[at - 1]}")
    trial.nothing_is_left()


def test_a_look_at_what_is_there_already_that_goes_wrong_is_one_line(trial: Trial) -> None:
    """What `up` asks of its own name, an earlier run and a gone cluster, first of all."""
    cluster = trial.up()
    BucketObjects(cluster.aws, cluster.bucket, "earlier").put("checkpoints/LATEST", b"{}")
    place = AwsTarget(trial.laptop.aws)
    for name, resume in ((NAME, None), ("another", "earlier"), ("earlier", None)):
        config = JobConfig(bucket=cluster.bucket, resume=resume, yes=True)
        spec = job(name, capacity=Capacity(max_cost=100.0))
        wanted = ValidatedJob(config, spec, Archive("", b"", 0), Requirement(), {})

        def look(wanted: ValidatedJob = wanted) -> None:
            preflight.find(place, wanted, nobody_asked)

        calls = trial.calls(look)
        assert len(calls) > 3
        for at, fault in pairs(calls):
            told = f"{fault.name} at call {at}, {calls[at - 1]}"
            clear(trial.attempt(look, fault, at), fault, told)
    trial.down()
    trial.nothing_is_left()


def test_a_cluster_that_is_half_gone_is_not_brought_back(trial: Trial) -> None:
    trial.up()
    assert "cannot delete the stack" in trial.attempt(
        trial.down, DENIED, 1, of="cloudformation.DeleteStack"
    )
    with pytest.raises(SpotelasticError, match=r"is being taken down: .*`spotelastic down quokka`"):
        trial.up()
    trial.down()
    trial.nothing_is_left()


def clear(outcome: str, fault: Fault, told: str) -> None:
    """A user reads one line, which names what could not be done."""
    assert "\n" not in outcome, told
    if fault is EXPIRED and outcome != "succeeded":  # nor can anything be undone before the login
        assert outcome.endswith("log in again"), f"{told}: {outcome}"
    begins = ("cannot ", "no ", "the ", "these ", "--")
    assert outcome in ("killed", "succeeded") or outcome.startswith(begins), told


@truth()
def complete(trial: Trial, told: str) -> None:
    """All that a cluster needs is there, once, and nobody pays for more than was asked for."""
    aws, its = trial.laptop.aws, Names(NAME)
    # As the leader does, which no `up` after the first one takes the sizes from.
    aws.autoscaling.set_desired_capacity(AutoScalingGroupName=its.workers, DesiredCapacity=2)

    def filled() -> bool:
        found = autoscaling.group(aws, its.workers)
        assert found is not None, told
        return (found.desired, len(found.members)) == (2, 2)

    until(filled)
    living = [m for m in autoscaling.instances(aws, NAME) if m.state != "terminated"]
    roles = sorted(machine.role for machine in living)
    assert roles == ["control"] * 3 + ["worker"] * 2, told
    switches = aws.autoscaling.describe_scheduled_actions()["ScheduledUpdateGroupActions"]
    armed = {s["AutoScalingGroupName"] for s in switches if s["ScheduledActionName"] == SWITCH}
    assert armed == {its.workers, its.on_demand}, told


def test_checkpoints_stay_with_their_price_until_their_deletion_is_asked_for(trial: Trial) -> None:
    cluster = trial.up()
    cluster.objects.put("checkpoints/1/step-1/.metadata", b"0" * 5_000_000)
    cluster.objects.put("environments/e.tar.gz", b"0" * 18_000_000)
    place = AwsTarget(trial.laptop.aws)
    told: list[str] = []
    place.down(NAME, told.append)
    assert told[-1].startswith(f"its checkpoints stay in {cluster.objects.url('checkpoints/')}: ")
    assert "0.01 GB, about $0.00 a month" in told[-1]
    assert f"stay in {cluster.objects.url('')}: 0.02 GB" in told[-1]
    assert cluster.objects.size("checkpoints/") == 5_000_000
    trial.nothing_is_left()
    cluster.objects.put(STATUS, msgspec.json.encode(Status(NAME, "succeeded", 0.0, step=7)))
    status = place.cluster_or_gone(NAME, told.append).objects.status()
    assert status is not None and status.step == 7
    assert told[-1] == f"{NAME} is gone: this is its last report"
    place.down(NAME, told.append, keep_data=False)
    assert cluster.objects.size("") == 0
    with pytest.raises(UsageError, match=f"there is no cluster named {NAME}"):
        place.cluster_or_gone(NAME, told.append)
