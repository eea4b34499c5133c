"""Decides whether a node that keeps the others waiting is replaced (pure), with `--replace-slow`.

Which nodes those are, the agents have decided (`rendezvous/slowness/slow_nodes.py`).

Must never happen:

- a fleet is churned: one node at a time, while nothing else comes or goes, two an hour, and no
  second one of a group rank within a day;
- fewer nodes than the job needs remain, or one goes that the cloud will not replace.
"""

from collections.abc import Iterator

from spotelastic.cloud.model import IN_SERVICE
from spotelastic.controller.decisions import capacity
from spotelastic.controller.model.observation import (
    REPLACED,
    ControllerPolicy,
    Observation,
    Replace,
    Tell,
)
from spotelastic.model.counting import HOUR
from spotelastic.model.progress import Event, SlowNode


def replacement(
    seen: Observation, now: float, policy: ControllerPolicy
) -> Iterator[Replace | Tell]:
    """Replace the slowest node, if it may be replaced now.

    That is put on record first, so that the limits hold whatever happens to this controller
    meanwhile.
    """
    wanted = seen.wanted
    if wanted is None or not wanted.replace_slow or seen.ended or seen.ending is not None:
        return
    if not _is_settled(seen) or len(seen.nodes) <= seen.least:
        return
    candidates = [slow for slow in seen.slow.values() if _is_replaceable(seen, slow, now, policy)]
    for slow in sorted(candidates, key=lambda slow: -slow.factor):
        on_record = any(
            (each.node, each.incarnation) == (slow.node, slow.incarnation)
            for each in seen.slow_replaced
        )
        if on_record:
            yield Replace(slow.node, f"it is {slow.factor:.1f} times slower than the others")
            return
        data = {"slot": seen.slots[slow.node], "incarnation": slow.incarnation}
        line = f"{slow.line}: it is replaced (--replace-slow)"
        event = Event(now, REPLACED, line, slow.node, data)
        if _is_within_limits(seen, slow, now, policy) and (tells := seen.tell_once(event)):
            yield from tells
            return


def _is_within_limits(
    seen: Observation, slow: SlowNode, now: float, policy: ControllerPolicy
) -> bool:
    past = [(now - each.at, each.slot) for each in seen.slow_replaced]
    again = (slot for ago, slot in past if ago < policy.slow_again_after)
    lately = sum(ago < HOUR for ago, _ in past)
    return lately < policy.slow_an_hour and seen.slots[slow.node] not in again


def _is_settled(seen: Observation) -> bool:
    """Whether each group has the nodes that it asks for, and they train."""
    return all(len(group.members) == group.desired for group in seen.groups) and all(
        m.state == IN_SERVICE and m.instance in seen.nodes and m.instance not in seen.drains
        for m in seen.members
    )


def _is_replaceable(
    seen: Observation, slow: SlowNode, now: float, policy: ControllerPolicy
) -> bool:
    """Whether the node trains, and its group would launch another one."""
    node = seen.nodes.get(slow.node)
    if node is None or node.incarnation != slow.incarnation or slow.node not in seen.slots:
        return False
    group = seen.group_of(slow.node)
    return group is not None and not capacity.held(seen, group, now, policy)
