"""When a controller acts before it looks at AWS."""

from dataclasses import replace

import pytest

from spotelastic.aws.autoscaling import Group, Place
from spotelastic.aws.events import AwsEvent, Rebalance, SpotWarning, StateChange
from spotelastic.controller.news import Membership, only_warnings
from spotelastic.model.job import Job

BEFORE = Membership(frozenset({"i-1", "i-2"}), frozenset(), Job("running", 1.0))
GROUPS = (
    Group("workers", 2, (Place("i-1", "InService"), Place("i-gone", "Terminating:Wait"))),
    Group("on-demand", 1, (Place("i-2", "InService"),)),
)
DRAINED = replace(BEFORE, drains=frozenset({"i-2"}))
WARNED = SpotWarning("e1", 1.0, "i-1")


@pytest.mark.parametrize(
    ("now", "events"), [(BEFORE, [WARNED]), (DRAINED, []), (DRAINED, [WARNED])]
)
def test_a_warning_to_a_node_that_is_known_waits_for_nobody(
    now: Membership, events: list[AwsEvent]
) -> None:
    assert only_warnings(BEFORE, now, events, GROUPS)


@pytest.mark.parametrize(
    ("now", "events"),
    [
        (BEFORE, []),
        (BEFORE, [SpotWarning("e1", 1.0, "i-new")]),
        (BEFORE, [SpotWarning("e1", 1.0, "i-gone")]),
        (BEFORE, [WARNED, StateChange("e2", 1.0, "i-2", "terminated")]),
        (BEFORE, [Rebalance("e1", 1.0, "i-1")]),
        (replace(DRAINED, nodes=frozenset({"i-1"})), []),
        (replace(DRAINED, job=Job("failed", 2.0)), []),
    ],
)
def test_aws_is_looked_at_first_for_anything_else(now: Membership, events: list[AwsEvent]) -> None:
    assert not only_warnings(BEFORE, now, events, GROUPS)


def test_nothing_is_done_before_the_first_look() -> None:
    assert not only_warnings(None, BEFORE, [WARNED], GROUPS)
