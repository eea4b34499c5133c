"""What a leader does while it looks at AWS, and when its term is over."""

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support.leading import BORN, KEYS, NODES, SPEC, Account, Time, warns

from spotelastic.aws.base.clients import Rejected
from spotelastic.aws.compute.zone_ranking import Zone
from spotelastic.aws.messaging.eventbridge import StateChange
from spotelastic.clock import unbroken
from spotelastic.controller.accounting.ledger_events import LEDGER
from spotelastic.controller.decisions.housekeeping import BOOT
from spotelastic.controller.loop.leader_loop import LeaderLoop
from spotelastic.controller.model.observation import Message
from spotelastic.errors import Unavailable
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import Capacity, Job, Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Drain, Notice
from spotelastic.model.progress import Event, Status
from spotelastic.store.codec import decode, encode
from spotelastic.store.memory import MemoryStore


def test_a_warning_that_comes_during_a_look_does_not_wait_for_its_end(
    term: LeaderLoop, account: Account, store: MemoryStore
) -> None:
    """Nor for another one: five that come one after the other would take many seconds."""
    pending = term._inbox.pending  # type: ignore[attr-defined]
    other = Message("r-other", StateChange("e-other", 1.0, "i-3", "running"), unbroken())
    pending[other.receipt] = other
    notice = Notice(InterruptionKind.SPOT_INTERRUPTION, "i-2", "imds", 1.0, 1.0, 121.0)
    account.during = {
        "groups": lambda: pending.update({"r-i-1": warns("i-1")}),
        "machines": lambda: store.put(KEYS.drain("i-2"), encode(Drain("i-2", notice))) and None,
    }
    term._turn()
    assert account.calls == [
        *("stopping", "groups", "replace i-1", "delete r-i-1"),
        *("machines", "replace i-2", "delete r-other"),
    ]


def test_a_warning_is_answered_before_a_look_whatever_else_has_come(
    term: LeaderLoop, account: Account
) -> None:
    pending = term._inbox.pending  # type: ignore[attr-defined]
    other = Message("r-other", StateChange("e-other", 1.0, "i-3", "terminated"), unbroken())
    for message in (other, warns("i-1")):
        pending[message.receipt] = message
    term._turn()
    assert account.calls[:3] == ["replace i-1", "delete r-i-1", "stopping"]
    assert account.calls.count("replace i-1") == 1
    account.calls.clear()
    pending["r-i-2"] = warns("i-2")
    term._turn()
    assert account.calls[:2] == ["replace i-2", "delete r-i-2"], "as soon after an action"


def test_instances_of_an_earlier_cluster_of_the_same_name_are_none_of_this_one(
    term: LeaderLoop, account: Account
) -> None:
    """They were on its bill from their launch until now, and their failed boots were its own."""
    account.gone = {"i-old": BORN - 600.0, "i-own": BORN + 60.0}
    term._look()
    assert set(term._machines) == set(term._bill) == {*NODES, "i-own"}


def test_the_dead_mans_switch_is_postponed_while_the_bucket_is_away(
    term: LeaderLoop, account: Account, said: list[str]
) -> None:
    def away() -> None:
        raise Unavailable("cannot reach S3")

    account.during["stopping"] = away
    looks = "groups", "machines", "postpone", "postpone"
    for asked in (("stopping",), ()):  # S3 is left in peace for a while
        term._switch_at = term._look_at = 0.0
        term._turn()
        assert account.calls == [*asked, *looks]
        account.calls.clear()
    assert sum("cannot reach S3" in line for line in said) == 1


def test_a_new_leader_that_cannot_read_the_job_postpones_the_switch_all_the_same(
    term: LeaderLoop, account: Account, said: list[str]
) -> None:
    """It would have led for hours, and AWS ended all workers within the first one."""
    over = threading.Event()

    def away() -> None:
        raise Unavailable("cannot reach S3")

    term._switch_at = 0.0
    account.during = {"stopping": away, "postpone": over.set}
    term.lead(over)
    assert account.calls == ["stopping", "groups", "postpone", "postpone"]
    term._hold_off()
    assert len(account.calls) == 4, "not before it is due"
    assert sum("cannot reach S3" in line for line in said) == 1


def test_zones_that_cannot_be_looked_up_hold_up_no_decision(
    term: LeaderLoop, account: Account, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    asked: list[int] = []

    def busy(_: object) -> None:
        asked.append(1)
        raise Unavailable("cannot find the zones of the cluster's subnets: AWS is busy")

    monkeypatch.setattr(term._zones, "of", busy)
    pending = term._inbox.pending  # type: ignore[attr-defined]
    warning = warns("i-1")
    pending[warning.receipt] = warning
    term._switch_at = term._look_at = 0.0
    term._turn()
    assert account.calls[:2] == ["replace i-1", "delete r-i-1"]
    assert account.calls.count("postpone") == 2
    assert asked == [1], "AWS is left in peace for a while"
    assert sum("AWS is busy" in line for line in said) == 1


def test_prices_and_scores_that_may_not_be_asked_for_hold_up_no_decision(
    term: LeaderLoop, account: Account, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    zones = tuple(Zone(name, (f"subnet-{name}",)) for name in "ab")
    monkeypatch.setattr(term._zones, "of", lambda _: zones)
    asked: list[int] = []

    def refused(_: object, __: object, nodes: int) -> None:
        asked.append(nodes)
        raise Rejected("cannot look up spot prices: not allowed", "UnauthorizedOperation")

    monkeypatch.setattr(term._zones, "offers", refused)
    for _ in range(2):
        term._switch_at = term._look_at = 0.0
        term._turn()
    assert asked == [3], "AWS is left in peace for a while"
    assert account.calls.count("postpone") == 4
    assert account.calls.count("launch in subnet-a") == 2
    assert sum("not allowed" in line for line in said) == 1


def test_a_boot_that_is_on_record_from_before_a_restart_is_not_examined_again(
    term: LeaderLoop, store: MemoryStore
) -> None:
    """EC2 shows the machine for an hour: another leader would find the restarted job hopeless."""
    failed = Event(unbroken() - 60.0, BOOT, "no", "i-1", {"launched": 1.0, "cause": "", "said": ""})
    store.put(KEYS.event("1"), encode(failed))
    store.put(KEYS.job, encode(Job("pending", unbroken(), "restarted: it had failed")))
    standing = term._standing(term._mirror.records())
    assert (standing.boots, standing.examined) == ((), {"i-1"})


def test_a_node_on_demand_that_was_given_back_is_known_to_whoever_leads_next(
    term: LeaderLoop, store: MemoryStore
) -> None:
    """Two would else be given back after one commit."""
    given = Event(unbroken() - 60.0, "give-back", "", "i-9", {"committed": 90})
    store.put(KEYS.event("1"), encode(given))
    assert term._seen(term._mirror.records(), ()).given_back_at == 90


def test_types_that_up_has_changed_are_those_that_are_priced(term: LeaderLoop) -> None:
    """The limit would else keep out nodes that cost less, or let in those that cost more."""
    spot = {"cheap": 0.3, "dear": 3.0}
    prices: Any = SimpleNamespace(
        spot=lambda type, _: spot[type], on_demand=lambda type: 3 * spot[type]
    )
    term._prices = prices
    told = replace(SPEC, instance_types=("dear",), capacity=Capacity(max_price=1.0))
    for types, usd in (("dear",), 3.0), (("cheap",), 0.3):
        term._go_by(False, replace(told, instance_types=types))
        seen = term._seen(term._mirror.records(), ())
        assert (seen.types, seen.money.spot, seen.money.on_demand) == (types, usd, 3 * usd)


def test_patience_with_spot_counts_from_when_the_leader_before_saw_too_few_nodes(
    term: LeaderLoop, account: Account, store: MemoryStore, time: Time
) -> None:
    """Each new leader would else begin to wait anew, and nodes on demand would never come."""
    term._wanted = Settings(3, 3)
    since = unbroken() - 500.0
    told: list[Any] = []
    term._publisher = SimpleNamespace(offer=told.append, entries=())  # type: ignore[assignment]
    status = Status("demo", "running", unbroken(), short_since=since)
    term._objects.status = lambda: status  # type: ignore[method-assign]
    store.delete(KEYS.live("i-1"))
    term._take_over()
    term._turn()
    assert told[-1].short_since == since
    assert term._seen(term._mirror.records(), ()).short_since == since
    store.put(KEYS.live("i-1"), encode(Node("i-1", "i-1-2", "", "z", Fingerprint())))
    term._turn()
    assert told[-1].short_since is None
    store.delete(KEYS.live("i-1"))
    store.put(KEYS.job, encode(Job("failed", unbroken())))
    term._turn()
    assert told[-1].short_since is None, "a job that has ended needs no nodes"


def test_what_an_interruption_cost_is_told_once_whoever_leads(
    term: LeaderLoop, account: Account, store: MemoryStore
) -> None:
    def told() -> list[str]:
        values, _ = store.range(KEYS.event())
        return [decode(value.data, Event).message for value in values]

    row = Event(unbroken(), LEDGER, "paused 1 s", "i-1", {"id": "round 2"})
    term._publisher.entries = (row,)
    term._turn()
    assert told() == ["paused 1 s"]
    later = replace(row, at=row.at + 5.0, message="paused 1 s, as sqs says as well")
    term._publisher.entries = (later,)
    term._turn()
    term._told.clear()  # as the next leader begins
    term._turn()
    assert told() == ["paused 1 s"]
    term._publisher.entries = (later, replace(row, data={"id": "round 7"}))
    term._turn()
    assert told() == ["paused 1 s", "paused 1 s"]
