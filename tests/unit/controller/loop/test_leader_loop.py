"""What a leader does while it looks at AWS, and when its term is over."""

import threading
from dataclasses import replace

import msgspec
from support.clusters.leading_controller import (
    BORN,
    JOB,
    KEYS,
    NODES,
    PACE,
    SPEC,
    STOPPING,
    Leader,
    warns,
)

from spotelastic.clock import unbroken
from spotelastic.cloud import bucket
from spotelastic.cloud.events import StateChange
from spotelastic.cloud.model import ZoneOffer
from spotelastic.controller.decisions.housekeeping import BOOT, HousekeepingPolicy
from spotelastic.controller.model.observation import Message
from spotelastic.errors import EnvironmentFailure
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import Capacity, Job, Settings
from spotelastic.model.notice import Drain, Notice
from spotelastic.model.progress import LEDGER, Event, Status
from spotelastic.store.codec import decode, encode

ZONES = (ZoneOffer("a", ("subnet-a",)), ZoneOffer("b", ("subnet-b",)))
POSTPONED_EVERY = HousekeepingPolicy().postpone_every


def told(leader: Leader, kind: str) -> list[Event]:
    """The events of that kind on record."""
    events = [decode(value.data, Event) for value in leader.store.range(KEYS.event())[0]]
    return [event for event in events if event.kind == kind]


def test_a_warning_that_comes_during_a_look_does_not_wait_for_its_end(leader: Leader) -> None:
    """Nor for another one: five that come one after the other would take many seconds."""
    leader.events.put(Message("r-other", StateChange("e-other", 1.0, "i-3", "running"), unbroken()))
    notice = Notice(InterruptionKind.SPOT_INTERRUPTION, "i-2", "imds", 1.0, 1.0, 121.0)
    leader.log.during = {
        "groups": lambda: leader.events.put(warns("i-1")),
        "instances": lambda: leader.store.put(KEYS.drain("i-2"), encode(Drain("i-2", notice))),
    }
    leader.turn()
    assert leader.calls == [
        *(STOPPING, JOB, "groups", "replace i-1", "delete r-i-1"),
        *("instances", "replace i-2", "delete r-other"),
    ]


def test_a_warning_is_answered_before_a_look_whatever_else_has_come(leader: Leader) -> None:
    other = Message("r-other", StateChange("e-other", 1.0, "i-3", "terminated"), unbroken())
    leader.events.put(other, warns("i-1"))
    leader.turn()
    assert leader.calls[:3] == ["replace i-1", "delete r-i-1", STOPPING]
    assert leader.calls.count("replace i-1") == 1
    leader.calls.clear()
    leader.events.put(warns("i-2"))
    leader.turn()
    assert leader.calls[:2] == ["replace i-2", "delete r-i-2"], "as soon after an action"


def test_instances_of_an_earlier_cluster_of_the_same_name_are_none_of_this_one(
    leader: Leader,
) -> None:
    """They were on its bill from their launch until now, and their failed boots were its own."""
    leader.capacity.had("i-old", BORN - 600.0)
    leader.capacity.had("i-own", BORN + 60.0)
    leader.time.now += PACE.idle
    leader.turn()
    published = leader.publisher.offered[-1]
    assert set(published.machines) == set(published.bill) == {*NODES, "i-own"}


def test_the_dead_mans_switch_is_postponed_while_the_bucket_is_away(
    leader: Leader, said: list[str]
) -> None:
    leader.log.throttled = frozenset({STOPPING})
    looks = ["groups", "instances", "postpone"]
    leader.time.now += POSTPONED_EVERY
    leader.turn()
    assert leader.calls == [STOPPING, *looks]
    leader.calls.clear()
    leader.happen()  # so that AWS is looked at
    leader.turn()
    assert leader.calls == looks[:2], "S3 is left in peace for a while"
    assert sum("the cloud is busy" in line for line in said) == 1


def test_a_new_leader_that_cannot_read_the_job_postpones_the_switch_all_the_same(
    said: list[str],
) -> None:
    """It would have led for hours, and AWS ended all workers within the first one."""
    leader, over = Leader(), threading.Event()
    leader.log.throttled = frozenset({STOPPING})
    leader.log.during = {"postpone": over.set}
    leader.loop.lead(over)
    once = [STOPPING, "groups", "postpone"]
    assert leader.calls == once
    leader.lead(20.0)
    assert set(leader.calls[len(once) :]) == {STOPPING}, "not before it is due"
    assert sum("the cloud is busy" in line for line in said) == 1


def test_zones_that_cannot_be_looked_up_hold_up_no_decision(
    leader: Leader, said: list[str]
) -> None:
    leader.capacity.offered = ZONES
    leader.log.throttled = frozenset({"zones"})
    leader.events.put(warns("i-1"))
    leader.time.now += POSTPONED_EVERY
    leader.turn()
    assert leader.calls[:2] == ["replace i-1", "delete r-i-1"]
    assert leader.calls.count("postpone") == 1
    assert leader.calls.count("zones") == 1, "AWS is left in peace for a while"
    assert sum("the cloud is busy" in line for line in said) == 1


def test_prices_and_scores_that_may_not_be_asked_for_hold_up_no_decision(
    leader: Leader, said: list[str]
) -> None:
    leader.capacity.offered = ZONES
    leader.log.throttled = frozenset({"launch in subnet-a"})

    def refused() -> None:
        raise EnvironmentFailure("prices: not permitted")

    leader.log.during["prices"] = refused
    for _ in range(2):
        leader.time.now += PACE.idle
        leader.turn()
    assert leader.calls.count("prices") == 1, "AWS is left in peace for a while"
    assert leader.calls.count("launch in subnet-a") == 4, "two groups, twice"
    assert sum("not permitted" in line for line in said) == 1


def test_a_boot_that_is_on_record_from_before_a_restart_is_not_examined_again(
    leader: Leader,
) -> None:
    """EC2 shows the instance for an hour: another leader would find the restarted job hopeless."""
    for name in ("i-7", "i-8", "i-9"):
        data = {"launched": 1.0, "cause": "", "said": ""}
        failed = Event(unbroken() - 60.0, BOOT, "no", name, data)
        leader.store.put(KEYS.event(name), encode(failed))
    for name in ("i-7", "i-8", "i-9"):
        leader.capacity.has(name, leader.time.begun)
    leader.store.put(KEYS.job, encode(Job("pending", unbroken(), "restarted: it had failed")))
    leader.elect()
    leader.time.now += 2 * HousekeepingPolicy().boot_within
    leader.turn()
    assert {event.node for event in told(leader, BOOT)} == {"i-7", "i-8", "i-9"}
    assert [call for call in leader.calls if call.startswith("console")] == []
    assert told(leader, "job") == told(leader, "limit") == []


def test_a_node_on_demand_that_was_given_back_is_known_to_whoever_leads_next(
    leader: Leader,
) -> None:
    """Two would else be given back after one commit."""
    given = Event(unbroken() - 60.0, "give-back", "", "i-9", {"committed": 90})
    leader.store.put(KEYS.event("1"), encode(given))
    leader.elect()
    assert leader.observed().given_back_at == 90


def test_types_that_up_has_changed_are_those_that_are_priced(leader: Leader) -> None:
    """The limit would else keep out nodes that cost less, or let in those that cost more."""
    leader.prices.spot_usd = {"cheap": 0.3, "dear": 3.0}
    limited = replace(SPEC, settings=Settings(1, 4), capacity=Capacity(max_price=1.0))
    for types, grows in (("dear",), False), (("cheap",), True):
        leader.wants(replace(limited, instance_types=types))
        leader.turns(2 * PACE.idle)
        assert ("size" in leader.calls) == grows, types


def test_patience_with_spot_counts_from_when_the_leader_before_saw_too_few_nodes(
    leader: Leader,
) -> None:
    """Each new leader would else begin to wait anew, and nodes on demand would never come."""
    since = unbroken() - 500.0
    status = Status("demo", "running", unbroken(), short_since=since)
    leader.objects.objects[bucket.STATUS] = msgspec.json.encode(status)
    leader.wants(replace(SPEC, settings=Settings(3, 3)))
    leader.leaves("i-1")
    leader.elect()

    def short_since() -> float | None:
        leader.time.now += PACE.soon
        leader.turn()
        return leader.publisher.offered[-1].short_since

    assert short_since() == since
    leader.joins("i-1", "2")
    assert short_since() is None
    leader.leaves("i-1")
    assert short_since() is not None
    leader.store.put(KEYS.job, encode(Job("failed", unbroken())))
    assert short_since() is None, "a job that has ended needs no nodes"


def test_what_an_interruption_cost_is_told_once_whoever_leads(leader: Leader) -> None:
    def messages() -> list[str]:
        leader.turn()
        return [event.message for event in told(leader, LEDGER)]

    row = Event(unbroken(), LEDGER, "paused 1 s", "i-1", {"id": "round 2"})
    leader.publisher.entries = (row,)
    assert messages() == ["paused 1 s"]
    later = replace(row, at=row.at + 5.0, message="paused 1 s, as sqs says as well")
    leader.publisher.entries = (later,)
    assert messages() == ["paused 1 s"]
    leader.elect()
    assert messages() == ["paused 1 s"]
    leader.publisher.entries = (later, replace(row, data={"id": "round 7"}))
    assert messages() == ["paused 1 s", "paused 1 s"]
