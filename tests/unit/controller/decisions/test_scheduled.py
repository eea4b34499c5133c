"""What a controller does about ends of nodes that AWS has announced for a later time."""

from dataclasses import replace
from typing import Any

import pytest
from support.clusters.observations import (
    GROUP,
    NOW,
    POLICY,
    group,
    healthy,
    in_service,
    machine,
    message,
)
from support.clusters.observations import only as chosen

from spotelastic.cloud.events import (
    BlockEnds,
    CloudEvent,
    ScheduledChange,
    SpotWarning,
    StateChange,
)
from spotelastic.cloud.model import GroupMember
from spotelastic.controller.decisions.decide import decide
from spotelastic.controller.etcd.etcd_mirror import Mirror
from spotelastic.controller.model.observation import (
    Action,
    DepartedNode,
    Discard,
    DrainNode,
    LaunchFailures,
    Observation,
    Remove,
    Replace,
    Tell,
    account,
)
from spotelastic.model.interruption_kind import DRAINS_AHEAD, InterruptionKind
from spotelastic.model.job import Job
from spotelastic.model.notice import Drain, Notice
from spotelastic.model.progress import Event
from spotelastic.store.codec import encode
from spotelastic.store.keys import Keys
from spotelastic.store.port import Reset, StoredValue

DAY, HOUR = 86_400.0, 3600.0
CHANGE = ScheduledChange(
    "e1", NOW - 1.0, ("i-1", "i-elsewhere"), NOW + 10 * DAY, "arn-1", "AWS_EC2_REBOOT"
)


def only(seen: Observation, now: float, *kinds: type[Action]) -> list[Action]:
    return chosen(decide(seen, now, POLICY), *kinds)


def events(seen: Observation, now: float = NOW) -> list[Event]:
    return [each.event for each in only(seen, now, Tell) if isinstance(each, Tell)]


def told(event: CloudEvent, seen: Observation | None = None) -> list[Event]:
    return events(replace(seen or healthy("i-1", "i-2"), messages=(message(event),)))


def remembered(*told: Event) -> dict[str, Notice]:
    """What a leader knows that reads these events from etcd."""
    keys = Keys("demo")
    mirror = Mirror(keys, lambda: None)
    values = [StoredValue(keys.event(f"{n:03}"), encode(e), 1, 1) for n, e in enumerate(told)]
    mirror([Reset(tuple(values), 1)])
    return dict(mirror.records().scheduled)


def scheduled(ahead: float, node: str = "i-1", **more: object) -> Observation:
    """Two nodes, of which one has something ahead of it."""
    kind = InterruptionKind.RETIREMENT
    notice = Notice(kind, node, "sqs", NOW, NOW, NOW + ahead, "AWS_EC2_RETIREMENT", "arn-1")
    return replace(healthy("i-1", "i-2"), scheduled={node: notice}, **more)  # type: ignore[arg-type]


# -- it is told, and remembered ------------------------------------------------------------------


def test_a_change_is_told_of_each_worker_that_it_is_about_and_moves_nothing() -> None:
    seen = replace(healthy("i-1", "i-2"), messages=(message(CHANGE),))
    (event,) = events(seen)
    assert (event.kind, event.node, event.data["kind"]) == ("scheduled", "i-1", "maintenance")
    assert "AWS_EC2_REBOOT" in event.message
    assert only(seen, NOW, DrainNode, Replace, Remove) == []
    (discard,) = only(seen, NOW, Discard)
    assert isinstance(discard, Discard) and discard.fate == "handled"
    again = replace(seen, told=frozenset({account(event)}))
    assert events(again) == []


def test_a_change_of_other_instances_is_foreign() -> None:
    elsewhere = replace(CHANGE, instances=("i-elsewhere",))
    seen = replace(healthy("i-1"), messages=(message(elsewhere),))
    (discard,) = only(seen, NOW, Discard)
    assert isinstance(discard, Discard) and discard.fate == "foreign"


def test_another_time_is_told_too_and_takes_the_place_of_the_first() -> None:
    (first,) = told(CHANGE)
    (later,) = told(replace(CHANGE, begins=NOW + 20 * DAY))
    assert account(first) != account(later)
    assert remembered(first)["i-1"].deadline == NOW + 10 * DAY
    assert remembered(first, later)["i-1"].deadline == NOW + 20 * DAY


def test_what_is_called_off_is_forgotten() -> None:
    (first,) = told(CHANGE)
    (over,) = told(replace(CHANGE, called_off=True))
    assert "called off" in over.message
    assert remembered(first, over) == {}


def test_of_several_the_next_one_counts() -> None:
    (first,) = told(CHANGE)
    (sooner,) = told(replace(CHANGE, change="arn-2", begins=NOW + DAY))
    assert remembered(first, sooner)["i-1"].deadline == NOW + DAY


def test_an_event_of_another_version_is_no_schedule() -> None:
    odd: list[dict[str, object]] = [{}, {"scheduled": 7}, {"scheduled": "a", "deadline": "soon"}]
    assert remembered(*(Event(NOW, "scheduled", "", "i-1", data) for data in odd)) == {}


def test_the_end_of_a_capacity_block_is_told_of_each_node_in_it() -> None:
    seen = healthy("i-1", "i-2", "i-3")
    blocks = {name: replace(machine(name), reservation="cr-1") for name in ("i-1", "i-3")}
    seen = replace(seen, machines={**seen.machines, **blocks})
    found = told(BlockEnds("e1", NOW, "cr-1", NOW + 600.0), seen)
    assert [(each.node, each.data["kind"]) for each in found] == [
        ("i-1", "capacity_block"),
        ("i-3", "capacity_block"),
    ]
    assert told(BlockEnds("e1", NOW, "cr-2", NOW + 600.0), seen) == []


# -- it is acted upon ----------------------------------------------------------------------------


def test_a_node_is_replaced_within_the_last_hour() -> None:
    early = scheduled(2 * HOUR)
    assert only(early, NOW, Replace, DrainNode) == []
    assert decide(early, NOW, POLICY).wake_at == NOW + HOUR
    (goes,) = only(scheduled(HOUR), NOW, Replace)
    assert isinstance(goes, Replace) and goes.instance == "i-1"
    (event,) = events(scheduled(HOUR))
    assert event.kind == "scheduled" and "is replaced ahead" in event.message
    assert remembered(event) == {}, "it is no schedule of its own"


@pytest.mark.parametrize(
    "change",
    [
        {"desired": 3},
        {"nodes": {}},
        {"hopeless": True},
        {"job": Job("succeeded", 900.0)},
        {"failed": {(GROUP, ""): LaunchFailures(3, NOW, "no capacity", "capacity")}},
        {"group": group(*in_service("i-1"), GroupMember("i-2", "Terminating:Wait"))},
    ],
    ids=["short", "not registered", "boots fail", "ended", "refused", "another one goes"],
)
def test_it_is_not_replaced_ahead_while_that_would_cost_a_node(change: dict[str, Any]) -> None:
    seen = scheduled(HOUR, **change)
    assert not [each for each in events(seen) if "replaced ahead" in each.message]
    ended = seen.job is not None and seen.job.state == "succeeded"
    assert ended or only(seen, NOW, Replace, Remove, DrainNode) == []


def test_nodes_are_replaced_ahead_one_after_the_other() -> None:
    one = scheduled(HOUR)
    other = replace(one.scheduled["i-1"], node="i-2")
    both = replace(one, scheduled={**one.scheduled, "i-2": other})
    assert len(only(both, NOW, Replace)) == 1


@pytest.mark.parametrize(
    "kind",
    [InterruptionKind.MAINTENANCE, InterruptionKind.RETIREMENT, InterruptionKind.CAPACITY_BLOCK],
)
def test_a_node_that_is_still_there_drains_shortly_before(kind: InterruptionKind) -> None:
    seen = scheduled(DRAINS_AHEAD)
    seen = replace(seen, scheduled={"i-1": replace(seen.scheduled["i-1"], kind=kind)})
    (drains,) = only(seen, NOW, DrainNode)
    assert isinstance(drains, DrainNode)
    assert (drains.drain.node, drains.drain.notice.kind) == ("i-1", kind)
    assert drains.drain.notice.deadline == NOW + DRAINS_AHEAD
    (event,) = events(seen)
    assert (event.kind, event.data["kind"]) == ("notice", kind)
    (goes,) = only(seen, NOW, Replace)
    assert isinstance(goes, Replace) and goes.reason == "it has a notice"


def test_a_block_is_not_left_ahead_of_its_end() -> None:
    seen = scheduled(HOUR)
    ends = replace(seen.scheduled["i-1"], kind=InterruptionKind.CAPACITY_BLOCK)
    seen = replace(seen, scheduled={"i-1": ends})
    assert only(seen, NOW, Replace, DrainNode) == []
    assert decide(seen, NOW, POLICY).wake_at == NOW + HOUR - DRAINS_AHEAD


def test_what_has_passed_without_an_end_is_forgotten() -> None:
    assert only(scheduled(-2 * HOUR), NOW, Replace, DrainNode) == []


def test_a_hibernation_drains_at_once() -> None:
    warning = SpotWarning("e1", NOW, "i-1", 0.0, "hibernate")
    seen = replace(healthy("i-1", "i-2"), messages=(message(warning),))
    (drains,) = only(seen, NOW, DrainNode)
    assert isinstance(drains, DrainNode)
    assert (drains.drain.notice.deadline, drains.drain.notice.action) == (NOW, "hibernate")


# -- it was not announced ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("Client.UserInitiatedShutdown", "by_hand"),
        ("Client.UserInitiatedHibernate", "by_hand"),
        ("Server.SpotInstanceTermination", None),
        ("Client.InstanceInitiatedShutdown", None),
    ],
)
def test_a_node_that_somebody_ends_by_hand_is_told_apart_from_a_lost_one(
    reason: str, kind: str | None
) -> None:
    seen = healthy("i-1", "i-2")
    gone = replace(machine("i-1", "shutting-down"), reason=reason)
    change = StateChange("e1", NOW - 1.0, "i-1", "shutting-down")
    seen = replace(seen, machines={**seen.machines, "i-1": gone}, messages=(message(change),))
    (event,) = events(seen)
    assert (event.kind, event.data.get("kind")) == ("loss", kind)
    assert ("somebody has stopped or terminated it" in event.message) == (kind is not None)
    lease = replace(seen, messages=(), told=frozenset({account(event)}))
    left = {"i-1": DepartedNode("i-1-1", NOW)}
    assert events(replace(lease, nodes={"i-2": seen.nodes["i-2"]}, left=left)) == [], "once"


@pytest.mark.parametrize("reason", ["Client.UserInitiatedShutdown", "Server.InternalError"])
def test_a_node_whose_agent_has_left_in_order_is_told_as_ended_by_hand_alone(reason: str) -> None:
    """The system of an instance that somebody terminates asks the agent to leave."""
    seen = healthy("i-1", "i-2")
    notice = Notice(InterruptionKind.LEAVE, "i-1", "signal", NOW - 2.0, NOW - 2.0, NOW + 10.0)
    gone = replace(machine("i-1", "shutting-down"), reason=reason)
    seen = replace(
        seen,
        nodes={"i-2": seen.nodes["i-2"]},
        left={"i-1": DepartedNode("i-1-1", NOW)},
        drains={"i-1": Drain("i-1", notice)},
    )
    assert events(seen) == []
    told = events(replace(seen, machines={**seen.machines, "i-1": gone}))
    by_hand = reason.startswith("Client")
    assert [each.data.get("kind") for each in told] == ["by_hand"] * by_hand


def test_who_has_ended_a_node_is_told_when_it_is_known() -> None:
    """EC2's answers may be older than the end of a lease."""
    seen = healthy("i-1", "i-2")
    left = {"i-1": DepartedNode("i-1-1", NOW)}
    seen = replace(seen, nodes={"i-2": seen.nodes["i-2"]}, left=left)
    (lost,) = events(seen)
    assert "kind" not in lost.data
    seen = replace(seen, told=frozenset({account(lost)}))
    assert events(seen) == []
    gone = replace(machine("i-1", "shutting-down"), reason="Client.UserInitiatedShutdown")
    seen = replace(seen, machines={**seen.machines, "i-1": gone})
    (event,) = events(seen)
    assert event.data["kind"] == "by_hand"
    seen = replace(seen, told=seen.told | {account(event)})
    assert events(seen) == [], "once"
    of_later = {name: each for name, each in seen.machines.items() if name != "i-1"}
    assert events(replace(seen, machines=of_later)) == [], "EC2 forgets what has ended"
