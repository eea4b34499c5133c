"""Decides what is done about what the cloud has announced for a later time (pure).

A node is not given up days ahead. Within the last hour it is replaced at a time when nothing else
is missing, one node after the other. A node that is still there shortly before leaves then, as
after any notice. Must never happen: a node is given back for something announced while no other can
be launched for it, or while the job is short of nodes already.
"""

from collections.abc import Collection, Iterator

from spotelastic.controller.decisions.capacity import held, wanting
from spotelastic.controller.model.observation import (
    Action,
    ControllerPolicy,
    DrainNode,
    Observation,
    Replace,
    Tell,
)
from spotelastic.model.notice import SCHEDULED, Drain, Notice
from spotelastic.model.progress import Event

OVER_AFTER = 3600.0
"""Seconds after which something announced has happened, and did not end its node."""


def due(seen: Observation, now: float) -> Iterator[DrainNode | Tell]:
    """Drains nodes whose time has come. A node that knows of it does so by itself."""
    for notice in _pending(seen, now):
        if notice.is_ahead(now):
            continue
        told = Notice(
            notice.kind, notice.node, notice.source, now, now, notice.deadline, notice.action
        )
        yield DrainNode(Drain(notice.node, told))
        yield from seen.tell_once(told.event(now))


def replacement(
    seen: Observation, removed: Collection[str], now: float, policy: ControllerPolicy
) -> Iterator[Action]:
    """Replace one node ahead of its end, if that costs the job no node that it needs."""
    if removed or seen.hopeless or wanting(seen, policy):
        return
    if any(member.leaving or member.instance not in seen.nodes for member in seen.members):
        return
    for notice in _pending(seen, now):
        begins = notice.deadline
        if begins is None or now < begins - policy.replaces_ahead or not notice.is_ahead(now):
            continue
        group = seen.group_of(notice.node)
        if group is None or not notice.kind.traits.is_replaced_ahead:
            continue
        if held(seen, group, now, policy):
            continue
        text = f"{notice.node} is replaced ahead: it {notice.kind.traits.outlook}"
        goes = Replace(notice.node, text)
        yield goes
        data = {"kind": notice.kind.value, "id": f"replaced {notice.id} {begins}"}
        yield Tell(Event(now, SCHEDULED, text, notice.node, data), after=(goes,))
        return


def wakes(seen: Observation, now: float, policy: ControllerPolicy) -> Iterator[float]:
    """Yield the times at which something has to be done about what is announced."""
    for notice in _pending(seen, now):
        if notice.deadline is not None:
            yield notice.deadline - notice.kind.traits.ahead
            if notice.kind.traits.is_replaced_ahead:
                yield notice.deadline - policy.replaces_ahead


def _pending(seen: Observation, now: float) -> Iterator[Notice]:
    """Yield what is announced for nodes that are there and stay so far, the next one first."""
    if seen.ended or seen.ending is not None:
        return
    for notice in sorted(
        seen.scheduled.values(), key=lambda each: (each.deadline or 0.0, each.node)
    ):
        member = seen.member(notice.node)
        if member is None or member.leaving or notice.node in seen.drains:
            continue
        if notice.node in seen.nodes and now < (notice.deadline or 0.0) + OVER_AFTER:
            yield notice
