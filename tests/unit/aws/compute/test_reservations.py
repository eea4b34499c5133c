"""Reservations of capacity: workers are launched in them first, at their price, and in no other."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.aws.account import REGION, account
from support.aws.cluster_requests import job, request
from support.aws.fake_services import Pages, fake_aws, refusal
from support.strict.reservations import BLOCK, INTERRUPTIBLE, Reserved

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.names import Names
from spotelastic.aws.clusters import lifecycle
from spotelastic.aws.compute import autoscaling
from spotelastic.aws.compute.reservations import named, offered, resolved, within
from spotelastic.aws.messaging import launch_failures
from spotelastic.aws.planning.survey import survey
from spotelastic.aws.provider.group_capacity import AwsCapacity
from spotelastic.cloud.model import ALIVE
from spotelastic.errors import UsageError
from spotelastic.model.job import Capacity, JobSpec, Regions, Reservation, Settings

NAME, TYPE, ZONE = "quokka", "c5.large", "us-east-1b"
ITS = Names(NAME)


def shown(id: str, **changes: Any) -> dict[str, Any]:
    return {
        "CapacityReservationId": id,
        "OwnerId": "123456789012",
        "InstanceType": TYPE,
        "AvailabilityZone": ZONE,
        "AvailableInstanceCount": 2,
        "InstanceMatchCriteria": "targeted",
        **changes,
    }


def telling(*items: dict[str, Any], refused: str = "") -> Aws:
    """An account with these reservations, and one instance of the job in cr-mine."""

    def pages(Filters: Sequence[dict[str, Any]], **_: Any) -> list[dict[str, Any]]:
        if refused:
            raise refusal(refused)
        wanted = {each["Name"]: each["Values"] for each in Filters}
        if "instance-type" not in wanted:
            instance = {
                "InstanceId": "i-1",
                "InstanceType": TYPE,
                "State": {"Name": "running"},
                "LaunchTime": LAUNCHED,
                "CapacityReservationId": "cr-mine",
            }
            return [{"Reservations": [{"Instances": [instance]}]}]
        assert wanted["state"] == ["active"] and wanted["instance-platform"] == ["Linux/UNIX"]
        found = [each for each in items if each["InstanceType"] in wanted["instance-type"]]
        return [{"CapacityReservations": found}]

    class Ec2:
        def get_paginator(self, _: str) -> Pages:
            return Pages(pages)

    return fake_aws(REGION, ec2=Ec2())


class LAUNCHED:
    @staticmethod
    def timestamp() -> float:
        return 1.0


def asking(*ids: str, **changes: Any) -> JobSpec:
    bought = Capacity(reservations=named(ids), **changes)
    return job(NAME, 8, instance_types=(TYPE, "c5.xlarge"), capacity=bought)


def found(aws: Aws, *ids: str, **changes: Any) -> tuple[Reservation, ...]:
    return resolved(aws, asking(*ids, **changes)).capacity.reservations


def test_each_kind_is_taken_for_what_it_is() -> None:
    aws = telling(
        shown("cr-mine", InstanceMatchCriteria="open"),
        shown("cr-block", ReservationType=BLOCK, OwnerId="999999999999"),
        shown("cr-lent", Interruptible=True, OwnerId="999999999999"),
        shown("cr-placed", PlacementGroupArn="arn:of-somebody"),
    )
    (mine,), (block,), (lent,) = (found(aws, each) for each in ("cr-mine", "cr-block", "cr-lent"))
    assert (mine.market, mine.count, mine.open, mine.paid) == ("", 3, True, True), "its own is free"
    assert (block.market, block.count, block.paid) == (BLOCK, 2, True), "blocks are paid before"
    assert (lent.market, lent.paid, lent.owner) == (INTERRUPTIBLE, False, "999999999999")
    with pytest.raises(UsageError, match="no active reservation cr-placed"):
        found(aws, "cr-placed")


def test_open_takes_only_what_takes_anybody_and_most_of_one_zone() -> None:
    aws = telling(
        shown("cr-kept", AvailableInstanceCount=99),
        shown("cr-1", InstanceMatchCriteria="open", AvailableInstanceCount=2),
        shown("cr-2", InstanceMatchCriteria="open", AvailableInstanceCount=1),
        shown("cr-3", InstanceMatchCriteria="open", AvailabilityZone="us-east-1a"),
        shown("cr-b", InstanceMatchCriteria="open", ReservationType=BLOCK),
    )
    assert [each.id for each in found(aws, "open")] == ["cr-1", "cr-2"]
    assert {each.id for each in found(aws, "open", zones="spread")} == {"cr-1", "cr-2", "cr-3"}
    assert found(telling(), "open") == ()
    assert resolved(telling(refused="AccessDenied"), job(NAME)).capacity == Capacity(), "not asked"


REFUSED: list[tuple[Callable[[Aws], object], str]] = [
    (
        lambda aws: found(aws, "cr-none"),
        "the account has no active reservation cr-none of c5.large,",
    ),
    (lambda aws: found(aws, "cr-a", "cr-b"), "they are in several zones: name those of one"),
    (lambda aws: found(aws, "cr-a", "cr-block"), "they differ in type or kind"),
    (lambda aws: found(aws, "cr-a", "cr-large"), "they differ in type or kind"),
    (lambda aws: found(aws, "cr-block", base=1), "its instances are of one kind: remove --on-dem"),
    (lambda aws: found(aws, "cr-a", on_demand="fallback"), "would be bought at once"),
    (lambda aws: resolved(aws, replace(asking("cr-a"), instance_types=())), "name their type as"),
    (
        lambda aws: resolved(aws, replace(asking("cr-a"), regions=Regions((REGION, "us-west-2")))),
        "they are of one region",
    ),
    (lambda aws: named(["cr-a", "open"]), "give ids, or open"),
    (lambda aws: named(["r-1"]), "--reservations r-1: expected ids"),
    (
        lambda aws: within(Capacity(reservations=found(aws, "cr-b")), (ZONE,)),
        "cr-b is in us-east-1c, where the cluster has no workers",
    ),
]


@pytest.mark.parametrize(("call", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_what_one_group_cannot_have_is_refused(call: Callable[[Aws], object], why: str) -> None:
    aws = telling(
        shown("cr-a"),
        shown("cr-b", AvailabilityZone="us-east-1c"),
        shown("cr-block", ReservationType=BLOCK),
        shown("cr-large", InstanceType="c5.xlarge"),
    )
    with pytest.raises(UsageError, match=why):
        call(aws)


def test_what_a_job_leaves_unused_is_told_where_it_may_be_looked_at() -> None:
    told = offered(telling(shown("cr-a"), shown("cr-b", AvailableInstanceCount=0)), asking(), ())
    assert told == (
        "the account has 2 reserved c5.large in us-east-1b free, paid anyway: --reservations cr-a",
    )
    assert offered(telling(refused="AccessDenied"), asking(), ()) == ()
    assert offered(telling(shown("cr-a")), asking("cr-a"), ()) == ()
    (told_so,) = offered(telling(shown("cr-a")), asking(), named(["open"]))
    assert told_so == "--reservations open: the account has none that fits and is open"


# -- in an account ---------------------------------------------------------------------------------


@pytest.mark.parametrize("market", ["", BLOCK, INTERRUPTIBLE])
def test_workers_run_in_the_reservation_and_in_nothing_else(tmp_path: Path, market: str) -> None:
    its = Reserved("cr-1", TYPE, ZONE, 3, market, used=1)
    with account(tmp_path, reserved=[its]):
        aws = Aws(REGION)
        wanted = job(NAME, settings=Settings(2, 4, workers=1), capacity=asking("cr-1").capacity)
        plan = survey(aws, wanted)
        assert plan.zones == (ZONE,) and plan.ranking[0].name == ZONE
        (reserved,) = [each for each in plan.estimate.lines if each.note == "reserved, paid anyway"]
        assert (reserved.low, reserved.high, reserved.usd) == (2, 2, 0.0)
        capacity = replace(wanted.capacity, reservations=plan.reservations)
        asked = request(NAME, settings=wanted.settings, capacity=capacity)
        lifecycle.create(asked, print, aws)
        there = in_reservations(aws)
        assert sorted(there.values()) == ["", "", "cr-1", "cr-1"], "two of each at once"
        spot = autoscaling.group(aws, ITS.workers)
        group = autoscaling.group(aws, ITS.on_demand)
        assert spot and group and group.subnets == spot.subnets == spot.offered, "in its zone alone"
        AwsCapacity(aws, NAME, "").set_desired(ITS.on_demand, 3)
        assert len(in_reservations(aws)) == 4, "what it lacks is not bought"
        failed = aws.autoscaling.describe_scaling_activities(AutoScalingGroupName=ITS.on_demand)
        why = [each["StatusMessage"] for each in failed["Activities"] if "StatusMessage" in each]
        assert launch_failures.read(why[0]).cause == "capacity"
        again = survey(aws, wanted, known=wanted)
        assert [each.count for each in again.reservations] == [2], "what it has itself is counted"
        lifecycle.create(request(NAME, settings=wanted.settings), print, aws)
        found = aws.autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[ITS.on_demand])
        (plain,) = found["AutoScalingGroups"]
        assert "MixedInstancesPolicy" in plain
        left = plain.get("CapacityReservationSpecification", {})
        assert left["CapacityReservationPreference"] == "default"


def test_with_nodes_on_demand_what_the_reservation_lacks_is_bought(tmp_path: Path) -> None:
    with account(tmp_path, reserved=[Reserved("cr-1", TYPE, ZONE, 1)]):
        aws = Aws(REGION)
        bought = resolved(aws, asking("cr-1", base=2)).capacity
        assert (bought.reserved, bought.steady) == (1, 2)
        lifecycle.create(request(NAME, 2, capacity=bought), print, aws)
        AwsCapacity(aws, NAME, "").set_desired(ITS.on_demand, 2)
        assert sorted(in_reservations(aws).values()) == ["", "cr-1"]


def in_reservations(aws: Aws) -> dict[str, str]:
    workers = autoscaling.instances(aws, NAME, "worker")
    return {each.id: each.reservation for each in workers if each.state in ALIVE}
