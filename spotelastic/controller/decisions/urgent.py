"""Decides what cannot wait for the next look at the cloud: replacing a node under notice (pure).

Looking at the cloud takes several calls, one after the other, and the node's time is running.
What is known of it already is enough to replace it between those calls.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

from spotelastic.cloud.model import ALIVE, GroupMember, Instance, WorkerGroup
from spotelastic.controller.model.observation import Message, Records, Remove, Replace, SetDesired
from spotelastic.model.job import Job

Membership = tuple[Set[str], Set[str], Job | None]
"""The run's keys that matter when the cloud's state changes: nodes, drains and the job."""


def membership(records: Records) -> Membership:
    return records.nodes.keys(), records.drains.keys(), records.job


def warned(
    messages: Iterable[Message],
    drains: Iterable[str],
    groups: Iterable[WorkerGroup],
    machines: Mapping[str, Instance],
) -> frozenset[str]:
    """Return the nodes under notice that are to be replaced.

    They are those that ran in their groups at the last look at the cloud. Too little is known of
    others.
    """
    members = [member for group in groups for member in group.members]
    stay = {member.instance for member in members if not member.leaving}
    run = {name for name in stay if name in machines and machines[name].state in ALIVE}
    return frozenset(run & {*drains, *(message.warns for message in messages)})


def acted(groups: Mapping[str, WorkerGroup], done: Iterable[object]) -> dict[str, WorkerGroup]:
    """Return the groups as these actions leave them, until the next look at the cloud."""
    left = dict(groups)
    for action in done:
        match action:
            case Replace(instance):
                left = {name: _leaves(group, instance, 0) for name, group in left.items()}
            case Remove(instance):
                left = {name: _leaves(group, instance, 1) for name, group in left.items()}
            case SetDesired(name, size) if name in left:
                left[name] = replace(left[name], desired=size)
    return left


def _leaves(group: WorkerGroup, instance: str, fewer: int) -> WorkerGroup:
    member = group.member(instance)
    if member is None or member.leaving:
        return group
    gone = GroupMember(instance, "Terminating", member.healthy)
    members = tuple(gone if each is member else each for each in group.members)
    return replace(group, desired=group.desired - fewer, members=members)
