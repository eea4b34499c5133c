"""How many nodes of which kind there should be, and who goes."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clusters.observed_cluster import NOW, ON_DEMAND, SPOT, cluster, group, only, wanted

from spotelastic.aws.messaging.launch_failures import read as read_failure
from spotelastic.cloud.events import GroupActivity
from spotelastic.cloud.model import GroupMember, Instance, LaunchQuotas, WorkerGroup
from spotelastic.controller.decisions.capacity import sizes
from spotelastic.controller.decisions.decide import decide, settled
from spotelastic.controller.model.observation import (
    ControllerPolicy,
    Forget,
    LaunchFailures,
    Message,
    Money,
    Observation,
    Remove,
    Replace,
    ResumeLaunches,
    SetDesired,
    Tell,
    account,
)
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import Capacity, Failure, Job, Reservation
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Drain, Notice

FAILED = Failure("f1", "s1", "round", 1, 0, NOW - 9.0, 1, "no memory")
FALLBACK = ControllerPolicy(capacity=Capacity("fallback", spot_patience=600.0))


# -- on demand -----------------------------------------------------------------------------------


def test_without_fallback_a_job_that_is_short_waits_for_spot() -> None:
    seen = replace(cluster(1), short_since=0.0)
    assert wanted(seen, ControllerPolicy()) == {SPOT: 4, ON_DEMAND: 0}


def test_what_is_missing_to_min_is_bought_once_patience_has_run_out() -> None:
    patient = replace(cluster(1), short_since=NOW - 599.0)
    assert wanted(patient, FALLBACK) == {SPOT: 4, ON_DEMAND: 0}
    assert decide(patient, NOW, FALLBACK).wake_at == NOW + 1.0
    over = replace(cluster(1), short_since=NOW - 600.0)
    assert wanted(over, FALLBACK) == {SPOT: 3, ON_DEMAND: 1}
    assert SetDesired(ON_DEMAND, 1, "the job is running") in decide(over, NOW, FALLBACK).actions


def test_what_was_bought_stays_while_it_is_needed_and_is_bought_again_at_once() -> None:
    assert wanted(cluster(1, 1), FALLBACK) == {SPOT: 3, ON_DEMAND: 1}
    assert only(cluster(1, 1), FALLBACK, Remove) == []
    worse = cluster(0, 1)
    assert wanted(worse, FALLBACK) == {SPOT: 2, ON_DEMAND: 2}


def test_one_node_is_given_back_after_each_commit_when_spot_is_back() -> None:
    seen = cluster(2, 2)
    (removed,) = only(seen, FALLBACK, Remove)
    (told,) = only(seen, FALLBACK, Tell)
    assert isinstance(removed, Remove) and isinstance(told, Tell)
    assert removed.instance == told.event.node == "d1"
    assert told.event.data["committed"] == 500
    assert told.after == (removed,)
    assert only(replace(seen, given_back_at=500), FALLBACK, Remove) == []
    assert (
        only(cluster(2, 1), ControllerPolicy(capacity=Capacity("fallback", base=1)), Remove) == []
    )


def test_a_job_of_fixed_size_gives_back_what_was_bought_by_one_spot_node_too_many() -> None:
    """Else spot is never asked for again, and on-demand nodes are paid for until the end."""
    fixed = {"most": 2, "least": 2}
    assert wanted(cluster(1, **fixed), FALLBACK) == {SPOT: 2, ON_DEMAND: 0}
    assert wanted(cluster(0, 2, **fixed), FALLBACK) == {SPOT: 1, ON_DEMAND: 2}
    assert only(cluster(0, 2, **fixed), FALLBACK, Remove) == []
    (removed,) = only(cluster(1, 2, **fixed), FALLBACK, Remove)
    assert isinstance(removed, Remove) and removed.instance == "d1"
    assert wanted(cluster(1, 1, **fixed), FALLBACK) == {SPOT: 2, ON_DEMAND: 1}
    (removed,) = only(cluster(2, 1, **fixed), FALLBACK, Remove)
    assert isinstance(removed, Remove) and removed.instance == "d0"
    assert wanted(cluster(2, **fixed), FALLBACK) == {SPOT: 2, ON_DEMAND: 0}


def test_no_spot_node_too_many_is_launched_where_none_boots_or_the_cluster_goes() -> None:
    held = cluster(0, 2, most=2, least=2)
    assert wanted(replace(held, hopeless=True), FALLBACK) == {SPOT: 0, ON_DEMAND: 2}
    fewer = cluster(0, 2, most=3, least=3)
    assert wanted(replace(fewer, desired=2, hopeless=True), FALLBACK) == {SPOT: 0, ON_DEMAND: 2}
    assert wanted(replace(fewer, desired=0), FALLBACK)[SPOT] == 0


def test_a_base_is_there_at_all_times_and_comes_off_what_spot_is_asked_for() -> None:
    based = ControllerPolicy(capacity=Capacity(base=2))
    assert wanted(cluster(0), based) == {SPOT: 2, ON_DEMAND: 2}
    assert wanted(cluster(4, most=1), ControllerPolicy(capacity=Capacity(base=9))) == {
        SPOT: 0,
        ON_DEMAND: 1,
    }


def test_what_cannot_be_had_on_demand_is_asked_for_of_spot() -> None:
    """A job of fixed size would else wait for good for the one node, with spot back for long."""
    fixed = replace(cluster(3, most=4, least=4), short_since=0.0)
    assert wanted(fixed, FALLBACK) == {SPOT: 3, ON_DEMAND: 1}
    quota = {(ON_DEMAND, ""): LaunchFailures(3, NOW - 1.0, "VcpuLimitExceeded")}
    assert wanted(replace(fixed, failed=quota), FALLBACK) == {SPOT: 4, ON_DEMAND: 0}
    limited = replace(FALLBACK, capacity=replace(FALLBACK.capacity, max_cost=10.0))
    poor = Money(spent=9.0, per_hour=1.0, spot=1.0, on_demand=20.0)
    assert wanted(replace(fixed, money=poor), limited) == {SPOT: 4, ON_DEMAND: 0}
    based = ControllerPolicy(capacity=Capacity(base=2))
    quota = {(ON_DEMAND, ""): LaunchFailures(3, NOW - 1.0, "VcpuLimitExceeded")}
    assert wanted(replace(cluster(0), failed=quota), based) == {SPOT: 2, ON_DEMAND: 0}


def reserved(count: int, **changes: Any) -> ControllerPolicy:
    its = Reservation("cr-1", "t", "z", count)
    return ControllerPolicy(capacity=Capacity(reservations=(its,), **changes))


def test_what_is_reserved_comes_first_and_spot_has_what_others_have_taken_of_it() -> None:
    assert wanted(cluster(0), reserved(3)) == {SPOT: 1, ON_DEMAND: 3}
    assert wanted(cluster(0), reserved(9)) == {SPOT: 0, ON_DEMAND: 4}
    taken = {(ON_DEMAND, ""): LaunchFailures(3, NOW - 1.0, "ReservationCapacityExceeded")}
    assert wanted(replace(cluster(0, 1), failed=taken), reserved(3)) == {SPOT: 3, ON_DEMAND: 1}
    again = replace(taken[ON_DEMAND, ""], at=NOW - 10_000.0)
    seen = replace(cluster(3, 1), failed={(ON_DEMAND, ""): again})
    assert wanted(seen, reserved(3)) == {SPOT: 3, ON_DEMAND: 3}, "who trains stays for a mere try"
    assert only(seen, reserved(3), Remove) == []
    both = cluster(2, 3)
    assert wanted(both, reserved(3)) == {SPOT: 1, ON_DEMAND: 3}
    assert wanted(cluster(0), reserved(2, base=3)) == {SPOT: 1, ON_DEMAND: 3}
    assert wanted(cluster(0), reserved(9, base=1)) == {SPOT: 3, ON_DEMAND: 1}, "not nine bought"


@given(st.integers(0, 6), st.integers(0, 6), st.integers(1, 8), st.booleans(), st.booleans())
def test_reserved_nodes_take_no_place_before_they_are_there_and_nothing_is_bought(
    spot: int, there: int, count: int, refused: bool, arrived: bool
) -> None:
    failed = LaunchFailures(3, NOW - 1.0 if refused else 0.0, "ReservationCapacityExceeded")
    seen = replace(cluster(spot, there), failed={(ON_DEMAND, ""): failed})
    if not arrived:
        nodes = {name: node for name, node in seen.nodes.items() if name[0] == "s"}
        seen = replace(seen, nodes=nodes)
    sized = wanted(seen, reserved(count))
    assert sized[ON_DEMAND] <= count, "what the reservations lack is not bought"
    trains = there if arrived else 0
    assert sized[SPOT] >= min(spot, seen.desired - trains), "a node goes for one that is not there"
    assert sized[SPOT] + sized[ON_DEMAND] >= seen.desired
    if arrived and there >= min(count, seen.desired):
        assert sized[SPOT] + sized[ON_DEMAND] == seen.desired


def test_a_node_is_given_back_after_a_commit_of_a_run_that_was_sent_back() -> None:
    seen = replace(cluster(2, 2), given_back_at=10_000)
    (removed,) = only(seen, FALLBACK, Remove)
    assert isinstance(removed, Remove) and removed.reason == "spot is back"
    assert only(replace(seen, committed=0), FALLBACK, Remove) == []


# -- smaller -------------------------------------------------------------------------------------


def test_who_goes_is_named_and_the_youngest_go_first() -> None:
    seen = replace(cluster(4), desired=2)
    assert only(seen, ControllerPolicy(), SetDesired) == []
    gone = [a.instance for a in only(seen, ControllerPolicy(), Remove) if isinstance(a, Remove)]
    assert gone == ["s3", "s2"]


def test_those_go_that_a_smaller_round_leaves_out() -> None:
    """The youngest may have the lowest ranks: a round would be formed without the highest, and
    another one without the youngest."""
    seen = replace(cluster(4), desired=2, slots={"s0": 2, "s1": 1, "s2": 0})
    gone = [a.instance for a in only(seen, ControllerPolicy(), Remove) if isinstance(a, Remove)]
    assert gone == ["s3", "s0"], "one that does not train, and the highest"


def test_places_that_nobody_has_yet_are_given_up_before_anybody_goes() -> None:
    seen = cluster(2, most=4)
    smaller = replace(seen, desired=3)
    assert only(smaller, ControllerPolicy(), SetDesired, Remove) == [
        SetDesired(SPOT, 3, "the job is running")
    ]


# -- launches that fail --------------------------------------------------------------------------


def test_a_group_whose_launches_fail_asks_for_no_more_than_it_has_for_a_while_that_grows() -> None:
    seen = replace(cluster(2), failed={(SPOT, ""): LaunchFailures(2, NOW, "no capacity")})
    assert wanted(seen, ControllerPolicy())[SPOT] == 4
    for count, pause in ((3, 60.0), (4, 120.0), (5, 240.0), (40, 300.0)):
        failed = LaunchFailures(count, NOW, "no capacity", tries=count)
        failing = replace(seen, failed={(SPOT, ""): failed})
        assert wanted(failing, ControllerPolicy())[SPOT] == 2
        decision = decide(failing, NOW, ControllerPolicy())
        assert decision.wake_at == NOW + pause
        (held,) = [a for a in decision.actions if isinstance(a, SetDesired)]
        assert held == SetDesired(SPOT, 2, f"{count} launches have failed: no capacity")
        assert {s.wanted for s in sizes(failing, NOW + pause, ControllerPolicy())} == {4, 0}


def test_the_while_does_not_grow_with_the_number_of_nodes_that_were_asked_for_at_once() -> None:
    failing = replace(
        cluster(2), failed={(SPOT, ""): LaunchFailures(16, NOW, "no capacity", tries=1)}
    )
    assert decide(failing, NOW, ControllerPolicy()).wake_at == NOW + ControllerPolicy().refused_for


def test_while_launches_are_refused_who_goes_is_not_replaced_and_aws_chooses_nobody() -> None:
    """A place that is to be filled and is taken away the moment after may be one that is."""
    notice = Notice(InterruptionKind.SPOT_INTERRUPTION, "s1", "imds", NOW, NOW, NOW + 120.0)
    seen = replace(cluster(3), drains={"s1": Drain("s1", notice)})
    assert only(seen, ControllerPolicy(), Replace, Remove) == [Replace("s1", "it has a notice")]
    refused = replace(seen, failed={(SPOT, ""): LaunchFailures(3, NOW, "no capacity", tries=3)})
    why = "it has a notice, and 3 launches have failed: no capacity"
    assert only(refused, ControllerPolicy(), Replace, Remove) == [Remove("s1", why)]
    left = replace(refused, group=group(SPOT, ["s0", "s2"], 2), drains={})
    assert only(left, ControllerPolicy(), SetDesired, Remove, Replace) == []
    assert wanted(replace(left, failed={}), ControllerPolicy())[SPOT] == 4


def test_launches_that_aws_has_suspended_are_resumed_where_any_are_wanted() -> None:
    seen = cluster(2)
    assert seen.group is not None
    suspended = replace(seen, group=replace(seen.group, suspended=True))
    (resumes,) = only(suspended, ControllerPolicy(), ResumeLaunches)
    (told,) = only(suspended, ControllerPolicy(), Tell)
    assert isinstance(told, Tell)
    assert (resumes, told.after) == (ResumeLaunches(SPOT), (resumes,))
    refused = {(SPOT, ""): LaunchFailures(3, NOW, "no capacity", tries=3)}
    assert only(replace(suspended, failed=refused), ControllerPolicy(), ResumeLaunches) == [], (
        "not now"
    )
    assert only(replace(suspended, desired=2), ControllerPolicy(), ResumeLaunches) == []


def test_launches_that_a_person_has_suspended_are_waited_for_and_told_of_once() -> None:
    line = "somebody has suspended the launches of the group"
    seen = cluster(2)
    assert seen.group is not None
    held = replace(seen, group=replace(seen.group, launches_held=True, held=(line,)))
    assert wanted(held, ControllerPolicy())[SPOT] == 2, "there are no others to be had"
    assert only(held, ControllerPolicy(), ResumeLaunches) == []
    assert not settled(held, NOW, ControllerPolicy()), "so that it is looked at soon again"
    (told,) = only(held, ControllerPolicy(), Tell)
    assert isinstance(told, Tell) and (told.event.kind, told.event.message) == ("limit", line)
    again = replace(held, told=frozenset({account(told.event)}))
    assert only(again, ControllerPolicy(), Tell) == []
    (over,) = only(replace(seen, told=again.told), ControllerPolicy(), Tell)
    assert isinstance(over, Tell) and "nothing" in over.event.message
    later = replace(held, told=again.told | {account(over.event)})
    assert len(only(later, ControllerPolicy(), Tell)) == 1, "another time is told as well"


@pytest.mark.parametrize(
    ("why", "cause"),
    [
        ("InsufficientInstanceCapacity - no g5.xlarge in eu-central-1a", "capacity"),
        ("MaxSpotInstanceCountExceeded: Max spot instance count exceeded", "quota"),
        ("You have requested more vCPU capacity (VcpuLimitExceeded)", "quota"),
        ("Max spot instance count exceeded. Launching EC2 instance failed.", "quota"),
        ("You have requested more vCPU capacity than your current vCPU limit of 0 allows", "quota"),
        ("There is no Spot capacity available that matches your request.", "capacity"),
        ("Your quota allows for 0 more running instance(s). You requested at least 1", "quota"),
        ("Client.VolumeLimitExceeded: Volume limit exceeded", "limit"),
        ("You have exceeded your maximum gp3 storage limit of 50 TiB in this region", "limit"),
        ("NetworkInterfaceLimitExceeded: You have reached it", "limit"),
        ("RequestLimitExceeded: Request limit exceeded.", "other"),
        (
            "Your requested instance type (p5.48xlarge) is not supported in your requested "
            "Availability Zone (us-east-1e).",
            "zone",
        ),
        ("InsufficientFreeAddressesInSubnet: not enough free addresses in subnet-1", "zone"),
        ("There are not enough free addresses in subnet 'subnet-1'", "zone"),
        ("Your Spot request price of 1 is lower than the minimum required Spot price of 2", "zone"),
        ("The subnet ID 'subnet-1' does not exist (InvalidSubnetID.NotFound)", "zone"),
        ("The subnet ID 'subnet-1' does not exist", "zone"),
        ("The subnet ID 'subnet-1' is invalid", "zone"),
        ("use1-az3 cannot host instances of p5.48xlarge at this time", "zone"),
        ("The Availability Zone us-east-1e is in maintenance", "zone"),
        ("The specified local zone is not opted in", "zone"),
        (
            "You are not authorized to perform this operation. User is not authorized to perform: "
            "ec2:RunInstances on resource: arn:aws:ec2:us-east-1:1:capacity-reservation/cr-1",
            "other",
        ),
        (
            "The requested configuration is currently not supported. Please check the "
            "documentation for supported configurations.",
            "zone",
        ),
        ("Your requested instance type (g6.xlarge) is not offered in eu-south-1b", "zone"),
        ("Instance type p5.48xlarge is no longer available in this zone", "zone"),
        ("The instance type g5.xlarge is unavailable in us-east-1f", "zone"),
        (
            "We currently do not have sufficient p4d.24xlarge capacity in the Availability Zone "
            "you requested (us-east-1a).",
            "capacity",
        ),
        ("The security group 'sg-1' does not exist in VPC 'vpc-1'", "other"),
        ("The image id '[ami-1]' does not exist", "other"),
        ("The key pair 'laptop' does not exist", "other"),
        (
            "You are not authorized to perform this operation. User: ann is not authorized to "
            "perform: ec2:RunInstances on resource: arn:aws:ec2:us-east-1:1:subnet/subnet-1",
            "other",
        ),
        (
            "The architecture 'arm64' of the specified instance type does not match the "
            "architecture 'x86_64' of the specified AMI.",
            "other",
        ),
        ("InsufficientVolumeCapacity: no room for the volume", "capacity"),
        ("InvalidCapacityReservationId.NotFound: it is not there", "other"),
        ("The image is not there", "other"),
    ],
)
def test_a_failed_launch_is_told_with_its_cause(why: str, cause: str) -> None:
    why_not = read_failure(why)
    failed = GroupActivity(
        "e1", NOW, "", SPOT, "launch", False, why, "eu-central-1a", why_not.cause, why_not.limit
    )
    seen = replace(cluster(2), messages=(Message("r", failed, NOW),))
    quotas = LaunchQuotas(
        spot="G and VT spot (L-1)", others={"VolumeLimitExceeded": "of gp3 (L-2)"}
    )
    seen = replace(seen, types=("g5.xlarge", "g5.2xlarge"), quotas=quotas)
    (told,) = only(seen, ControllerPolicy(), Tell)
    assert isinstance(told, Tell)
    assert (told.event.data["cause"], told.event.data["group"]) == (cause, SPOT)
    text = told.event.message
    assert text.startswith("no spot g5.xlarge or g5.2xlarge could be launched in eu-central-1a: ")
    assert text.endswith(why)
    assert ("the quota G and VT spot (L-1) does not allow it" in text) == (cause == "quota")
    if cause == "limit":
        named = "of gp3 (L-2)" if "Network" not in why else "NetworkInterfaceLimitExceeded"
        assert f"the limit {named} does not allow it" in text


# -- nodes that are kept --------------------------------------------------------------------------


def test_the_node_that_failed_the_job_is_kept_and_all_others_go_by_name() -> None:
    policy = ControllerPolicy(capacity=Capacity(keep_failed=True))
    seen = replace(cluster(3), job=Job("failed", NOW - 5.0, "it failed", failure=FAILED))
    gone = only(seen, policy, Remove)
    assert {action.instance for action in gone if isinstance(action, Remove)} == {"s0", "s2"}
    assert only(seen, policy, Replace) == []
    alone = replace(seen, group=WorkerGroup(SPOT, 1, (GroupMember("s1", "InService"),)), nodes={})
    assert only(alone, policy, SetDesired, Remove, Replace) == []
    assert settled(alone, NOW, policy)


def test_without_that_wish_and_for_a_job_that_was_stopped_nobody_is_kept() -> None:
    policy = ControllerPolicy(capacity=Capacity(keep_failed=True))
    failed = replace(cluster(3), job=Job("failed", NOW - 5.0, "it failed", failure=FAILED))
    stopped = replace(cluster(3), job=Job("stopped", NOW - 5.0, "stopped by command"))
    assert wanted(failed, ControllerPolicy())[SPOT] == wanted(stopped, policy)[SPOT] == 0


# -- zombies -------------------------------------------------------------------------------------


def test_a_registration_whose_machine_ec2_calls_gone_is_dropped_before_its_lease_runs_out() -> None:
    seen = cluster(2)
    gone = replace(seen.machines["s1"], state="terminated")
    seen = replace(seen, machines={**seen.machines, "s1": gone})
    assert only(seen, ControllerPolicy(), Forget) == [Forget(seen.nodes["s1"])]


# -- what always holds ---------------------------------------------------------------------------

clusters = st.builds(
    lambda spot, on_demand, most, least, short, committed: replace(
        cluster(spot, on_demand, most=most, least=min(least, most)),
        short_since=short,
        committed=committed,
    ),
    st.integers(0, 6),
    st.integers(0, 4),
    st.integers(1, 6),
    st.integers(1, 4),
    st.none() | st.floats(0.0, NOW),
    st.integers(300, 600),
)
policies = st.builds(
    lambda mode, base: ControllerPolicy(capacity=Capacity(mode, base)),
    st.sampled_from(["never", "fallback"]),
    st.integers(0, 8),
)


@given(clusters, policies)
def test_all_groups_together_are_never_asked_for_more_than_max_and_one_to_take_turns(
    seen: Observation, policy: ControllerPolicy
) -> None:
    both = wanted(seen, policy)
    turns = policy.capacity.on_demand == "fallback" and seen.desired == seen.least
    assert all(size >= 0 for size in both.values())
    assert sum(both.values()) <= seen.desired + turns
    assert both[ON_DEMAND] >= min(policy.capacity.base, seen.desired)


@given(clusters, policies)
def test_nobody_goes_without_being_named_and_nobody_twice(
    seen: Observation, policy: ControllerPolicy
) -> None:
    actions = decide(seen, NOW, policy).actions
    for action in actions:
        if isinstance(action, SetDesired):
            one = next(each for each in seen.groups if each.name == action.group)
            assert action.size >= min(len(one.members), one.desired)
    gone = [a.instance for a in actions if isinstance(a, Remove | Replace)]
    assert len(gone) == len(set(gone))


@given(clusters, policies)
def test_a_give_back_leaves_min_nodes(seen: Observation, policy: ControllerPolicy) -> None:
    told = [a.event.node for a in decide(seen, NOW, policy).actions if isinstance(a, Tell)]
    if told:
        assert len(seen.nodes) - len(told) >= seen.least
        assert len(told) == 1


@given(clusters, policies)
def test_carried_out_again_and_again_every_decision_comes_to_rest(
    seen: Observation, policy: ControllerPolicy
) -> None:
    """As AWS would with capacity for all: each group has what it asks for at the next look."""
    born = 0
    for _ in range(12):
        for action in decide(seen, NOW, policy).actions:
            sizes_of = {each.name: each for each in seen.groups}
            match action:
                case SetDesired(name, size):
                    seen = with_group(seen, replace(sizes_of[name], desired=size))
                case Remove(instance):
                    mine = next(g for g in seen.groups if g.member(instance) is not None)
                    left = tuple(p for p in mine.members if p.instance != instance)
                    seen = with_group(seen, replace(mine, desired=mine.desired - 1, members=left))
                    kept = {name: n for name, n in seen.nodes.items() if name != instance}
                    seen = replace(seen, nodes=kept)
                case Tell(event) if event.kind == "give-back":
                    seen = replace(seen, given_back_at=event.data["committed"])
        for each in seen.groups:
            grown = each
            while len(grown.members) < grown.desired:
                born += 1
                name = f"n{born}"
                grown = replace(grown, members=(*grown.members, GroupMember(name, "InService")))
                seen = with_group(seen, grown)
                node = Node(name, name, "", "z", Fingerprint())
                machine = Instance(name, "worker", "running", "t", "z", "", True, NOW)
                seen = replace(
                    seen,
                    nodes={**seen.nodes, name: node},
                    machines={**seen.machines, name: machine},
                )
        if len(seen.nodes) >= seen.least:
            seen = replace(seen, short_since=None)
        seen = replace(seen, committed=seen.committed + 100)
    assert settled(seen, NOW, policy)
    assert len(seen.nodes) == seen.desired


def with_group(seen: Observation, changed: WorkerGroup) -> Observation:
    if changed.name == SPOT:
        return replace(seen, group=changed)
    return replace(seen, on_demand=changed)
