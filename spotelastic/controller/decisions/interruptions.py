"""Decides what the cloud's messages, and nodes that are gone, cause (pure).

Each message gets one fate. A message about this cluster causes actions, and is deleted after them.
"""

from collections.abc import Iterator

from spotelastic.cloud.events import (
    BlockEnds,
    CloudEvent,
    GroupActivity,
    LifecycleAction,
    Malformed,
    Rebalance,
    ScheduledChange,
    SpotWarning,
    StateChange,
    Unknown,
)
from spotelastic.cloud.model import GONE
from spotelastic.controller.model.observation import (
    Action,
    DepartedNode,
    Discard,
    DrainNode,
    Fate,
    Message,
    Observation,
    Tell,
    account,
)
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.notice import Drain, Notice
from spotelastic.model.progress import Event

BY_HAND = frozenset({"Client.UserInitiatedShutdown", "Client.UserInitiatedHibernate"})
"""EC2's reasons for the end of an instance that somebody has asked for. A node that the cluster
ends has a drain, or is known as lost before.
"""
TOLD_AGAIN_AFTER = 3600.0
"""Seconds until a control node that cannot be launched is reported again: tries go on."""


def read(seen: Observation, now: float) -> Iterator[Action]:
    """Return the actions that the messages cause."""
    handled = set(seen.handled)
    done = {*seen.drains, *_told_lately(seen, now)}
    for message in seen.messages:
        event = message.event
        fate = _fate(seen, event, handled)
        if fate == "handled":
            for action in _react(seen, message, now):
                once = _once(seen, action)
                if once in done:
                    continue
                done |= {once} - {""}
                yield action
            handled.add(event.id)
        yield Discard(message, fate, cause=event.id)


def _once(seen: Observation, action: Action) -> str:
    """Return what identifies an action that is done only once.

    It is the node, or the group of a control node that cannot be launched. Empty for other actions.
    """
    match action:
        case DrainNode(drain):
            return drain.node
        case Tell(event) if event.kind == "launch" and event.data.get("failed"):
            group = str(event.data["group"])
            return group if group in seen.control_groups else ""
    return ""


def _told_lately(seen: Observation, now: float) -> Iterator[str]:
    """Yield groups whose failed launches were reported lately, without a success since."""
    for (group, _), failed in seen.failed.items():
        if now < failed.at + TOLD_AGAIN_AFTER:
            yield group


def _fate(seen: Observation, event: CloudEvent, handled: set[str]) -> Fate:
    match event:
        case Malformed():
            return "malformed"
        case Unknown():
            return "unknown"
        case _ if event.id in handled:
            return "duplicate"
        case LifecycleAction() | GroupActivity():
            ours = any(event.group == group.name for group in seen.groups)
            ours = ours or _is_lost_control(seen, event)
            return "handled" if ours or _is_ours(seen, event.instance) else "foreign"
        case ScheduledChange(instances=instances):
            return "handled" if seen.machines.keys() & set(instances) else "foreign"
        case BlockEnds(reservation=reservation):
            ours = any(each.reservation == reservation for each in seen.machines.values())
            return "handled" if ours else "foreign"
        case _:
            return "handled" if _is_ours(seen, event.instance) else "foreign"


def _is_ours(seen: Observation, instance: str) -> bool:
    """Whether an instance belongs to the cluster. EC2 may not show a new one yet."""
    known = instance in seen.machines or instance in seen.nodes or instance in seen.left
    return known or seen.member(instance) is not None


def _is_lost_control(seen: Observation, event: LifecycleAction | GroupActivity) -> bool:
    """Whether the event says that a control node could not be launched."""
    failed = isinstance(event, GroupActivity) and event.name == "launch" and not event.succeeded
    return failed and event.group in seen.control_groups


def _react(seen: Observation, message: Message, now: float) -> Iterator[Action]:
    """Return what one message about this cluster causes.

    A message that only tells of a changed state causes nothing by itself: it had that state
    observed.
    """
    match message.event:
        case SpotWarning(id, at, instance, ahead, action) if _is_worker(seen, instance):
            # The moment of the end stands in IMDS alone; the agent knows it within a second, unless
            # that service is away.
            notice = Notice(
                InterruptionKind.SPOT_INTERRUPTION,
                instance,
                "sqs",
                at,
                message.received_at,
                at + ahead,
                action,
            )
            if not seen.ended:
                yield DrainNode(Drain(instance, notice), cause=id)
            yield from seen.tell_once(notice.event(now), cause=id)
        case Rebalance(id, at, instance) if _is_worker(seen, instance):
            notice = Notice(InterruptionKind.REBALANCE, instance, "sqs", at, message.received_at)
            yield from seen.tell_once(notice.event(now), cause=id)
        case ScheduledChange() | BlockEnds():
            for notice in _announced(seen, message.event, message.received_at):
                yield from seen.tell_once(notice.event(now), cause=message.event.id)
        case StateChange(id, at, instance, state) if state in GONE:
            yield from _tell_loss(seen, instance, at, f"the cloud says {state}", now, id)
        case GroupActivity(id):
            event = _activity(seen, message.event, now)
            yield from seen.tell_once(event, cause=id)  # it may be delivered again


def _announced(
    seen: Observation, event: ScheduledChange | BlockEnds, received_at: float
) -> Iterator[Notice]:
    """Return the notice for each worker that the event is about."""
    if isinstance(event, BlockEnds):
        found = (each for each in seen.machines.values() if each.reservation == event.reservation)
        nodes = sorted(each.id for each in found)
        kind, action = InterruptionKind.CAPACITY_BLOCK, ""
        change, called_off = event.reservation, False
    else:
        nodes, action = list(event.instances), event.action
        kind = InterruptionKind.RETIREMENT if event.ends else InterruptionKind.MAINTENANCE
        change, called_off = event.change, event.called_off
    for node in nodes:
        if _is_worker(seen, node):
            yield Notice(
                kind, node, "sqs", event.at, received_at, event.begins, action, change, called_off
            )


def _activity(seen: Observation, activity: GroupActivity, now: float) -> Event:
    name, instance = activity.name, activity.instance
    data: dict[str, object] = {
        "group": activity.group,
        "zone": _pool(seen, activity),
        "id": activity.id,
    }
    if not activity.succeeded:
        data |= {"failed": True, "cause": activity.cause}
        return Event(now, name, _explained(seen, activity), instance, data)
    machine = seen.machines.get(instance)
    what = f"{machine.role} node {instance} in {machine.zone}" if machine else instance
    if name != "launch":
        return Event(now, name, f"{what} has ended", instance, data)
    # The first leader looks long after the first nodes have come, and told of themselves.
    at = min(now, machine.launched_at or now) if machine else now
    return Event(at, name, f"{what} was launched", instance, data)


def losses(seen: Observation, now: float) -> Iterator[Tell]:
    """Report nodes whose lease ran out, though they may be back when this controller leads.

    If the cloud reported it too, that came as a message.
    """
    for node, left in {**seen.lost, **seen.left}.items():
        yield from _tell_loss(seen, node, left.at, "its lease ran out", now, "", left)


def _tell_loss(
    seen: Observation,
    node: str,
    at: float,
    why: str,
    now: float,
    cause: str,
    left: DepartedNode | None = None,
) -> Iterator[Tell]:
    """Report a loss once per registration, and only for a node that left without a notice.

    The cloud's word on who has ended it may come later than the loss. It is told then, once. Of an
    instance that somebody terminates, the system ends the agent in order: it has left by then.
    """
    known = left or seen.nodes.get(node) or seen.left.get(node)
    member, machine = seen.member(node), seen.machines.get(node)
    by_hand = machine is not None and machine.state in GONE and machine.reason in BY_HAND
    drain = seen.drains.get(node)
    by_signal = drain is not None and drain.notice.kind is InterruptionKind.LEAVE
    if known is None or seen.ended or (drain is not None and not (by_signal and by_hand)):
        return
    if seen.restarts(node, known.incarnation):
        return
    source = "cloud" if cause else "lease"  # the cloud's word alone comes as a message
    data = {"source": source, "at": at, "seen_at": now, "incarnation": known.incarnation}
    if joined := known.joined if isinstance(known, DepartedNode) else seen.joined.get(node):
        data["joined"] = joined  # it may come back under a new lease, and be lost again
    lost = Event(now, "loss", f"{node} is gone: {why}", node, data)
    why = f"somebody has stopped or terminated it ({why})"
    data = {**data, "kind": InterruptionKind.BY_HAND.value}
    ended = Event(now, "loss", f"{node} is gone: {why}", node, data)
    event = ended if by_hand else lost
    # Of most that ever left something is told: this comes before what takes longer.
    if account(event) in seen.told or account(ended) in seen.told:
        return
    if member is None or not member.leaving:
        yield Tell(event, cause=cause)


def _pool(seen: Observation, activity: GroupActivity) -> str:
    """Return the zone that the activity says something about.

    Empty if workers are not packed into one zone.
    """
    if activity.group in seen.control_groups:
        return activity.zone
    if not seen.zones:
        return ""
    return activity.zone or (seen.home.name if seen.home is not None else "")


def _explained(seen: Observation, activity: GroupActivity) -> str:
    """Return what could not be launched, where, and which quota is in the way.

    The cloud's own words follow.
    """
    why = activity.message
    if activity.name != "launch":
        return f"{activity.group} could not {activity.name} an instance: {why}"
    spot = seen.group is not None and activity.group == seen.group.name
    quota = seen.quotas.spot if spot else seen.quotas.on_demand
    kind = " or ".join(seen.types) or "instance"
    where = f" in {activity.zone}" if activity.zone else ""
    text = f"no {'spot' if spot else 'on-demand'} {kind} could be launched{where}"
    if activity.group in seen.control_groups:
        quota = seen.quotas.control
        text = f"no control node could be launched for {activity.group}{where}"
    match activity.cause:
        case "quota" if quota:
            return f"{text}: the quota {quota} does not allow it: {why}"
        case "limit":
            limit = seen.quotas.others.get(activity.limit, activity.limit)
            return f"{text}: the limit {limit} does not allow it: {why}"
        case "capacity":
            return f"{text}: there is no capacity: {why}"
    return f"{text}: {why}"


def _is_worker(seen: Observation, instance: str) -> bool:
    machine = seen.machines.get(instance)
    if machine is None:  # only workers are nodes, and members of worker groups
        return _is_ours(seen, instance)
    return machine.role == "worker"
