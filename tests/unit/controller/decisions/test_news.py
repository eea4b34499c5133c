"""When a controller acts before it looks at AWS."""

import pytest

from spotelastic.cloud.events import CloudEvent, Rebalance, SpotWarning, StateChange
from spotelastic.cloud.model import GroupMember, Instance, InstanceState, WorkerGroup
from spotelastic.controller.decisions.urgent import acted, warned
from spotelastic.controller.model.observation import Message, Remove, Replace, SetDesired

SPOT = WorkerGroup(
    "workers",
    3,
    (
        GroupMember("i-1", "InService"),
        GroupMember("i-gone", "Terminating:Wait"),
        GroupMember("i-off", "InService"),
    ),
)
GROUPS = (SPOT, WorkerGroup("on-demand", 1, (GroupMember("i-2", "InService"),)))
STATES: dict[str, InstanceState] = {
    "i-1": "running",
    "i-2": "running",
    "i-gone": "running",
    "i-off": "terminated",
}
MACHINES = {
    name: Instance(name, "worker", state, "t", "z", "", True, 0.0) for name, state in STATES.items()
}
WARNED = SpotWarning("e1", 1.0, "i-1")


@pytest.mark.parametrize(
    ("events", "drains", "nodes"),
    [
        ([WARNED], [], {"i-1"}),
        ([], ["i-2"], {"i-2"}),
        ([WARNED], ["i-1", "i-2"], {"i-1", "i-2"}),
        ([StateChange("e2", 1.0, "i-2", "terminated"), WARNED], [], {"i-1"}),
        ([], [], set()),
        ([SpotWarning("e1", 1.0, "i-new")], [], set()),
        ([SpotWarning("e1", 1.0, "i-gone")], ["i-gone"], set()),
        ([SpotWarning("e1", 1.0, "i-off")], ["i-off"], set()),
        ([Rebalance("e1", 1.0, "i-1")], [], set()),
    ],
)
def test_a_warning_to_a_node_that_is_known_to_run_waits_for_nothing(
    events: list[CloudEvent], drains: list[str], nodes: set[str]
) -> None:
    messages = [Message(event.id, event, 1.0) for event in events]
    assert warned(messages, drains, GROUPS, MACHINES) == nodes


def test_who_was_just_replaced_is_not_replaced_again_and_sizes_are_as_they_were_set() -> None:
    done = [Replace("i-1", ""), Remove("i-2", ""), Remove("i-2", ""), SetDesired("workers", 5, "")]
    groups = acted({group.name: group for group in GROUPS}, done)
    assert {name: group.desired for name, group in groups.items()} == {"workers": 5, "on-demand": 0}
    assert warned((), ["i-1", "i-2"], groups.values(), MACHINES) == set()
