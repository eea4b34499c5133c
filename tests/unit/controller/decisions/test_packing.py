"""In which zone nodes are packed, when it is left, and how those who are behind follow."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draws import drawn

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.names import addresses, block_size
from spotelastic.aws.compute import offers
from spotelastic.aws.compute.placement_scores import FRESH_FOR
from spotelastic.aws.compute.zone_ranking import Zones
from spotelastic.aws.messaging.launch_failures import read as read_failure
from spotelastic.cloud.events import GroupActivity
from spotelastic.cloud.model import (
    TRAFFIC_USD,
    GroupMember,
    Instance,
    WorkerGroup,
    ZoneOffer,
    ranked,
)
from spotelastic.controller.decisions.decide import decide
from spotelastic.controller.decisions.zone_packing import undecided
from spotelastic.controller.etcd.etcd_mirror import Mirror
from spotelastic.controller.model.observation import (
    Action,
    ControllerPolicy,
    LaunchFailures,
    Message,
    Money,
    Observation,
    Remove,
    Replace,
    SetDesired,
    SetSubnets,
    Tell,
    account,
)
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import Capacity, Job
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Drain, Notice
from spotelastic.model.progress import Event
from spotelastic.store.codec import encode
from spotelastic.store.keys import Keys
from spotelastic.store.port import Reset, StoredValue

NOW = 10_000.0
POLICY = ControllerPolicy()
ZONES = tuple(ZoneOffer(name, (f"subnet-{name}",), f"use1-{name}", 1.0, 9) for name in "abc")
DRY = LaunchFailures(3, NOW, "no capacity", "capacity")


def job(home: str, **nodes: str) -> Observation:
    """Nodes by name, each with its zone; all that the job should have are there."""
    group = WorkerGroup(
        "workers",
        len(nodes),
        tuple(GroupMember(name, "InService") for name in nodes),
        tuple(f"subnet-{zone}" for zone in home),
    )
    return Observation(
        desired=len(nodes),
        least=1,
        since=0.0,
        job=Job("running", 0.0),
        group=group,
        zones=ZONES,
        machines={
            name: Instance(name, "worker", "running", "t", zone, "", True, 100.0 + index)
            for index, (name, zone) in enumerate(nodes.items())
        },
        nodes={name: Node(name, name, "", zone, Fingerprint()) for name, zone in nodes.items()},
        committed=500,
    )


def only(seen: Observation, *kinds: type[Action]) -> list[Action]:
    return [each for each in decide(seen, NOW, POLICY).actions if isinstance(each, kinds)]


# -- which one -----------------------------------------------------------------------------------


def test_half_as_likely_must_be_half_as_dear() -> None:
    likely = ZoneOffer("a", usd=1.0, score=8)
    assert ranked([ZoneOffer("b", usd=0.6, score=4), likely])[0].name == "a"
    assert ranked([ZoneOffer("b", usd=0.4, score=4), likely])[0].name == "b"
    assert ranked([ZoneOffer("b", usd=0.9), ZoneOffer("a", usd=1.0)])[0].name == "b", (
        "no scores at all"
    )
    assert ranked([ZoneOffer("b", usd=0.9), likely])[0].name == "a", (
        "no score among scores is the worst"
    )
    assert ranked([ZoneOffer("b"), likely])[0].name == "a"


def test_traffic_between_zones_counts_for_more_than_prices() -> None:
    assert ranked([ZoneOffer("b", usd=0.5, elsewhere=1.0), ZoneOffer("a", usd=5.0)])[0].name == "a"


@given(
    st.lists(
        st.builds(
            ZoneOffer,
            st.uuids().map(str),
            usd=st.floats(0.01, 100.0),
            score=st.integers(1, 10),
            elsewhere=st.floats(0.0, 1.0),
        ),
        min_size=1,
        unique_by=lambda zone: zone.name,
    )
)
def test_no_zone_that_is_worse_in_everything_comes_first(zones: list[ZoneOffer]) -> None:
    best = ranked(zones)[0]
    for zone in zones:
        better = zone.usd < best.usd and zone.score >= best.score
        assert not (better and zone.elsewhere <= best.elsewhere)


class Scores:
    """EC2, as it is asked for placement scores; it has one zone."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, int]] = []
        self.region = "us-east-1"

    @property
    def ec2(self) -> "Scores":
        return self

    def get_paginator(self, _: str) -> "Scores":
        return self

    def paginate(self, **told: Any) -> list[Any]:
        self.asked.append((tuple(told["InstanceTypes"]), told["TargetCapacity"]))
        score = min(10, len(self.asked))
        return [{"SpotPlacementScores": [{"AvailabilityZoneId": "use1-a", "Score": score}]}]


def test_scores_are_asked_for_again_once_they_are_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS lets an account ask for few configurations a day."""
    aws, now = Scores(), [100.0]
    monkeypatch.setattr(offers, "spot_prices", lambda *_: {})
    zones = Zones(cast(Aws, aws), lambda: now[0])

    def score(nodes: int, *types: str) -> int:
        (found,) = zones.offers(ZONES[:1], types, nodes)
        return found.score

    assert [score(4, "t1", "t2", "t3"), score(4, "t3", "t2", "t1")] == [1, 1]
    now[0] += FRESH_FOR
    assert score(4, "t1", "t2", "t3") == 1
    now[0] += 1.0
    assert [score(4, "t1", "t2", "t3"), score(8, "t1", "t2", "t3")] == [2, 3]
    assert aws.asked == [(("t1", "t2", "t3"), nodes) for nodes in (4, 4, 8)]


# -- a zone without capacity ---------------------------------------------------------------------


def test_a_dry_zone_is_left_for_the_best_other_and_nobody_who_trains_goes_yet() -> None:
    seen = replace(job("a", n1="a", n2="a"), desired=4, failed={("workers", "a"): DRY})
    seen = replace(seen, zones=(ZONES[0], replace(ZONES[1], usd=2.0), ZONES[2]))
    (moved,) = only(seen, SetSubnets)
    assert moved == SetSubnets("workers", ("subnet-c",), "a has no capacity")
    (told,) = only(seen, Tell)
    assert isinstance(told, Tell)
    assert told.event.data == {"zone": "c", "left": "a", "committed": 500}
    assert told.after == (moved,)
    assert told.event.message == (
        "new nodes go to c at $1 an hour, placement score 9: a has no capacity"
    )
    assert not only(seen, Replace, Remove)


def test_a_zone_is_left_for_whatever_is_of_that_zone_alone() -> None:
    why = "no spot t could be launched in a: no free addresses in subnet-a"
    failed = {("workers", "a"): LaunchFailures(40, NOW, why, "zone")}
    seen = replace(job("a", n1="a", n2="a"), desired=4, failed=failed)
    (moved,) = only(seen, SetSubnets)
    assert isinstance(moved, SetSubnets) and moved.reason == why
    assert moved.subnets != seen.groups[0].subnets


PIECES = [
    "zone",
    "subnet-1",
    "us-east-1a",
    "is",
    "not",
    "no",
    "supported",
    "capacity",
    "Invalid",
    "instance",
    "type",
    "exists",
    "blocked",
    "expired",
    "quota",
    "please",
    "t3.small",
]
WORDS = st.one_of(st.text(max_size=60), st.lists(st.sampled_from(PIECES)).map(" ".join))


@given(WORDS)
def test_no_zone_is_asked_for_ever_whatever_the_cloud_says(text: str) -> None:
    """Of 36 messages some were not understood, and jobs stayed below --min for good."""
    cause = read_failure(text).cause
    seen = replace(job("a", n1="a"), desired=4, least=4)
    left = [
        count
        for count in range(1, 20)
        if only(
            replace(seen, failed={("workers", "a"): LaunchFailures(count, NOW, text, cause)}),
            SetSubnets,
        )
    ]
    if cause in ("quota", "limit"):
        assert not left, "another zone has the same"
    else:
        assert left and left[0] <= 2 * POLICY.refused_after


def test_all_zones_are_tried_in_turn_where_nobody_understands_why_they_fail() -> None:
    seen = replace(job("a", n1="a"), desired=4, least=4)
    now, tried, failed = NOW, list[str](), dict[tuple[str, str], LaunchFailures]()
    for _ in range(40):
        home = seen.home
        assert home is not None
        before = failed.get(("workers", home.name), LaunchFailures(0, now, "", "", tries=0))
        if now >= before.at + POLICY.refused_at_most or before.count < POLICY.refused_after:
            tried.append(home.name)
            again = LaunchFailures(before.count + 1, now, "?", "other", before.tries + 1)
            failed["workers", home.name] = again
        seen = replace(seen, failed=dict(failed))
        for action in decide(seen, now, POLICY).actions:
            if isinstance(action, SetSubnets):
                left = {**seen.zones_left, home.name: now}
                group = replace(seen.groups[0], subnets=action.subnets)
                seen = replace(seen, group=group, zones_left=left)
        now += 100.0
    assert set(tried) == set("abc")


# -- traffic between zones -----------------------------------------------------------------------


DRY_HOME = replace(
    job("a", n1="a", n2="a"), desired=4, failed={("workers", "a"): DRY}, money=Money(workers=10.0)
)


@given(
    exchanged=st.floats(0.0, 1e5),
    usd=st.floats(0.01, 1e3),
    nodes=st.integers(1, 6),
    least=st.integers(1, 6),
)
def test_a_job_that_can_train_in_one_zone_never_pays_more_for_traffic_than_for_nodes(
    exchanged: float, usd: float, nodes: int, least: int
) -> None:
    """756 USD an hour were measured of eight nodes that cost 80."""
    seen = job("a", **{f"n{number}": "a" for number in range(nodes)})
    seen = replace(
        seen,
        desired=nodes + 2,
        least=least,
        failed={("workers", "a"): DRY},
        exchanged=exchanged,
        money=Money(workers=usd),
    )
    stays = nodes >= least and 2 * exchanged * TRAFFIC_USD > usd
    assert bool(only(seen, SetSubnets)) is not stays
    assert undecided(seen, NOW, POLICY) is not stays
    told = [each.event for each in only(seen, Tell) if isinstance(each, Tell)]
    assert any("--zones spread uses all zones" in event.message for event in told) is stays
    again = replace(seen, told=frozenset(account(event) for event in told))
    assert not [each for each in only(again, Tell) if "limit" in str(each)], "told once"


def test_a_job_that_stays_for_its_traffic_says_what_it_would_cost() -> None:
    (told,) = only(replace(DRY_HOME, exchanged=900.0), Tell)
    assert isinstance(told, Tell) and told.event.message == (
        "the job stays in a although a has no capacity: across two zones traffic would cost "
        "$36.00 an hour, its nodes cost $10.00 (--zones spread uses all zones)"
    )
    nothing_to_leave = replace(DRY_HOME, exchanged=900.0, failed={})
    assert not only(nothing_to_leave, Tell)


def test_a_zone_that_takes_its_nodes_is_left_in_time() -> None:
    """Nodes under notice do not keep the job there: it would be short when they are gone."""
    notice = Notice(InterruptionKind.SPOT_INTERRUPTION, "n1", "imds", NOW, NOW, NOW + 120)
    dear = replace(DRY_HOME, exchanged=900.0, least=2)
    assert not only(dear, SetSubnets)
    assert only(replace(dear, drains={"n1": Drain("n1", notice)}), SetSubnets)


def test_what_nodes_really_exchange_says_what_a_cheaper_zone_is_worth() -> None:
    """Until it is measured, traffic is taken for more than most nodes cost."""
    zones = (ZONES[0], replace(ZONES[1], usd=4.0), replace(ZONES[2], usd=1.0))
    # A node that has no place in zone a trains in zone b.
    seen = replace(job("a", n1="a", n2="b"), zones=zones, desired=4, least=2)
    seen = replace(seen, failed={("workers", "a"): DRY}, money=Money(workers=100.0))
    for exchanged, zone in ((0.0, "b"), (1.0, "c"), (500.0, "b")):
        (moved,) = only(replace(seen, exchanged=exchanged), SetSubnets)
        assert isinstance(moved, SetSubnets) and moved.subnets == (f"subnet-{zone}",), exchanged


# -- what is no reason to leave ------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"failed": {("workers", "a"): replace(DRY, cause="quota")}},
        {"failed": {("workers", "a"): replace(DRY, cause="limit")}},
        {"failed": {("workers", "a"): replace(DRY, count=2)}},
        {"failed": {("workers", "a"): replace(DRY, at=NOW - 61.0)}},
        {"failed": {("workers", zone): DRY for zone in "abc"}},
        {"failed": {("workers", "a"): DRY}, "desired": 2},
        {"failed": {("workers", "a"): DRY}, "zones": ZONES[:1]},
        {"failed": {("workers", ""): DRY}, "zones": ()},
        {"failed": {("workers", "a"): DRY}, "job": Job("succeeded", 0.0)},
    ],
    ids=[
        "quota",
        "limit",
        "twice",
        "long ago",
        "all dry",
        "none missing",
        "one",
        "spread",
        "ended",
    ],
)
def test_a_zone_is_not_left_for_anything_else(change: dict[str, object]) -> None:
    seen = replace(replace(job("a", n1="a", n2="a"), desired=4), **change)  # type: ignore[arg-type]
    assert not only(seen, SetSubnets)


def test_the_pause_after_failures_is_of_the_zone_and_not_of_the_next_one() -> None:
    seen = replace(job("a", n1="a"), desired=4, failed={("workers", "a"): DRY})
    sizes = [a.size for a in only(seen, SetDesired) if isinstance(a, SetDesired)]
    assert sizes == [], "it asks for what it has"
    moved = replace(seen, group=replace(job("b", n1="a").group, desired=1))  # type: ignore[type-var]
    assert only(moved, SetDesired) == [SetDesired("workers", 4, "the job is running")]


def test_nodes_that_are_in_several_zones_are_gathered_where_most_of_them_are() -> None:
    seen = job("abc", n1="a", n2="b", n3="b")
    assert undecided(seen, NOW, POLICY)
    (moved,) = only(seen, SetSubnets)
    assert isinstance(moved, SetSubnets) and moved.subnets == ("subnet-b",)


# -- those who are behind ------------------------------------------------------------------------


def gone(seen: Observation) -> list[str]:
    return [each.instance for each in only(seen, Replace) if isinstance(each, Replace)]


def test_after_a_commit_as_many_follow_as_have_arrived_the_youngest_first() -> None:
    seen = job("b", n1="a", n2="a", n3="a", n4="b", n5="b")
    assert gone(seen) == ["n3", "n2"]
    (told,) = only(seen, Tell)
    assert isinstance(told, Tell) and told.event.data["committed"] == 500
    assert told.after == tuple(only(seen, Replace))
    assert gone(replace(seen, moved_at=500)) == [], "no commit since"
    assert gone(replace(seen, desired=6)) == [], "something is missing: is there capacity?"
    assert gone(replace(seen, zones_left={"b": NOW - 60.0})) == [], "it was left just now"
    assert gone(replace(seen, zones_left={"b": NOW - 3601.0})) == ["n3", "n2"]


def test_a_move_leaves_min_nodes_but_a_job_of_fixed_size_moves_node_by_node() -> None:
    seen = job("b", n1="a", n2="a", n3="a", n4="b", n5="b", n6="b")
    assert len(gone(replace(seen, least=4))) == 2
    assert len(gone(replace(seen, least=6))) == 1


# -- what is remembered --------------------------------------------------------------------------


def test_whoever_leads_next_knows_what_was_dry_and_when_nodes_moved() -> None:
    mirror, keys = Mirror(Keys("run"), lambda: None), Keys("run")
    failed = GroupActivity(
        "e1", NOW, "", "workers", "launch", False, "no Spot capacity", "a", "capacity"
    )
    seen = replace(job("a", n1="a"), messages=(Message("r", failed, NOW),))
    (told,) = only(seen, Tell)
    assert isinstance(told, Tell)
    moved = Event(NOW, "zone", "", data={"zone": "b", "left": "a", "committed": 70})
    given = [Event(NOW, "give-back", "", "n9", {"committed": step}) for step in (95, 90)]
    events = {"1": told.event, "2": moved, "3": given[0], "4": given[1]}
    mirror(
        [Reset(tuple(StoredValue(keys.event(n), encode(e), 1, 1) for n, e in events.items()), 1)]
    )
    records = mirror.records()
    assert records.failed[("workers", "a")].cause == "capacity"
    assert (records.moved_at, records.zones_left) == (70, {"a": NOW})
    assert records.given_back_at == 90


def test_one_subnet_has_room_for_all_nodes() -> None:
    assert block_size(8) == 19
    for needed in (1, 400, 1000, 4000):
        found = addresses("10.64.0.0/12", (), 6, block_size(needed))
        assert 2 ** (32 - int(found.subnets[0].partition("/")[2])) - 6 >= needed


# -- the whole way -------------------------------------------------------------------------------


def test_nobody_goes_to_a_zone_in_which_none_boots() -> None:
    """What is missing is not asked for then, which looks as if there were enough."""
    seen = job("b", n1="a", n2="a", n3="a")
    assert len(only(seen, Replace)) == 1
    assert only(replace(seen, hopeless=True), Replace, Remove) == []
    refused = {("workers", "b"): replace(DRY, cause="quota")}
    assert only(replace(seen, failed=refused), Replace, Remove) == []


def test_a_job_of_fixed_size_on_demand_looks_for_spot_in_other_zones_too() -> None:
    """As many nodes as it should have are there, but one spot node more is asked for."""
    policy = ControllerPolicy(capacity=Capacity("fallback"))
    seen = job("a", n1="a", n2="a")
    assert seen.group is not None
    bought = replace(seen.group, name="on-demand")
    seen = replace(
        seen,
        least=2,
        group=replace(seen.group, members=(), desired=1),
        on_demand=bought,
        given_back_at=500,
        failed={("workers", "a"): DRY},
    )
    moved = [a for a in decide(seen, NOW, policy).actions if isinstance(a, SetSubnets)]
    assert {(each.group, each.subnets) for each in moved} == {
        ("workers", ("subnet-b",)),
        ("on-demand", ("subnet-b",)),
    }


# -- a zone that is too dear ---------------------------------------------------------------------

LIMITED = ControllerPolicy(capacity=Capacity(max_price=1.5))


def choice(seen: Observation, policy: ControllerPolicy = LIMITED) -> list[tuple[str, ...]]:
    actions = decide(seen, NOW, policy).actions
    return [each.subnets for each in actions if isinstance(each, SetSubnets)]


def priced(a: float, b: float, c: float) -> tuple[ZoneOffer, ...]:
    return tuple(replace(zone, usd=usd) for zone, usd in zip(ZONES, (a, b, c), strict=True))


def test_a_zone_that_has_become_too_dear_is_left_for_one_that_is_not() -> None:
    seen = replace(job("a", n1="a"), desired=2, money=Money(spot=2.0), zones=priced(2.0, 1.8, 1.4))
    assert choice(seen) == [("subnet-c",)]
    (told,) = (a for a in decide(seen, NOW, LIMITED).actions if isinstance(a, Tell) and a.after)
    assert told.event.message.endswith("in a a spot node costs $2 an hour (--max-price 1.5)")
    assert choice(replace(seen, desired=1)) == [], "nothing is missing"
    assert choice(replace(seen, zones=priced(2.0, 1.8, 1.6))) == []
    assert choice(replace(seen, zones=priced(0.0, 0.0, 0.0))) == [], "prices are not known"
    assert choice(replace(seen, zones_left={"c": NOW - 60.0})) == [], "left just now"
    assert choice(replace(seen, zones_left={"c": NOW - 3600.0})) == [("subnet-c",)]


def test_a_dry_zone_is_not_left_for_one_that_is_too_dear() -> None:
    seen = replace(job("a", n1="a"), desired=2, failed={("workers", "a"): DRY})
    seen = replace(seen, money=Money(spot=1.0))
    assert choice(replace(seen, zones=priced(1.0, 1.6, 1.7))) == []
    assert choice(replace(seen, zones=priced(1.0, 1.6, 1.4))) == [("subnet-c",)]
    assert choice(replace(seen, zones=priced(0.0, 0.0, 0.0))) == [("subnet-b",)]


def test_the_first_zone_is_one_that_may_be_paid_where_there_is_one() -> None:
    seen = replace(job("abc"), desired=2)
    likely = (replace(priced(1.6, 1.4, 0.0)[0], score=9), replace(ZONES[1], usd=1.4, score=5))
    assert choice(replace(seen, zones=likely), POLICY) == [("subnet-a",)]
    assert choice(replace(seen, zones=likely)) == [("subnet-b",)]
    assert choice(replace(seen, zones=priced(1.8, 1.6, 1.7))) == [("subnet-b",)]


@dataclass
class Account:
    """Zones that have so many instances each, groups that launch there, a job that commits."""

    capacity: dict[str, int]
    desired: int
    least: int
    home: tuple[str, ...]
    now: float = NOW
    step: int = 0
    born: int = 0
    asked: int = 0
    nodes: dict[str, str] = field(default_factory=dict)
    failed: dict[tuple[str, str], LaunchFailures] = field(default_factory=dict)
    moved_at: int = 0
    left: dict[str, float] = field(default_factory=dict)

    def seen(self) -> Observation:
        seen = job("".join(self.home), **self.nodes)
        assert seen.group is not None
        return replace(
            seen,
            group=replace(seen.group, desired=self.asked),
            desired=self.desired,
            least=self.least,
            failed=dict(self.failed),
            moved_at=self.moved_at,
            zones_left=dict(self.left),
            committed=self.step,
        )

    def turn(self) -> Sequence[Action]:
        actions = decide(self.seen(), self.now, POLICY).actions
        for action in actions:
            match action:
                case SetDesired(_, size):
                    self.asked = size
                case SetSubnets(_, subnets):
                    self.home = tuple(subnet.removeprefix("subnet-") for subnet in subnets)
                case Replace(name):
                    del self.nodes[name]
                case Tell(event) if event.kind == "zone":
                    self.moved_at = event.data["committed"]
                    if event.data.get("left"):
                        self.left[event.data["left"]] = self.now
        self.launch()
        self.now += 20.0
        return actions

    def launch(self) -> None:
        pool = ("workers", self.home[0] if len(self.home) == 1 else "")
        while len(self.nodes) < self.asked:
            free = [z for z in self.home if list(self.nodes.values()).count(z) < self.capacity[z]]
            if not free:
                before = self.failed.get(pool, LaunchFailures(0, 0.0))
                again = before.count + 1
                self.failed[pool] = LaunchFailures(again, self.now, "none", "capacity", tries=again)
                return
            self.failed.pop(pool, None)
            self.born += 1
            self.nodes[f"n{self.born}"] = free[0]


@settings(deadline=None, max_examples=drawn(40))
@given(
    st.fixed_dictionaries({zone: st.integers(0, 9) for zone in "abc"}),
    st.integers(1, 8),
    st.integers(1, 8),
    st.sampled_from(["a", "b", "c", "abc"]),
)
def test_a_job_comes_to_rest_in_one_zone_that_has_all_it_needs(
    capacity: dict[str, int], desired: int, least: int, home: str
) -> None:
    account = Account(capacity, desired, min(least, desired), tuple(home))
    for turn in range(400):
        there, before = len(account.nodes), account.moved_at
        went = [action for action in account.turn() if isinstance(action, Replace)]
        assert len(went) <= max(1, there - account.least), "a move leaves min"
        assert not went or account.moved_at > before, "only after a commit, and once for each"
        account.now += 100.0
        account.step += 10 * (turn % 8 == 0)
    assert len(account.home) == 1
    if max(capacity.values()) >= desired:
        assert len(account.nodes) == desired
        assert len(set(account.nodes.values())) == 1


@given(st.sampled_from("abc"), st.integers(1, 8))
def test_where_capacity_is_all_or_nothing_all_nodes_end_in_the_zone_that_has_it(
    full: str, desired: int
) -> None:
    account = Account({z: 20 * (z == full) for z in "abc"}, desired, 1, ("a",))
    for _ in range(40):
        account.turn()
        account.step += 10
    assert account.home == (full,)
    assert list(account.nodes.values()) == [full] * desired
