"""The bill, the status and the mirror of etcd's keys."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from support.aws.fake_services import fake_aws
from support.store.memory_store import MemoryStore

from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.compute import estimate
from spotelastic.aws.compute.prices import AwsPrices, shipped_table
from spotelastic.client import commands, published
from spotelastic.cloud.model import Instance, InstanceState, Role
from spotelastic.controller.accounting import ledger, usage
from spotelastic.controller.accounting.usage import Usage
from spotelastic.controller.decisions import limits
from spotelastic.controller.effects.price_cache import ASKED_AGAIN_AFTER, PriceCache
from spotelastic.controller.etcd.etcd_mirror import Mirror
from spotelastic.controller.model.observation import ControllerPolicy, DepartedNode, Observation
from spotelastic.errors import EnvironmentFailure, UsageError
from spotelastic.model.counting import HOUR
from spotelastic.model.job import Capacity, Job, JobSpec, Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.progress import Event, Point, Progress, Status
from spotelastic.model.round import Member, Round
from spotelastic.store.codec import encode
from spotelastic.store.keys import Keys

KEYS = Keys("demo")


@dataclass
class Market:
    """Prices that a test sets."""

    spot_price: float = 0.3
    on_demand_price: float = 1.0

    def spot(self, type: str, zone: str) -> float:
        return self.spot_price

    def on_demand(self, type: str) -> float:
        return self.on_demand_price

    def besides(self, role: str, *, public: bool) -> float:
        return 0.0


class Listed(Market):
    """As AWS charges for what is not an instance."""

    def __init__(self, disk_gib: int = 100, disk_mib_s: int = 250) -> None:
        self._prices = AwsPrices(fake_aws(), disk_gib=disk_gib, disk_mib_s=disk_mib_s)

    def besides(self, role: str, *, public: bool) -> float:
        return self._prices.besides(role, public=public)


def machine(
    id: str, role: Role = "worker", state: InstanceState = "running", **more: Any
) -> Instance:
    made = Instance(id, role, state, "g5.xlarge", "us-east-1a", "127.80.0.9", True, 100.0)
    return replace(made, **more)


# -- the bill ------------------------------------------------------------------------------------


def test_a_machine_is_charged_from_launch_until_it_is_seen_gone() -> None:
    market = Market()
    bill = usage.account({}, [machine("a")], market, 200.0)
    bill = usage.account(bill, [machine("a", state="shutting-down")], market, 400.0)
    bill = usage.account(bill, [machine("a", state="terminated")], market, 500.0)
    bill = usage.account(bill, [], market, 9000.0)  # EC2 has forgotten it
    (only,) = bill.values()
    assert (only.start, only.end) == (100.0, 400.0)
    assert (only.usd_per_hour, only.on_demand_usd_per_hour) == (0.3, 1.0)


def test_an_instance_in_a_reservation_that_is_paid_anyway_costs_its_disk_alone() -> None:
    both = [machine(each, spot=False, reservation=f"cr-{each}") for each in ("own", "lent")]
    bill = usage.account({}, both, Listed(), 200.0, paid={"cr-own"})
    bill = usage.account(bill, both, Listed(), 100.0 + HOUR, paid={"cr-own"})
    disk = Listed().besides("worker", public=False)
    assert usage.money([bill["own"]], 100.0 + HOUR).spent == pytest.approx(disk)
    assert usage.money([bill["lent"]], 100.0 + HOUR).spent == pytest.approx(1.0 + disk)
    assert bill["own"].on_demand_usd_per_hour == 1.0, "what it would cost otherwise"


def test_a_spot_price_that_changes_is_charged_from_then_on() -> None:
    """A job of days would cost something else than it said, and pass its --max-cost."""
    market = Market()
    there = [machine("spot"), machine("bought", spot=False)]
    bill = usage.account({}, there, market, 200.0)
    for at, price in ((2.0, 0.9), (2.5, 0.9), (3.0, 0.0), (3.5, 0.6)):
        market.spot_price = price
        bill = usage.account(bill, there, market, 100.0 + at * HOUR)
    market.spot_price = 0.1
    gone = [machine("spot", state="terminated"), machine("bought", spot=False)]
    bill = usage.account(bill, gone, market, 100.0 + 4.0 * HOUR)
    bill = {each.instance: each for each in stored(bill)}
    spot, end = bill["spot"], 100.0 + 10.0 * HOUR
    assert spot.usd(0.0, end) == pytest.approx(2.0 * 0.3 + 1.5 * 0.9 + 0.5 * 0.6)
    assert spot.usd(100.0 + 1.0 * HOUR, 100.0 + 3.0 * HOUR) == pytest.approx(0.3 + 0.9)
    assert usage.money([spot], end).spent == spot.usd(0.0, end)
    assert usage.money([bill["bought"]], end).spent == pytest.approx(10.0)


def stored(bill: usage.Bill) -> list[Usage]:
    """As the next leader reads it."""
    return msgspec.json.decode(msgspec.json.encode(list(bill.values())), type=list[Usage])


def test_a_price_that_is_known_late_counts_from_the_launch_on() -> None:
    """Else one look-up that fails makes a node cost as on demand for all of its life."""
    market = Market(spot_price=0.0)
    both = [machine("a"), machine("gone", state="terminated")]
    bill = usage.account({}, both, market, 200.0)
    assert usage.money(bill.values(), 200.0).per_hour == 1.0
    market.spot_price = 0.3
    bill = usage.account(bill, both, market, 100.0 + HOUR)
    assert [bill[name].usd_per_hour for name in bill] == [0.3, 0.3]
    assert bill["gone"].end == 200.0
    assert usage.money([bill["a"]], 100.0 + HOUR).spent == pytest.approx(0.3)
    assert bill["a"].on_demand_usd_per_hour == 1.0


def test_a_machine_that_ec2_forgot_unseen_is_charged_until_it_was_seen_last() -> None:
    """As by a controller that leads again after hours."""
    bill = usage.account({}, [machine("a"), machine("b")], Market(), 200.0)
    bill = usage.account(bill, [machine("b")], Market(), 90_000.0, last=300.0)
    assert (bill["a"].end, bill["b"].end) == (300.0, None)
    bill = usage.account(bill, [machine("a"), machine("b")], Market(), 90_001.0, last=90_000.0)
    assert bill["a"].end is None, "only an answer of EC2's had left it out"


def test_what_a_cluster_that_is_gone_has_cost_grows_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bill = [Usage("a", "g5.xlarge", True, 0.0, None, 0.5, 1.0)]
    status = Status("demo", "running", 3600.0)
    told: Any = SimpleNamespace(
        get=lambda _: msgspec.json.encode(bill),
        report=lambda: None,
        status=lambda: status,
        is_left=False,
    )
    spec: Any = SimpleNamespace(capacity=Capacity(max_cost=10.0))
    cluster: Any = SimpleNamespace(name="demo", spec=spec, objects=told)
    monkeypatch.setattr(published, "wall", lambda: 7200.0)
    for there, cost, per_hour, left in ((True, 1.0, 0.5, 18.0), (False, 0.5, 0.0, None)):
        cluster.is_there = lambda there=there: there
        found = published.cost_of(cluster)
        assert (found.cost_usd, found.usd_per_hour, found.hours_left) == (cost, per_hour, left)


def test_an_on_demand_node_costs_what_it_costs_and_what_has_no_role_costs_us_nothing() -> None:
    bill = usage.account({}, [machine("x", role=""), machine("a", spot=False)], Market(), 200.0)
    assert list(bill) == ["a"]
    assert bill["a"].usd_per_hour == 1.0


@pytest.mark.parametrize(("nat_gateways", "disk_gib"), [(0, 100), (1, 100), (0, 750)])
def test_an_hour_of_all_that_is_on_the_bill_costs_what_the_plan_said(
    nat_gateways: int, disk_gib: int
) -> None:
    public = not nat_gateways
    seen = [machine(f"c{n}", role="control", spot=False, public=True) for n in range(3)]
    seen += [machine(f"w{n}", public=public) for n in range(4)]
    gateways = estimate.gateways(nat_gateways)
    prices = Listed(disk_gib)
    bill = usage.account({}, seen, prices, 100.0, gateways=gateways)
    addresses = 3 + nat_gateways + 4 * public
    plan = estimate.estimate(
        nodes=(1, 4),
        worker="g5.xlarge",
        worker_usd=0.3,
        control="g5.xlarge",
        control_usd=1.0,
        controls=3,
        nat_gateways=nat_gateways,
        addresses=(addresses, addresses),
        disk_gib=disk_gib,
    )
    hour, half = 100.0 + HOUR, 100.0 + HOUR / 2
    found = usage.cost("demo", bill, None, hour, None)
    assert found.total_usd == pytest.approx(plan.high)
    assert found.total_usd_per_hour == pytest.approx(plan.high)
    assert found.cost_usd == pytest.approx(4 * (0.3 + prices.besides("worker", public=public)))
    assert found.control_usd == pytest.approx(found.total_usd - found.cost_usd)
    told = ledger.report([], None, Job("running", 0.0), [], [], tuple(bill.values()), hour)
    assert (told.cost_usd, told.control_usd, told.total_usd) == (
        found.cost_usd,
        found.control_usd,
        found.total_usd,
    )
    assert told.node_hours == found.spot_hours == 4.0, "of workers alone"
    assert told.on_demand_usd - told.cost_usd == pytest.approx(4 * 0.7)
    gone = [replace(each, state="terminated", public=False) for each in seen]
    ended = usage.account(bill, gone, prices, half, 200.0, gateways)
    assert usage.money(ended.values(), hour).spent == pytest.approx(
        plan.high / 2 + gateways / 2  # the gateway is there for as long as its leader
    )
    assert usage.money(usage.closed(ended, half).values(), hour).per_hour == 0.0


def test_a_disk_of_an_earlier_version_has_the_throughput_that_costs_nothing() -> None:
    spec = msgspec.json.decode(
        b'{"cluster":"c","run":"c","script":"s","args":[],"code":"",'
        b'"settings":{"min_nodes":1,"max_nodes":1},"storage":"","etcd":[]}',
        type=JobSpec,
    )
    assert (spec.disk_gib, spec.disk_mib_s) == (100, 125)
    month = 730.0 * Listed(spec.disk_gib, spec.disk_mib_s).besides("worker", public=False)
    assert month == pytest.approx(100 * 0.08)
    assert 730.0 * Listed().besides("worker", public=False) == pytest.approx(month + 125 * 0.04)


def test_an_address_that_is_seen_late_is_billed_from_the_launch_on() -> None:
    bill = usage.account({}, [machine("a", state="pending")], Listed(), 101.0)
    bill = usage.account(bill, [machine("a", public=True)], Listed(), 102.0)
    before = bill["a"]
    assert before.besides_usd_per_hour == estimate.besides("worker", public=True)
    bill = usage.account(bill, [machine("a", state="terminated")], Listed(), 103.0)
    assert bill["a"] == replace(before, end=103.0)


def test_the_cost_limit_is_one_of_all_that_is_on_the_bill() -> None:
    seen = [machine(f"c{n}", role="control", spot=False) for n in range(3)]
    bill = usage.account({}, [*seen, machine("a")], Market(), 100.0)
    policy = ControllerPolicy(capacity=Capacity(max_cost=6.6), ends_within=0.0)
    decided = []
    for hours in (1.9, 2.1):  # at 3.3 an hour, of which 0.3 are the worker's
        now = 100.0 + hours * HOUR
        money = usage.money(bill.values(), now)
        left = usage.cost("demo", bill, None, now, 6.6).hours_left
        decided.append(
            (limits.verdict(Observation(desired=1, since=0.0, money=money), now, policy), left)
        )
    (goes_on, left), (ends, none) = decided
    assert goes_on is None and left == pytest.approx(0.1)
    assert ends is not None
    assert (ends.reason, none) == ("it has cost $6.93 at $3.30 an hour (--max-cost 6.6)", 0.0)


def test_a_restart_is_held_to_what_the_cluster_has_cost_in_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    control = Usage("c", "t3.small", False, 0.0, HOUR, 2.0, 2.0, "control")
    spent = usage.cost("demo", {"c": control}, None, HOUR, None)
    monkeypatch.setattr(commands, "cost_of", lambda _: spent)
    spec = JobSpec("demo", "run", "train.py", (), "", Settings(2, 4), "", ())
    cluster = ClusterRecord(fake_aws(), spec, "bucket")
    with pytest.raises(UsageError, match=r"--max-cost 2: demo has cost \$2.00 already"):
        commands.changed_limits(cluster, None, 2.0)
    commands.changed_limits(cluster, None, 2.01)


def test_a_restart_is_refused_that_would_be_stopped_before_it_trains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two nodes at $6 an hour each need a dollar for the five minutes until they may be ended."""
    bill = {"a": Usage("a", "g5.xlarge", True, 0.0, HOUR, 6.0, 9.0)}
    spent = usage.cost("demo", bill, None, HOUR, None)
    monkeypatch.setattr(commands, "cost_of", lambda _: spent)
    spec = JobSpec("demo", "run", "train.py", (), "", Settings(2, 4), "", ())
    cluster = ClusterRecord(fake_aws(), spec, "bucket")
    with pytest.raises(UsageError, match=r"before it trains.*above \$7.00"):
        commands.changed_limits(cluster, None, 7.0)
    commands.changed_limits(cluster, None, 7.01)


def test_a_type_without_a_known_price_claims_no_saving() -> None:
    bill = usage.account({}, [machine("a")], Market(on_demand_price=0.0), 200.0)
    assert bill["a"].on_demand_usd_per_hour == bill["a"].usd_per_hour == 0.3


def test_prices_that_cannot_be_looked_up_are_those_known_last_and_it_is_said_once() -> None:
    said: list[str] = []
    now, market = 0.0, Failing(0.3)
    tariff = PriceCache(market, said.append, lambda: now)  # type: ignore[arg-type]
    assert tariff.spot("g5.xlarge", "a") == 0.3
    market.fails = True
    assert (tariff.spot("g5.xlarge", "a"), tariff.spot("g5.xlarge", "b")) == (0.3, 0.0)
    bill = usage.account({}, [machine("a"), machine("b", zone="b")], tariff, 200.0)
    assert [bill[name].usd_per_hour for name in "ab"] == [1.0, 1.0], "none is free"
    assert (market.asked, len(said)) == (2, 1), "AWS is left in peace for a while"
    now += ASKED_AGAIN_AFTER
    tariff.spot("g5.xlarge", "a")
    assert (market.asked, len(said)) == (3, 1)
    now, market.fails, market.spot_price = 500.0, False, 0.4
    assert tariff.spot("g5.xlarge", "a") == 0.4


@dataclass
class Failing(Market):
    fails: bool = False
    asked: int = 0

    def spot(self, type: str, zone: str) -> float:
        self.asked += 1
        if self.fails:
            raise EnvironmentFailure("not allowed to look up prices")
        return super().spot(type, zone)


def test_the_shipped_table_says_its_date() -> None:
    table = shipped_table()
    assert table.date.startswith("20")
    assert table.usd_per_hour["p4d.24xlarge"] > table.usd_per_hour["g5.xlarge"] > 0


# -- the mirror ----------------------------------------------------------------------------------


def node(id: str, incarnation: str = "1") -> Node:
    return Node(id, incarnation, "127.80.0.9", "us-east-1a", Fingerprint())


def test_the_mirror_follows_the_store_and_knows_who_left() -> None:
    now = 50.0
    store = MemoryStore(lambda: now)
    woken: list[int] = []
    store.put(KEYS.live("a"), encode(node("a")))
    store.put(KEYS.leader, b"i-1")
    mirror = Mirror(KEYS, lambda: woken.append(1), clock=lambda: now)
    watch = store.watch(KEYS.root, mirror)
    store.put(KEYS.live("b"), encode(node("b")))
    store.put(KEYS.controller("i-1"), b"127.80.0.4")
    store.put(KEYS.event("1-x"), encode(Event(1.0, "loss", "gone", "a", {"incarnation": "1"})))
    store.delete(KEYS.live("a"))
    records = mirror.records()
    assert set(records.nodes) == {"b"}
    assert records.left == records.lost == {"a": DepartedNode("1", 50.0, joined=2)}
    assert (records.leader, records.controllers) == ("i-1", frozenset({"i-1"}))
    assert ("loss", "a", "::1") in records.told
    store.put(KEYS.live("a"), encode(node("a", "2")))
    store.delete(KEYS.leader)
    assert mirror.records().left == {}
    assert mirror.records().leader == ""
    assert woken
    watch.close()
    store.close()


def test_a_failed_launch_that_is_on_record_twice_counts_once() -> None:
    store = MemoryStore(lambda: 0.0)
    mirror = Mirror(KEYS, lambda: None)
    watch = store.watch(KEYS.root, mirror)
    for name, id in (("1", "e1"), ("2", "e1"), ("3", "e2")):
        data = {"failed": True, "group": "workers", "zone": "", "id": id, "cause": "capacity"}
        store.put(KEYS.event(name), encode(Event(1.0, "launch", "no capacity", "", data)))
    assert mirror.records().failed["workers", ""].count == 2
    watch.close()
    store.close()


def test_failed_launches_that_were_asked_for_together_are_one_try() -> None:
    store = MemoryStore(lambda: 0.0)
    mirror = Mirror(KEYS, lambda: None)
    watch = store.watch(KEYS.root, mirror)
    for id, at in enumerate((100.0, 101.0, 101.5, 161.5, 162.0)):
        data = {"failed": True, "group": "workers", "zone": "", "id": str(id), "cause": "capacity"}
        store.put(KEYS.event(str(id)), encode(Event(at, "launch", "no capacity", "", data)))
    failed = mirror.records().failed["workers", ""]
    assert (failed.count, failed.tries, failed.at) == (5, 2, 162.0)
    watch.close()
    store.close()


def test_the_last_word_of_a_node_that_prepares_is_remembered() -> None:
    store = MemoryStore(lambda: 0.0)
    mirror = Mirror(KEYS, lambda: None)
    watch = store.watch(KEYS.root, mirror)
    for name, at, line in (("1", 5.0, "building"), ("2", 9.0, "still building")):
        store.put(KEYS.event(name), encode(Event(at, "prepare", line, "a")))
    assert mirror.records().preparing == {"a": 9.0}
    watch.close()
    store.close()


def test_steps_add_up_over_publications_nodes_and_what_the_leader_before_wrote() -> None:
    store = MemoryStore(lambda: 0.0)
    mirror = Mirror(KEYS, lambda: None)
    watch = store.watch(KEYS.root, mirror)
    first, second, repeated = Point(1, 3.0, 10.0), Point(2, 2.0, 11.0), Point(2, 2.0, 15.0)
    store.put(KEYS.progress("a"), encode(Progress("a", 1, 1, 10.0, (first,))))
    store.put(KEYS.progress("a"), encode(Progress("a", 1, 2, 11.0, (first, second))))
    store.delete(KEYS.progress("a"))
    store.put(KEYS.progress("b"), encode(Progress("b", 2, 2, 15.0, (repeated,))))
    mirror.remember([Point(0, 4.0, 9.0), first], {})
    assert [point.step for point in mirror.records().points] == [0, 1, 2, 2]
    watch.close()
    store.close()


def test_each_step_of_a_round_is_in_the_curve_once_with_the_first_ranks_loss() -> None:
    """All nodes tell of each step, a little apart. A step that is made again counts again."""
    store = MemoryStore(lambda: 0.0)
    mirror = Mirror(KEYS, lambda: None)
    watch = store.watch(KEYS.root, mirror)
    members = tuple(Member(name, "1", slot, "", "z", 1) for slot, name in enumerate(("a", "b")))
    store.put(KEYS.round, encode(Round(1, "i", "started", members, "start", "")))

    def tell(node: str, round: int, *steps: int, loss: float) -> None:
        later = 0.01 * (node == "b") + 100 * round
        points = tuple(Point(step, loss, step + later) for step in steps)
        store.put(KEYS.progress(node), encode(Progress(node, round, steps[-1], 0.0, points)))

    def curve() -> list[tuple[int, float | None]]:
        return [(point.step, point.loss) for point in mirror.records().points]

    tell("b", 1, 1, 2, loss=20.0)
    assert curve() == [(1, 20.0), (2, 20.0)]
    tell("a", 1, 1, 2, 3, loss=10.0)
    tell("b", 1, 3, 4, loss=20.0)
    assert curve() == [(1, 10.0), (2, 10.0), (3, 10.0), (4, 20.0)], "only b has told of 4"
    tell("a", 2, 4, loss=10.0)
    assert curve()[-2:] == [(4, 20.0), (4, 10.0)]
    watch.close()
    store.close()


def test_a_value_of_another_version_is_skipped() -> None:
    store = MemoryStore(lambda: 0.0)
    mirror = Mirror(KEYS, lambda: None)
    watch = store.watch(KEYS.root, mirror)
    store.put(KEYS.job, b'{"state": "hibernating"}')
    assert mirror.records().job is None
    watch.close()
    store.close()


def test_the_cost_is_now_so_far_on_demand_and_until_its_limit() -> None:
    bill = {
        "a": Usage("a", "g5.xlarge", True, 0.0, 7200.0, 0.5, 1.0),
        "b": Usage("b", "g5.xlarge", True, 3600.0, None, 0.5, 1.0),
        "c": Usage("c", "g5.xlarge", False, 7200.0, None, 1.0, 1.0),
    }
    found = usage.cost("demo", bill, None, 10_800.0, 10.0)
    assert (found.usd_per_hour, found.cost_usd, found.on_demand_usd) == (1.5, 3.0, 5.0)
    assert (found.spot_hours, found.on_demand_hours) == (4.0, 1.0)
    assert found.hours_left == pytest.approx(7.0 / 1.5)
    assert usage.cost("demo", {}, None, 0.0, 10.0).hours_left is None
