"""What --max-price, --max-cost and --deadline do to a job, and how it ends for them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clusters.observed_cluster import NOW, ON_DEMAND, SPOT, cluster, group, only, wanted

from spotelastic.cloud.model import GroupMember, WorkerGroup, ZoneOffer
from spotelastic.controller.decisions.decide import decide
from spotelastic.controller.model.observation import (
    AskToEnd,
    ControllerPolicy,
    DepartedNode,
    EndJobAtOnce,
    Money,
    Observation,
    Remove,
    Replace,
    SetDesired,
    Tell,
    account,
)
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import Capacity, Ending, Job
from spotelastic.model.notice import Drain, Notice


def test_above_the_highest_price_no_spot_node_is_launched_and_none_is_ended() -> None:
    seen = replace(cluster(2), money=Money(spot=0.7))
    assert wanted(seen, ControllerPolicy(capacity=Capacity(max_price=0.7)))[SPOT] == 4
    dear = ControllerPolicy(capacity=Capacity(max_price=0.6))
    assert only(seen, dear, SetDesired, Remove, Replace) == [
        SetDesired(SPOT, 2, "a spot node costs $0.7 an hour (--max-price 0.6)")
    ]


def test_above_the_highest_price_who_goes_is_not_replaced_until_the_price_allows_it() -> None:
    dear = ControllerPolicy(capacity=Capacity(max_price=0.6))
    notice = Notice(InterruptionKind.SPOT_INTERRUPTION, "s1", "imds", NOW, NOW, NOW + 120.0)
    seen = replace(cluster(4), drains={"s1": Drain("s1", notice)}, money=Money(spot=0.7))
    why = "it has a notice, and a spot node costs $0.7 an hour (--max-price 0.6)"
    ends = only(seen, dear, SetDesired, Remove, Replace)
    assert ends == [Remove("s1", why)]
    silent = replace(seen, drains={}, left={"s2": DepartedNode("s2-1", NOW - 600.0)})
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
    dear = ControllerPolicy(capacity=Capacity(base=1, max_price=0.6))
    notice = Notice(InterruptionKind.PLANNED, "d0", "imds", NOW, NOW, NOW + 120.0)
    seen = replace(cluster(3, 1), drains={"d0": Drain("d0", notice)}, money=Money(spot=0.7))
    assert only(seen, dear, Remove, Replace) == [Replace("d0", "it is to leave")]


def test_a_price_that_holds_nodes_out_is_told_once_whatever_it_is_meanwhile_and_so_is_its_end() -> (
    None
):
    seen = replace(cluster(0), types=("g5.xlarge",), zones=(ZoneOffer("z", ("s",)),))
    seen = replace(seen, group=replace(group(SPOT, [], 0), subnets=("s",)))
    heard = list[str]()
    for price, limit in (
        (0.5, 0.6), (0.7, 0.6), (0.8, 0.6), (0.9, 0.5), (0.4, 0.5), (0.4, 0.5),
        (0.0, 0.5), (0.51, 0.5), (0.6, 0.5), (0.0, 0.5), (0.0, None), (0.0, None),
    ):  # fmt: skip
        priced = replace(seen, money=Money(spot=price))
        told = [
            action.event
            for action in only(priced, ControllerPolicy(capacity=Capacity(max_price=limit)), Tell)
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
    dear = ControllerPolicy(capacity=Capacity(max_price=0.6))
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
    policy = ControllerPolicy(capacity=Capacity(max_cost=10.0), ends_within=180.0)
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
    policy = ControllerPolicy(capacity=Capacity(max_cost=10.0), boots_in=1800.0, ends_within=1800.0)
    missing = replace(cluster(2), group=group(SPOT, ["s0", "s1"], 2))

    def at(spent: float, capacity: Capacity = policy.capacity, spot: float = 2.0) -> dict[str, int]:
        money = Money(spent, per_hour=4.0, spot=spot, on_demand=3.0)
        return wanted(replace(missing, money=money), replace(policy, capacity=capacity))

    bases = replace(policy.capacity, base=1)
    assert [at(spent)[SPOT] for spent in (1.0, 2.0, 3.0, 4.1, 5.9, 6.0)] == [4, 4, 3, 2, 2, 2]
    assert at(5.9, spot=0.0) == {SPOT: 4, ON_DEMAND: 0}, "a price that is not known"
    assert at(3.0, bases) == {SPOT: 2, ON_DEMAND: 1}
    assert at(3.1, bases) == {SPOT: 3, ON_DEMAND: 0}


def at_rest(seen: Observation) -> Observation:
    """No group asks for more than it has."""
    assert seen.group is not None
    return replace(seen, group=replace(seen.group, desired=len(seen.group.members)))


PRICES = st.just(0.0) | st.floats(0.001, 5.0)


@given(st.integers(0, 6), st.integers(0, 4), st.integers(0, 4), st.floats(0, 12), PRICES, PRICES)
def test_what_is_asked_for_can_be_paid_and_nobody_goes_for_it(
    there: int, bought: int, base: int, spent: float, spot: float, on_demand: float
) -> None:
    capacity = Capacity(max_cost=10.0, base=base)
    policy = ControllerPolicy(capacity=capacity, boots_in=1800.0, ends_within=1800.0)
    rich = at_rest(replace(cluster(there, bought, most=6), money=Money()))
    seen = replace(rich, money=Money(spent, 0.5, spot, on_demand))
    usd = {SPOT: spot, ON_DEMAND: on_demand}
    had = {each.name: len(each.members) for each in seen.groups}
    asked, unlimited = wanted(seen, policy), wanted(rich, policy)
    bill = sum(max(0, asked[name] - had[name]) * usd[name] for name in had)
    assert bill <= max(0.0, 10.0 - spent - 0.5) + 1e-9
    assert all(min(had[name], unlimited[name]) <= asked[name] <= unlimited[name] for name in had)


def test_a_purse_that_a_base_has_emptied_may_be_a_little_below_nothing() -> None:
    """As floats are: three of these prices are more than the limit, which is three times one."""
    usd, limit = 0.6190967313738801, 1.8572901941216402
    capacity = Capacity(max_cost=limit, base=3)
    policy = ControllerPolicy(capacity=capacity, boots_in=1800.0, ends_within=1800.0)
    seen = replace(cluster(0), money=Money(on_demand=usd))
    assert wanted(seen, policy) == {SPOT: 1, ON_DEMAND: 3}


def test_who_goes_when_the_money_ends_is_not_replaced_and_that_is_told_once() -> None:
    policy = ControllerPolicy(capacity=Capacity(max_cost=10.0), boots_in=1800.0, ends_within=1800.0)
    notice = Notice(InterruptionKind.SPOT_INTERRUPTION, "s1", "imds", NOW, NOW, NOW + 120.0)
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
    less = group(SPOT, ["s0", "s2"], 2)
    assert (
        only(replace(short, group=less, told=frozenset({account(told.event)})), policy, Tell) == []
    )


def test_nodes_that_are_replaced_are_paid_one_after_the_other() -> None:
    """Each for itself could be paid; together they are more than the money is left for, and AWS
    would choose who goes when that is found out."""
    policy = ControllerPolicy(capacity=Capacity(max_cost=10.0), boots_in=1800.0, ends_within=1800.0)
    warned = {
        name: Drain(
            name, Notice(InterruptionKind.SPOT_INTERRUPTION, name, "imds", NOW, NOW, NOW + 120.0)
        )
        for name in ("s0", "s1", "s2")
    }
    seen = replace(cluster(4, least=1), drains=warned, money=Money(1.9, per_hour=4.0, spot=2.0))
    ends = only(seen, policy, Replace, Remove)
    assert [type(end) for end in ends] == [Replace, Replace, Remove]
    missing = replace(seen, group=group(SPOT, ["s0", "s1", "s2"], 3))
    ends = only(missing, policy, Replace, Remove)
    assert [type(end) for end in ends] == [Replace, Remove, Remove], "one is launched besides"


def test_nodes_that_are_on_their_way_are_not_called_off_for_the_time_that_they_take() -> None:
    policy = ControllerPolicy(capacity=Capacity(max_cost=10.0), boots_in=1800.0, ends_within=1800.0)
    money = Money(spent=3.5, per_hour=4.0, spot=2.0)
    resting = replace(cluster(2), group=group(SPOT, ["s0", "s1"], 2), money=money)
    assert wanted(resting, policy)[SPOT] == 3, "two more would hardly train"
    assert wanted(replace(resting, group=group(SPOT, ["s0", "s1"], 4)), policy)[SPOT] == 4
    spent = replace(resting, group=group(SPOT, ["s0", "s1"], 4), money=replace(money, spent=7.5))
    assert wanted(spent, policy)[SPOT] == 2, "but the limit holds"


def test_a_job_that_cannot_pay_for_the_nodes_that_it_lacks_ends_instead_of_waiting_for_them() -> (
    None
):
    policy = ControllerPolicy(capacity=Capacity(max_cost=10.0), boots_in=1800.0, ends_within=1800.0)
    money = Money(8.0, per_hour=0.1, spot=2.0, on_demand=6.0)
    alone = replace(cluster(1), group=group(SPOT, ["s0"], 1), money=money)
    assert only(alone, policy, AskToEnd) == [
        AskToEnd(
            Ending(
                "stopped",
                NOW,
                "it has cost $8.00 at $0.10 an hour, and --max-cost 10 does not pay for the node "
                "that is missing",
            )
        )
    ]
    paid = replace(alone, money=replace(alone.money, spent=7.5))
    assert only(paid, policy, AskToEnd) == []
    on_its_way = replace(alone, group=group(SPOT, ["s0"], 2))
    assert only(on_its_way, policy, AskToEnd) == []
    unknown = replace(alone, money=replace(alone.money, spot=0.0))
    assert only(unknown, policy, AskToEnd) == []
    enough = replace(alone, least=1)
    assert only(enough, policy, AskToEnd) == []


def test_a_doomed_node_trains_on_before_its_job_ends_for_want_of_another() -> None:
    policy = ControllerPolicy(capacity=Capacity(max_cost=10.0), boots_in=1800.0, ends_within=1800.0)
    seen = replace(cluster(2), money=Money(8.0, per_hour=0.1, spot=2.0, on_demand=6.0))
    leaves = GroupMember("s1", "Terminating:Wait")
    leaving = replace(seen, group=WorkerGroup(SPOT, 1, (GroupMember("s0", "InService"), leaves)))
    assert only(leaving, policy, AskToEnd) == []
    gone = {name: node for name, node in leaving.nodes.items() if name != "s1"}
    assert len(only(replace(leaving, nodes=gone), policy, AskToEnd)) == 1


def test_at_its_deadline_a_job_is_timed_out_once() -> None:
    policy = ControllerPolicy(capacity=Capacity(deadline=NOW))
    seen = cluster(4)
    assert decide(seen, NOW - 5.0, policy).wake_at == NOW
    (asked,) = only(seen, policy, AskToEnd)
    assert isinstance(asked, AskToEnd)
    assert asked.ending.state == "timed out"
    assert only(replace(seen, ending=asked.ending), policy, AskToEnd, EndJobAtOnce, Tell) == []
    (told,) = only(seen, policy, Tell)
    assert isinstance(told, Tell)
    assert only(replace(seen, told=frozenset({account(told.event)})), policy, Tell) == []


def test_a_job_that_does_not_come_to_its_end_is_ended_when_its_time_is_up() -> None:
    policy = ControllerPolicy(ends_within=180.0)
    seen = replace(cluster(4), ending=Ending("stopped", NOW, "stopped by command"))
    assert only(seen, policy, EndJobAtOnce) == []
    assert decide(seen, NOW, policy).wake_at == NOW + 180.0
    late = decide(seen, NOW + 180.0, policy).actions
    (ended,) = [action for action in late if isinstance(action, EndJobAtOnce)]
    assert (ended.job.state, ended.job.final_step) == ("stopped", 500)
    assert ended.job.reason == "stopped by command; the newest commit is of step 500"


def test_a_job_that_nobody_has_joined_yet_ends_at_once() -> None:
    seen = replace(cluster(4), nodes={}, ending=Ending("stopped", NOW, "stopped by command"))
    (ended,) = only(seen, ControllerPolicy(), EndJobAtOnce)
    assert isinstance(ended, EndJobAtOnce) and ended.job.state == "stopped"


def test_nobody_is_launched_for_a_job_that_is_being_ended() -> None:
    seen = replace(cluster(2), ending=Ending("stopped", NOW, "stopped by command"))
    assert wanted(seen, ControllerPolicy())[SPOT] == 2
