"""How many nodes of which kind there should be, who goes, and what ends a job."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotelastic.aws.autoscaling import Group, Machine, Place
from spotelastic.aws.events import GroupActivity
from spotelastic.aws.packing import Zone
from spotelastic.controller.capacity import sizes
from spotelastic.controller.decide import decide, settled
from spotelastic.controller.seen import (
    Action,
    AskToEnd,
    EndJob,
    Failed,
    Forget,
    Left,
    Message,
    Money,
    Policy,
    Remove,
    Replace,
    Resume,
    Seen,
    SetDesired,
    Tell,
    account,
)
from spotelastic.model.job import Capacity, Ending, Failure, Job
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Drain, Notice

NOW = 10_000.0
SPOT, ON_DEMAND = "spot", "on-demand"
FALLBACK = Policy(capacity=Capacity("fallback", spot_patience=600.0))


def cluster(spot: int, on_demand: int = 0, *, most: int = 4, least: int = 2) -> Seen:
    """All nodes are registered; the groups ask for what they have, the rest is for spot."""
    names = {SPOT: [f"s{n}" for n in range(spot)], ON_DEMAND: [f"d{n}" for n in range(on_demand)]}
    everyone = [*names[SPOT], *names[ON_DEMAND]]
    short = len(everyone) < least
    return Seen(
        desired=most,
        least=least,
        since=0.0,
        job=Job("running", 100.0),
        group=group(SPOT, names[SPOT], most - on_demand),
        on_demand=group(ON_DEMAND, names[ON_DEMAND], on_demand),
        machines={
            name: Machine(name, "worker", "running", "t", "z", "", name[0] == "s", 100.0 + index)
            for index, name in enumerate(everyone)
        },
        nodes={name: Node(name, f"{name}-1", "", "z", Fingerprint()) for name in everyone},
        short_since=NOW - 10.0 if short else None,
        committed=500,
        given_back_at=400,
    )


def group(name: str, instances: list[str], desired: int) -> Group:
    return Group(name, desired, tuple(Place(each, "InService") for each in instances))


def wanted(seen: Seen, policy: Policy) -> dict[str, int]:
    return {size.group.name: size.wanted for size in sizes(seen, NOW, policy)}


def only(seen: Seen, policy: Policy, *kinds: type[Action]) -> list[Action]:
    return [action for action in decide(seen, NOW, policy).actions if isinstance(action, kinds)]


# -- on demand -----------------------------------------------------------------------------------


def test_without_fallback_a_job_that_is_short_waits_for_spot() -> None:
    seen = replace(cluster(1), short_since=0.0)
    assert wanted(seen, Policy()) == {SPOT: 4, ON_DEMAND: 0}


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
    assert only(cluster(2, 1), Policy(capacity=Capacity("fallback", base=1)), Remove) == []


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
    based = Policy(capacity=Capacity(base=2))
    assert wanted(cluster(0), based) == {SPOT: 2, ON_DEMAND: 2}
    assert wanted(cluster(4, most=1), Policy(capacity=Capacity(base=9))) == {SPOT: 0, ON_DEMAND: 1}


# -- smaller -------------------------------------------------------------------------------------


def test_who_goes_is_named_and_the_youngest_go_first() -> None:
    seen = replace(cluster(4), desired=2)
    assert only(seen, Policy(), SetDesired) == []
    gone = [a.instance for a in only(seen, Policy(), Remove) if isinstance(a, Remove)]
    assert gone == ["s3", "s2"]


def test_those_go_that_a_smaller_round_leaves_out() -> None:
    """The youngest may have the lowest ranks: a round would be formed without the highest, and
    another one without the youngest."""
    seen = replace(cluster(4), desired=2, slots={"s0": 2, "s1": 1, "s2": 0})
    gone = [a.instance for a in only(seen, Policy(), Remove) if isinstance(a, Remove)]
    assert gone == ["s3", "s0"], "one that does not train, and the highest"


def test_places_that_nobody_has_yet_are_given_up_before_anybody_goes() -> None:
    seen = cluster(2, most=4)
    smaller = replace(seen, desired=3)
    assert only(smaller, Policy(), SetDesired, Remove) == [
        SetDesired(SPOT, 3, "the job is running")
    ]


# -- launches that fail --------------------------------------------------------------------------


def test_a_group_whose_launches_fail_asks_for_no_more_than_it_has_for_a_while_that_grows() -> None:
    seen = replace(cluster(2), failed={(SPOT, ""): Failed(2, NOW, "no capacity")})
    assert wanted(seen, Policy())[SPOT] == 4
    for count, pause in ((3, 60.0), (4, 120.0), (5, 240.0), (40, 300.0)):
        failed = Failed(count, NOW, "no capacity", tries=count)
        failing = replace(seen, failed={(SPOT, ""): failed})
        assert wanted(failing, Policy())[SPOT] == 2
        decision = decide(failing, NOW, Policy())
        assert decision.wake_at == NOW + pause
        (held,) = [a for a in decision.actions if isinstance(a, SetDesired)]
        assert held == SetDesired(SPOT, 2, f"{count} launches have failed: no capacity")
        assert {s.wanted for s in sizes(failing, NOW + pause, Policy())} == {4, 0}


def test_the_while_does_not_grow_with_the_number_of_nodes_that_were_asked_for_at_once() -> None:
    failing = replace(cluster(2), failed={(SPOT, ""): Failed(16, NOW, "no capacity", tries=1)})
    assert decide(failing, NOW, Policy()).wake_at == NOW + Policy().refused_for


def test_while_launches_are_refused_who_goes_is_not_replaced_and_aws_chooses_nobody() -> None:
    """A place that is to be filled and is taken away the moment after may be one that is."""
    notice = Notice("notice", "s1", "imds", NOW, NOW, NOW + 120.0)
    seen = replace(cluster(3), drains={"s1": Drain("s1", notice)})
    assert only(seen, Policy(), Replace, Remove) == [Replace("s1", "it has a notice")]
    refused = replace(seen, failed={(SPOT, ""): Failed(3, NOW, "no capacity", tries=3)})
    why = "it has a notice, and 3 launches have failed: no capacity"
    assert only(refused, Policy(), Replace, Remove) == [Remove("s1", why)]
    left = replace(refused, group=group(SPOT, ["s0", "s2"], 2), drains={})
    assert only(left, Policy(), SetDesired, Remove, Replace) == []
    assert wanted(replace(left, failed={}), Policy())[SPOT] == 4


def test_launches_that_aws_has_suspended_are_resumed_where_any_are_wanted() -> None:
    seen = cluster(2)
    assert seen.group is not None
    suspended = replace(seen, group=replace(seen.group, suspended=True))
    (resumes,) = only(suspended, Policy(), Resume)
    (told,) = only(suspended, Policy(), Tell)
    assert isinstance(told, Tell)
    assert (resumes, told.after) == (Resume(SPOT), (resumes,))
    refused = {(SPOT, ""): Failed(3, NOW, "no capacity", tries=3)}
    assert only(replace(suspended, failed=refused), Policy(), Resume) == [], "not now"
    assert only(replace(suspended, desired=2), Policy(), Resume) == []


@pytest.mark.parametrize(
    ("why", "cause"),
    [
        ("InsufficientInstanceCapacity - no g5.xlarge in eu-central-1a", "capacity"),
        ("MaxSpotInstanceCountExceeded: Max spot instance count exceeded", "quota"),
        ("You have requested more vCPU capacity (VcpuLimitExceeded)", "quota"),
        ("Max spot instance count exceeded. Launching EC2 instance failed.", "quota"),
        ("You have requested more vCPU capacity than your current vCPU limit of 0 allows", "quota"),
        ("There is no Spot capacity available that matches your request.", "capacity"),
        ("The image is not there", "other"),
    ],
)
def test_a_failed_launch_is_told_with_its_cause(why: str, cause: str) -> None:
    failed = GroupActivity("e1", NOW, "", SPOT, "launch", False, why, "eu-central-1a")
    seen = replace(cluster(2), messages=(Message("r", failed, NOW),))
    seen = replace(seen, types=("g5.xlarge", "g5.2xlarge"), region="eu-central-1")
    (told,) = only(seen, Policy(), Tell)
    assert isinstance(told, Tell)
    assert (told.event.data["cause"], told.event.data["group"]) == (cause, SPOT)
    text = told.event.message
    assert text.startswith("no spot g5.xlarge or g5.2xlarge could be launched in eu-central-1a: ")
    assert text.endswith(why)
    assert ("the quota G and VT spot (L-3819A6DF; more at https://eu-central" in text) == (
        cause == "quota"
    )


# -- limits --------------------------------------------------------------------------------------


def test_above_the_highest_price_no_spot_node_is_launched_and_none_is_ended() -> None:
    seen = replace(cluster(2), money=Money(spot=0.7))
    assert wanted(seen, Policy(capacity=Capacity(max_price=0.7)))[SPOT] == 4
    dear = Policy(capacity=Capacity(max_price=0.6))
    assert only(seen, dear, SetDesired, Remove, Replace) == [
        SetDesired(SPOT, 2, "a spot node costs $0.7 an hour (--max-price 0.6)")
    ]


def test_above_the_highest_price_who_goes_is_not_replaced_until_the_price_allows_it() -> None:
    dear = Policy(capacity=Capacity(max_price=0.6))
    notice = Notice("notice", "s1", "imds", NOW, NOW, NOW + 120.0)
    seen = replace(cluster(4), drains={"s1": Drain("s1", notice)}, money=Money(spot=0.7))
    why = "it has a notice, and a spot node costs $0.7 an hour (--max-price 0.6)"
    ends = only(seen, dear, SetDesired, Remove, Replace)
    assert ends == [Remove("s1", why)]
    silent = replace(seen, drains={}, left={"s2": Left("s2-1", NOW - 600.0)})
    silent = replace(silent, nodes={n: each for n, each in seen.nodes.items() if n != "s2"})
    (end,) = only(silent, dear, SetDesired, Remove, Replace)
    assert isinstance(end, Remove) and end.instance == "s2"
    left = replace(seen, group=group(SPOT, ["s0", "s2", "s3"], 3), drains={})
    assert only(left, dear, SetDesired, Remove, Replace) == []
    cheap = replace(left, money=Money(spot=0.5))
    assert only(cheap, dear, SetDesired) == [SetDesired(SPOT, 4, "the job is running")]
    cheap = replace(seen, money=Money(spot=0.5))
    assert only(cheap, dear, SetDesired, Remove, Replace) == [Replace("s1", "it has a notice")]


def test_above_the_highest_price_of_spot_an_on_demand_node_is_replaced_all_the_same() -> None:
    dear = Policy(capacity=Capacity(base=1, max_price=0.6))
    notice = Notice("scheduled", "d0", "imds", NOW, NOW, NOW + 120.0)
    seen = replace(cluster(3, 1), drains={"d0": Drain("d0", notice)}, money=Money(spot=0.7))
    assert only(seen, dear, Remove, Replace) == [Replace("d0", "it has a scheduled")]


def test_a_price_that_holds_nodes_out_is_told_once_whatever_it_is_meanwhile_and_so_is_its_end() -> (
    None
):
    seen = replace(cluster(0), types=("g5.xlarge",), zones=(Zone("z", ("s",)),), region="r")
    seen = replace(seen, group=replace(group(SPOT, [], 0), subnets=("s",)))
    heard = list[str]()
    for price, limit in (
        (0.5, 0.6), (0.7, 0.6), (0.8, 0.6), (0.9, 0.5), (0.4, 0.5), (0.4, 0.5),
        (0.0, 0.5), (0.51, 0.5), (0.6, 0.5), (0.0, 0.5), (0.0, None), (0.0, None),
    ):  # fmt: skip
        priced = replace(seen, money=Money(spot=price))
        told = [
            action.event
            for action in only(priced, Policy(capacity=Capacity(max_price=limit)), Tell)
            if isinstance(action, Tell)
        ]
        assert all(event.data["price"] == price for event in told)
        heard += [f"{price:g} {event.kind}: {event.message}" for event in told]
        seen = replace(seen, told=seen.told | {account(event) for event in told})
    costs = "g5.xlarge in z costs $"
    assert heard == [
        f"0.7 limit: no spot node is launched: {costs}0.7 an hour (--max-price 0.6)",
        f"0.4 limit: spot nodes may be launched again: {costs}0.4 an hour (--max-price 0.5)",
        f"0.51 limit: no spot node is launched: {costs}0.51 an hour (--max-price 0.5)",
        "0 limit: spot nodes may be launched again: there is no --max-price any more",
    ]


def test_a_price_is_told_where_nodes_are_missing_for_it_in_each_life_of_the_job() -> None:
    dear = Policy(capacity=Capacity(max_price=0.6))
    enough = replace(cluster(4), types=("a", "b"), money=Money(spot=0.7))
    assert only(enough, dear, Tell) == []
    assert only(replace(cluster(2), ending=Ending("stopped", NOW, "")), dear, Tell) == []
    less = replace(enough, group=group(SPOT, ["s0", "s2", "s3"], 3))
    (told,) = only(less, dear, Tell)
    assert isinstance(told, Tell)
    assert "the cheapest a or b in z costs $0.7 an hour" in told.event.message
    known = replace(less, told=frozenset({account(told.event)}))
    assert only(known, dear, Tell) == []
    restarted = replace(known, job=Job("pending", NOW))
    assert len(only(restarted, dear, Tell)) == 1


def test_a_job_ends_before_it_has_cost_more_than_it_may_and_says_what_it_did() -> None:
    policy = Policy(capacity=Capacity(max_cost=10.0), ends_within=180.0)
    going = replace(cluster(4), money=Money(spent=9.5, per_hour=8.0))
    assert only(going, policy, AskToEnd) == []
    assert decide(going, NOW, policy).wake_at == pytest.approx(NOW + 45.0, abs=0.1)
    over = replace(going, money=Money(spent=9.6, per_hour=8.0))
    (asked,) = only(over, policy, AskToEnd)
    (told,) = only(over, policy, Tell)
    assert isinstance(asked, AskToEnd) and isinstance(told, Tell)
    assert asked.ending.state == "stopped"
    assert "$9.60 at $8.00 an hour (--max-cost 10)" in told.event.message
    assert "step 500" in told.event.message
    assert only(over, policy, SetDesired, Remove, Replace) == [], "they save first"


def test_no_node_is_launched_that_would_hardly_train_before_the_money_ends() -> None:
    """Both groups pay from one purse, and those on demand first. Nobody goes for it."""
    policy = Policy(capacity=Capacity(max_cost=10.0), boots_in=1800.0, ends_within=1800.0)
    missing = replace(cluster(2), group=group(SPOT, ["s0", "s1"], 2))

    def at(spent: float, capacity: Capacity = policy.capacity, spot: float = 2.0) -> dict[str, int]:
        money = Money(spent, per_hour=4.0, spot=spot, on_demand=3.0)
        return wanted(replace(missing, money=money), replace(policy, capacity=capacity))

    bases = replace(policy.capacity, base=1)
    assert [at(spent)[SPOT] for spent in (1.0, 2.0, 3.0, 4.1, 5.9, 6.0)] == [4, 4, 3, 2, 2, 2]
    assert at(5.9, spot=0.0) == {SPOT: 4, ON_DEMAND: 0}, "a price that is not known"
    assert at(3.0, bases) == {SPOT: 2, ON_DEMAND: 1}
    assert at(3.1, bases) == {SPOT: 3, ON_DEMAND: 0}


def test_a_purse_that_a_base_has_emptied_may_be_a_little_below_nothing() -> None:
    """As floats are: three of these prices are more than the limit, which is three times one."""
    usd, limit = 0.6190967313738801, 1.8572901941216402
    capacity = Capacity(max_cost=limit, base=3)
    policy = Policy(capacity=capacity, boots_in=1800.0, ends_within=1800.0)
    seen = replace(cluster(0), money=Money(on_demand=usd))
    assert wanted(seen, policy) == {SPOT: 1, ON_DEMAND: 3}


def test_who_goes_when_the_money_ends_is_not_replaced_and_that_is_told_once() -> None:
    policy = Policy(capacity=Capacity(max_cost=10.0), boots_in=1800.0, ends_within=1800.0)
    notice = Notice("notice", "s1", "imds", NOW, NOW, NOW + 120.0)
    seen = replace(
        cluster(4), drains={"s1": Drain("s1", notice)}, money=Money(2.0, per_hour=4.0, spot=2.0)
    )
    assert [type(end) for end in only(seen, policy, Replace, Remove)] == [Replace]
    short = replace(seen, money=Money(5.0, per_hour=4.0, spot=2.0))
    (removed,) = only(short, policy, Replace, Remove)
    assert isinstance(removed, Remove)
    assert removed.reason.endswith("another node would hardly train before --max-cost 10")
    (told,) = only(replace(short, group=group(SPOT, ["s0", "s2", "s3"], 3)), policy, Tell)
    assert isinstance(told, Tell)
    assert told.event.message == (
        "no further node is launched: the job has cost $5.00 at $4.00 an hour, and another node "
        "would hardly train before --max-cost 10"
    )
    known = replace(short, group=group(SPOT, ["s0"], 1), told=frozenset({account(told.event)}))
    assert only(known, policy, Tell) == []


def test_at_its_deadline_a_job_is_timed_out_once() -> None:
    policy = Policy(capacity=Capacity(deadline=NOW))
    seen = cluster(4)
    assert decide(seen, NOW - 5.0, policy).wake_at == NOW
    (asked,) = only(seen, policy, AskToEnd)
    assert isinstance(asked, AskToEnd)
    assert asked.ending.state == "timed out"
    assert only(replace(seen, ending=asked.ending), policy, AskToEnd, EndJob, Tell) == []
    (told,) = only(seen, policy, Tell)
    assert isinstance(told, Tell)
    assert only(replace(seen, told=frozenset({account(told.event)})), policy, Tell) == []


def test_a_job_that_does_not_come_to_its_end_is_ended_when_its_time_is_up() -> None:
    policy = Policy(ends_within=180.0)
    seen = replace(cluster(4), ending=Ending("stopped", NOW, "stopped by command"))
    assert only(seen, policy, EndJob) == []
    assert decide(seen, NOW, policy).wake_at == NOW + 180.0
    late = decide(seen, NOW + 180.0, policy).actions
    (ended,) = [action for action in late if isinstance(action, EndJob)]
    assert (ended.job.state, ended.job.final_step) == ("stopped", 500)
    assert ended.job.reason == "stopped by command; the newest commit is of step 500"


def test_a_job_that_nobody_has_joined_yet_ends_at_once() -> None:
    seen = replace(cluster(4), nodes={}, ending=Ending("stopped", NOW, "stopped by command"))
    (ended,) = only(seen, Policy(), EndJob)
    assert isinstance(ended, EndJob) and ended.job.state == "stopped"


def test_nobody_is_launched_for_a_job_that_is_being_ended() -> None:
    seen = replace(cluster(2), ending=Ending("stopped", NOW, "stopped by command"))
    assert wanted(seen, Policy())[SPOT] == 2


FAILED = Failure("f1", "s1", "round", 1, 0, NOW - 9.0, 1, "no memory")


def test_the_node_that_failed_the_job_is_kept_and_all_others_go_by_name() -> None:
    policy = Policy(capacity=Capacity(keep_failed=True))
    seen = replace(cluster(3), job=Job("failed", NOW - 5.0, "it failed", failure=FAILED))
    gone = only(seen, policy, Remove)
    assert {action.instance for action in gone if isinstance(action, Remove)} == {"s0", "s2"}
    assert only(seen, policy, Replace) == []
    alone = replace(seen, group=Group(SPOT, 1, (Place("s1", "InService"),)), nodes={})
    assert only(alone, policy, SetDesired, Remove, Replace) == []
    assert settled(alone, NOW, policy)


def test_without_that_wish_and_for_a_job_that_was_stopped_nobody_is_kept() -> None:
    policy = Policy(capacity=Capacity(keep_failed=True))
    failed = replace(cluster(3), job=Job("failed", NOW - 5.0, "it failed", failure=FAILED))
    stopped = replace(cluster(3), job=Job("stopped", NOW - 5.0, "stopped by command"))
    assert wanted(failed, Policy())[SPOT] == wanted(stopped, policy)[SPOT] == 0


# -- zombies -------------------------------------------------------------------------------------


def test_a_registration_whose_machine_ec2_calls_gone_is_dropped_before_its_lease_runs_out() -> None:
    seen = cluster(2)
    gone = replace(seen.machines["s1"], state="terminated")
    seen = replace(seen, machines={**seen.machines, "s1": gone})
    assert only(seen, Policy(), Forget) == [Forget(seen.nodes["s1"])]


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
    lambda mode, base: Policy(capacity=Capacity(mode, base)),  # type: ignore[arg-type]
    st.sampled_from(["never", "fallback"]),
    st.integers(0, 8),
)


@given(clusters, policies)
def test_all_groups_together_are_never_asked_for_more_than_max_and_one_to_take_turns(
    seen: Seen, policy: Policy
) -> None:
    both = wanted(seen, policy)
    turns = policy.capacity.on_demand == "fallback" and seen.desired == seen.least
    assert all(size >= 0 for size in both.values())
    assert sum(both.values()) <= seen.desired + turns
    assert both[ON_DEMAND] >= min(policy.capacity.base, seen.desired)


@given(clusters, policies)
def test_nobody_goes_without_being_named_and_nobody_twice(seen: Seen, policy: Policy) -> None:
    actions = decide(seen, NOW, policy).actions
    for action in actions:
        if isinstance(action, SetDesired):
            one = next(each for each in seen.groups if each.name == action.group)
            assert action.size >= min(len(one.places), one.desired)
    gone = [a.instance for a in actions if isinstance(a, Remove | Replace)]
    assert len(gone) == len(set(gone))


@given(clusters, policies)
def test_a_give_back_leaves_min_nodes(seen: Seen, policy: Policy) -> None:
    told = [a.event.node for a in decide(seen, NOW, policy).actions if isinstance(a, Tell)]
    if told:
        assert len(seen.nodes) - len(told) >= seen.least
        assert len(told) == 1


@given(clusters, policies)
def test_carried_out_again_and_again_every_decision_comes_to_rest(
    seen: Seen, policy: Policy
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
                    mine = next(g for g in seen.groups if g.place(instance) is not None)
                    left = tuple(p for p in mine.places if p.instance != instance)
                    seen = with_group(seen, replace(mine, desired=mine.desired - 1, places=left))
                    kept = {name: n for name, n in seen.nodes.items() if name != instance}
                    seen = replace(seen, nodes=kept)
                case Tell(event) if event.kind == "give-back":
                    seen = replace(seen, given_back_at=event.data["committed"])
        for each in seen.groups:
            grown = each
            while len(grown.places) < grown.desired:
                born += 1
                name = f"n{born}"
                grown = replace(grown, places=(*grown.places, Place(name, "InService")))
                seen = with_group(seen, grown)
                node = Node(name, name, "", "z", Fingerprint())
                machine = Machine(name, "worker", "running", "t", "z", "", True, NOW)
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


def with_group(seen: Seen, changed: Group) -> Seen:
    if changed.name == SPOT:
        return replace(seen, group=changed)
    return replace(seen, on_demand=changed)
