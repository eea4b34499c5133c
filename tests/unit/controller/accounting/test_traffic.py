"""What nodes send to other zones is on the bill, and counts for every limit of the cost."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clusters.leading_controller import CONFIG

from spotelastic.cloud.model import TRAFFIC_USD, GroupNames
from spotelastic.controller.accounting import ledger, usage
from spotelastic.controller.accounting.usage import GB, Bill, Usage
from spotelastic.controller.decisions import limits
from spotelastic.controller.loop.leader_state import LeaderState
from spotelastic.controller.model.observation import ControllerPolicy, Observation, Records
from spotelastic.metrics import job as job_metrics
from spotelastic.metrics.job import PublishedFacts
from spotelastic.model.counting import HOUR
from spotelastic.model.job import Capacity, Job
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.progress import Progress
from spotelastic.model.round import Member, Round
from spotelastic.web.view import rows

CONTROL = Usage("c", "t3.small", False, 0.0, None, 0.1, 0.1, "control")
BILL = {name: Usage(name, "g5.xlarge", True, 0.0, None, 0.5, 1.0) for name in "ab"} | {"c": CONTROL}


def sent_by(node: str, crossed: int, crossing: int = 0, sending: int = 0) -> Progress:
    return Progress(node, 1, 0, 0.0, crossed=crossed, crossing=crossing, sending=sending)


def stored(bill: Bill) -> dict[str, Usage]:
    """As the next leader reads it."""
    found = msgspec.json.decode(msgspec.json.encode(list(bill.values())), type=list[Usage])
    return {each.instance: each for each in found}


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.sampled_from(["sends", "agent restarts", "is published", "leader changes"]),
            st.integers(1, 10**12),
        )
    )
)
def test_every_byte_is_on_the_bill_once(happens: Sequence[tuple[str, str, int]]) -> None:
    bill = published = dict(BILL)
    counted, total = {"a": 0, "b": 0}, {"a": 0, "b": 0}
    for node, what, size in happens:
        if what == "sends":
            counted[node] += size
            total[node] += size
        elif what == "agent restarts" and counted[node]:
            # It has sent less by the next look: that is how a restart is known.
            counted[node] = min(size, counted[node] - 1)
            total[node] += counted[node]
        elif what == "leader changes":
            bill = stored(published)
        bill = usage.with_traffic(
            bill, [sent_by(name, sent) for name, sent in counted.items()], "ab"
        )
        published = published if what in ("sends", "leader changes") else bill
    assert {name: bill[name].crossed for name in "ab"} == total
    spent = usage.expenses(bill.values(), HOUR)["traffic_usd"]
    assert spent == pytest.approx(sum(total.values()) / GB * TRAFFIC_USD)


@given(
    st.lists(st.tuples(st.integers(0, 10**15), st.integers(0, 10**10)), min_size=2, max_size=2),
    st.floats(0.0, 1e6),
)
def test_the_bill_is_the_sum_of_its_parts(sent: Sequence[tuple[int, int]], now: float) -> None:
    nodes = [sent_by(name, *numbers) for name, numbers in zip("ab", sent, strict=True)]
    bill = usage.with_traffic(BILL, nodes, "ab")
    cost = usage.cost("demo", bill, None, now, None)
    report = ledger.report([], None, Job("running", 0.0), [], [], tuple(bill.values()), now)
    for each in (cost, report):
        parts = each.cost_usd + each.control_usd + each.traffic_usd
        an_hour = each.usd_per_hour + each.control_usd_per_hour + each.traffic_usd_per_hour
        assert each.total_usd == pytest.approx(parts)
        assert each.total_usd_per_hour == pytest.approx(an_hour)
    crossed = sum(crossed for crossed, _ in sent) / GB
    assert cost.traffic_usd == report.traffic_usd == pytest.approx(crossed * TRAFFIC_USD)
    assert usage.money(bill.values(), now).spent == pytest.approx(cost.total_usd)
    before = usage.cost("demo", BILL, None, now, None)
    assert cost.cost_usd == before.cost_usd, "workers cost what they cost"
    told = {
        sample.labels: sample.value
        for sample in job_metrics.samples(PublishedFacts("demo", report=report))
        if sample.metric is job_metrics.COST
    }
    assert sum(told.values()) == pytest.approx(cost.total_usd)


def test_a_limit_of_the_cost_sees_traffic() -> None:
    """378 GB an hour and node are more than what the nodes themselves cost."""
    seen = [sent_by(name, 100 * int(GB), 105_000_000) for name in "ab"]
    bill = usage.with_traffic(BILL, seen, "ab")
    money = usage.money(bill.values(), HOUR)
    assert money.spent == pytest.approx(1.1 + 2 * 100 * TRAFFIC_USD)
    assert money.per_hour == pytest.approx(1.1 + 2 * 378 * TRAFFIC_USD)
    assert money.workers == 1.0
    policy = ControllerPolicy(capacity=Capacity(max_cost=5.2), ends_within=0.0)
    (without, with_it) = (
        limits.verdict(Observation(desired=2, since=0.0, money=each), HOUR, policy)
        for each in (usage.money(BILL.values(), HOUR), replace(money, spent=5.3))
    )
    assert without is None
    assert with_it is not None and with_it.reason.startswith("it has cost $5.30 at $16.22 an hour")


def test_who_does_not_train_or_is_gone_sends_nothing_now() -> None:
    bill = usage.with_traffic(
        BILL, [sent_by("a", 5, 9), sent_by("b", 5, 9), sent_by("x", 5, 9)], "a"
    )
    assert [bill[name].crossing for name in "ab"] == [9, 0]
    gone = usage.closed(bill, HOUR)
    assert usage.expenses(gone.values(), HOUR)["traffic_usd_per_hour"] == 0.0
    assert gone["a"].traffic.spent > 0.0


def test_traffic_of_nodes_without_a_price_has_none() -> None:
    """As on Kubernetes, where nobody says what nodes cost."""
    free = {"a": replace(BILL["a"], usd_per_hour=0.0, on_demand_usd_per_hour=0.0)}
    bill = usage.with_traffic(free, [sent_by("a", 10**12)], "a")
    assert not usage.cost("demo", bill, None, HOUR, None).is_priced


def test_a_leader_counts_what_nodes_tell_and_what_they_exchange() -> None:
    members = tuple(Member(name, f"{name}-1", at, "", "z", 1) for at, name in enumerate("ab"))
    round_ = Round(1, "r", "started", members, "start", "")
    records = Records(
        nodes={name: Node(name, f"{name}-1", "", "z", Fingerprint()) for name in "ab"},
        round=round_,
        progress={"a": sent_by("a", 7, 3, 10**9), "b": sent_by("b", 0, 0, 2 * 10**9)},
    )
    first = LeaderState.first(CONFIG, GroupNames("spot", "on-demand"), 1.0)
    state = replace(first, view=replace(first.view, bill=BILL)).counted(records, 2.0)
    assert (state.view.bill["a"].crossed, state.view.bill["a"].crossing) == (7, 3)
    pausing = replace(records, round=replace(round_, phase="proposed"))
    state = state.counted(pausing, 3.0)
    assert (state.view.bill["a"].crossed, state.view.bill["a"].crossing) == (7, 0)


def test_the_costs_that_people_see_name_it() -> None:
    bill = usage.with_traffic(BILL, [sent_by("a", 10**12)], "a")
    found = rows.costs(usage.cost("demo", bill, None, 1.0, None))
    row = next(row for row in found if row.name == "Traffic")
    assert row.so_far == "$20.00"
