"""What each node did when, as the events tell it."""

import re
from dataclasses import replace

import pytest
from support.clusters.published_cluster import BEGAN, EVENTS, STATUS, began, happened

from spotelastic.model.progress import NodeStatus, Status
from spotelastic.web.view.timeline import MOST_LANES, NodeTimeline, node_timeline


def shown(timeline: NodeTimeline | None) -> dict[str, list[tuple[str, int, int]]]:
    """By node, its states with the seconds from the first launch at which they begin and end."""
    assert timeline is not None
    length = 99
    return {
        lane.node: [
            (span.state, round(span.begin * length), round(span.end * length))
            for span in lane.spans
        ]
        for lane in timeline.lanes
    }


def test_nodes_boot_train_have_notice_and_go() -> None:
    timeline = node_timeline(STATUS, EVENTS)
    assert shown(timeline) == {
        "i-3": [("booting", 40, 49), ("training", 49, 99)],
        "i-1": [("booting", 0, 9), ("training", 9, 69)],
        "i-2": [("booting", 0, 9), ("training", 9, 39), ("noticed", 39, 54)],
    }
    assert timeline is not None
    assert [lane.is_there for lane in timeline.lanes] == [True, False, False]
    assert [(each.label, round(each.begin * 99)) for each in timeline.rounds] == [
        ("1", 9),
        ("2", 49),
        ("3", 73),
    ]
    assert timeline.rounds[1].told.endswith(": 2 nodes, from step 60; as it came")
    assert timeline.states == (
        ("booting", "booting"),
        ("training", "training"),
        ("noticed", "has notice"),
    )


def test_a_node_that_is_left_out_waits_and_trains_again() -> None:
    events = (*EVENTS[:4], began(20, 2, "i-1"), began(30, 3, "i-1", "i-2"))
    found = shown(node_timeline(replace(STATUS, nodes=()), events))
    assert found["i-2"] == [
        ("booting", 0, 9),
        ("training", 9, 19),
        ("waiting", 19, 29),
        ("training", 29, 99),
    ]


def test_a_node_that_went_unseen_ends_with_the_status_that_lacks_it() -> None:
    there = NodeStatus("i-1", "worker", "training", "", "")
    timeline = node_timeline(replace(STATUS, nodes=(there,)), EVENTS[:4])
    assert timeline is not None
    assert [(lane.node, lane.is_there) for lane in timeline.lanes] == [
        ("i-1", True),
        ("i-2", False),
    ]


def test_after_the_job_nothing_moves_on() -> None:
    ended = replace(STATUS, state="succeeded", at=BEGAN + 5000)
    timeline = node_timeline(ended, (*EVENTS, happened(100, "job", message="succeeded: all")))
    assert shown(timeline)["i-3"] == [("booting", 40, 49), ("training", 49, 99)]


def test_a_notice_that_asks_nobody_to_leave_changes_nothing() -> None:
    for kind, state in (("rebalance", "training"), ("maintenance", "noticed")):
        events = (*EVENTS[:4], happened(50, "notice", "i-1", kind=kind))
        assert shown(node_timeline(STATUS, events))["i-1"][-1][0] == state


@pytest.mark.parametrize("data", [{"members": "i-1"}, {"members": None}, {"members": [1]}, {}])
def test_a_round_of_a_newer_version_is_no_fault(data: dict[str, object]) -> None:
    strange = happened(5, "round", message="?", phase="started", **data)
    assert node_timeline(STATUS, (*EVENTS, strange)) is not None


def test_before_anything_has_happened_there_is_no_timeline() -> None:
    assert node_timeline(Status("demo", "pending", BEGAN), ()) is None
    assert node_timeline(STATUS, EVENTS[:1]) is None


def test_rounds_that_are_too_short_to_be_seen_are_drawn_as_one() -> None:
    rounds = [began(number, number, "i-1", step=number) for number in range(1, 2001)]
    timeline = node_timeline(replace(STATUS, at=BEGAN + 2001), (*EVENTS[1:2], *rounds))
    assert timeline is not None and len(timeline.rounds) < 300
    folded = [re.match(r"(\d+) rounds, (\d+) to (\d+);", each.told) for each in timeline.rounds]
    counts = [int(found[1]) if found else 1 for found in folded]
    assert sum(counts) == 2000
    ends = [each.end for each in timeline.rounds]
    assert ends[:-1] == pytest.approx([each.begin for each in timeline.rounds[1:]])


def test_of_many_nodes_those_that_are_there_are_shown() -> None:
    came = [happened(index, "launch", f"i-{index}") for index in range(200)]
    went = [happened(300 + index, "loss", f"i-{index}") for index in range(150)]
    timeline = node_timeline(replace(STATUS, nodes=(), at=BEGAN + 500), (*came, *went))
    assert timeline is not None
    assert len(timeline.lanes) == MOST_LANES
    assert all(lane.is_there for lane in timeline.lanes)
    assert timeline.more == 200 - MOST_LANES
    assert len(timeline.ticks) <= 6
