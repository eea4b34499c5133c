"""What the leading controller does next. Pure: `act.py` carries it out.

From one observation (the worker group, EC2's states, etcd, the messages that AWS sent) follows a
list of actions, each with the id of the message that caused it. Deciding again from the next
observation is always right: nothing is remembered between two decisions but what was observed, so
another controller may take over at any point.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from spotelastic.aws.autoscaling import ALIVE, GONE, Group, Machine
from spotelastic.aws.events import (
    AwsEvent,
    GroupActivity,
    LifecycleAction,
    Malformed,
    Rebalance,
    SpotWarning,
    StateChange,
    Unknown,
)
from spotelastic.model.job import ENDED, Job
from spotelastic.model.node import Node
from spotelastic.model.notice import Drain, Notice
from spotelastic.model.progress import Event

Fate = Literal["handled", "duplicate", "foreign", "unknown", "malformed"]
WARNINGS = {"notice": "will be taken away", "rebalance": "may be interrupted soon"}
"""What AWS's events say of a node, by the kind of the notice."""


# -- what is seen --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the queue that has not been deleted."""

    receipt: str
    event: AwsEvent
    received_at: float


@dataclass(frozen=True, slots=True)
class Left:
    """A node that is not registered any more, and since when."""

    incarnation: str
    at: float


@dataclass(frozen=True, slots=True)
class Policy:
    """Seconds unless a name says otherwise."""

    boot_within: float = 900.0
    """For a new instance to register its node; after that another is tried."""
    silent_for: float = 60.0
    """A node that was registered may be away for so long while its machine runs."""
    strange_for: float = 60.0
    """A worker in no group may live for so long: AWS's answers are not all of one moment."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One observation."""

    desired: int
    """Worker nodes that the job should have while it runs."""
    since: float
    """When this controller began to watch: what it never saw, it cannot miss before."""
    job: Job | None = None
    group: Group | None = None
    """None where AWS knows no such group (any more)."""
    machines: Mapping[str, Machine] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    """Those registered now."""
    left: Mapping[str, Left] = field(default_factory=dict)
    """Nodes that were registered and are not any more."""
    drains: Mapping[str, Drain] = field(default_factory=dict)
    told: frozenset[tuple[str, str, str]] = frozenset()
    """Events on record, each as `account` gives it."""
    messages: tuple[Message, ...] = ()
    handled: frozenset[str] = frozenset()
    """Ids of AWS's events that were dealt with before."""

    @property
    def ended(self) -> bool:
        return self.job is not None and self.job.state in ENDED


# -- what is done --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WriteDrain:
    """Make the node leave."""

    drain: Drain
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Replace:
    """End an instance of the group; the group fills the place if its size says so."""

    instance: str
    reason: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class CompleteDrain:
    """The group need not wait for this terminating instance (any longer)."""

    instance: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class EndMachine:
    """End an instance that no group accounts for."""

    instance: str
    reason: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class SetDesired:
    size: int
    reason: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Tell:
    """Put an event on record."""

    event: Event
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Discard:
    """Delete a message, once every action that it caused is done."""

    message: Message
    fate: Fate
    cause: str = ""


Action = WriteDrain | Replace | CompleteDrain | EndMachine | SetDesired | Tell | Discard


@dataclass(frozen=True, slots=True)
class Decision:
    actions: tuple[Action, ...]
    reason: str
    """One line for people; the same for as long as nothing changes."""
    wake_at: float | None
    """When to decide again even if nothing happens; None: no need."""


# -- the decision --------------------------------------------------------------------------------


def decide(seen: Seen, now: float, policy: Policy) -> Decision:
    actions = list(_read(seen, now))
    new = {a.drain.node: a.drain for a in actions if isinstance(a, WriteDrain)}
    causes = {a.drain.node: a.cause for a in actions if isinstance(a, WriteDrain)}
    seen = replace(seen, drains={**new, **seen.drains})
    told = {account(a.event) for a in actions if isinstance(a, Tell)}
    seen = replace(seen, told=seen.told | told)
    actions += _losses(seen, now)
    if seen.group is not None:
        actions += _size(seen, seen.group)
        actions += _replacements(seen, seen.group, now, policy, causes)
        actions += _drained(seen, seen.group)
        actions += _strangers(seen, seen.group, now, policy)
    # Messages go last, and only if what they caused was done.
    actions.sort(key=lambda action: isinstance(action, Discard))
    return Decision(tuple(actions), _reason(seen), _wake_at(seen, now, policy))


def _read(seen: Seen, now: float) -> Iterator[Action]:
    """What the messages cause."""
    handled = set(seen.handled)
    noticed = set(seen.drains)
    for message in seen.messages:
        event = message.event
        fate = _fate(seen, event, handled)
        if fate == "handled":
            for action in _react(seen, message, now):
                if isinstance(action, WriteDrain):
                    if action.drain.node in noticed:
                        continue
                    noticed.add(action.drain.node)
                yield action
            handled.add(event.id)
        yield Discard(message, fate, event.id)


def _fate(seen: Seen, event: AwsEvent, handled: set[str]) -> Fate:
    match event:
        case Malformed():
            return "malformed"
        case Unknown():
            return "unknown"
        case _ if event.id in handled:
            return "duplicate"
        case LifecycleAction() | GroupActivity():
            ours = seen.group is not None and event.group == seen.group.name
            return "handled" if ours or event.instance in seen.machines else "foreign"
        case _:
            return "handled" if event.instance in seen.machines else "foreign"


def _react(seen: Seen, message: Message, now: float) -> Iterator[Action]:
    """What one message about this cluster causes.

    What only says that AWS's state changed causes nothing by itself: it had that state observed.
    """
    match message.event:
        case SpotWarning(id, at, instance) if _is_worker(seen, instance):
            # The moment of the end stands in IMDS alone; the agent knows it within a second.
            notice = Notice("notice", instance, "sqs", at, message.received_at)
            if not seen.ended:
                yield WriteDrain(Drain(instance, notice), id)
            yield from _tell_notice(seen, notice, now, id)
        case Rebalance(id, at, instance) if _is_worker(seen, instance):
            notice = Notice("rebalance", instance, "sqs", at, message.received_at)
            yield from _tell_notice(seen, notice, now, id)
        case StateChange(id, at, instance, state) if state in GONE:
            yield from _tell_loss(seen, instance, at, f"EC2 says {state}", now, id)
        case GroupActivity(id, _, instance, _, name, True):
            machine = seen.machines.get(instance)
            what = f"{machine.role} node {instance} in {machine.zone}" if machine else instance
            verb = "is launched" if name == "launch" else "has ended"
            yield Tell(Event(now, name, f"{what} {verb}", instance, {}), id)
        case GroupActivity(id, _, instance, group, name, False, why):
            text = f"{group} could not {name} an instance: {why}"
            yield Tell(Event(now, name, text, instance, {"failed": True}), id)


def _tell_notice(seen: Seen, notice: Notice, now: float, cause: str) -> Iterator[Tell]:
    event = Event(
        now,
        "notice",
        f"{notice.node} {WARNINGS[notice.kind]} (from the event bus)",
        notice.node,
        {
            "kind": notice.kind,
            "source": notice.source,
            "at": notice.at,
            "seen_at": notice.seen_at,
            "deadline": notice.deadline,
        },
    )
    if account(event) not in seen.told:
        yield Tell(event, cause)


def _losses(seen: Seen, now: float) -> Iterator[Tell]:
    """Nodes whose lease ran out; EC2's word, if there was one, came as a message."""
    for node, left in seen.left.items():
        yield from _tell_loss(seen, node, left.at, "its lease ran out", now, "")


def _tell_loss(
    seen: Seen, node: str, at: float, why: str, now: float, cause: str
) -> Iterator[Tell]:
    """Once per registration, and only for a node that went without a word."""
    known = seen.nodes.get(node) or seen.left.get(node)
    place = seen.group.place(node) if seen.group else None
    by_us = place is not None and place.leaving
    if known is None or seen.ended or by_us or node in seen.drains:
        return
    data = {"at": at, "seen_at": now, "incarnation": known.incarnation}
    event = Event(now, "loss", f"{node} is gone: {why}", node, data)
    if account(event) not in seen.told:
        yield Tell(event, cause)


def _size(seen: Seen, group: Group) -> Iterator[Action]:
    """The group's size first: what is ended only then is not replaced any more."""
    wanted = 0 if seen.ended else seen.desired
    if group.desired != wanted:
        state = seen.job.state if seen.job else "starting"
        yield SetDesired(wanted, f"the job is {state}")


def _replacements(
    seen: Seen, group: Group, now: float, policy: Policy, causes: Mapping[str, str]
) -> Iterator[Replace]:
    for place in group.places:
        machine = seen.machines.get(place.instance)
        if place.leaving or machine is None or machine.state not in ALIVE:
            continue
        if seen.ended:
            if group.desired == 0:
                yield Replace(place.instance, "the job has ended")
        elif place.instance in seen.drains:
            drain = seen.drains[place.instance]
            yield Replace(
                place.instance, f"it has a {drain.notice.kind}", causes.get(place.instance, "")
            )
        elif now >= _patience(seen, machine, policy):
            yield Replace(place.instance, "it runs, but its node does not answer")


def _drained(seen: Seen, group: Group) -> Iterator[CompleteDrain]:
    """A terminating node is done when its registration is gone, by itself or by its lease."""
    for place in group.places:
        if place.state != "Terminating:Wait":
            continue
        machine = seen.machines.get(place.instance)
        gone = machine is None or machine.state in GONE
        if gone or place.instance not in seen.nodes:
            yield CompleteDrain(place.instance)


def _strangers(seen: Seen, group: Group, now: float, policy: Policy) -> Iterator[EndMachine]:
    for machine in seen.machines.values():
        outside = machine.role == "worker" and group.place(machine.id) is None
        old = now - machine.launched_at > policy.strange_for
        if outside and old and machine.state in ALIVE:
            yield EndMachine(machine.id, "it belongs to no group")


def _patience(seen: Seen, machine: Machine, policy: Policy) -> float:
    """When a running machine without a registered node is given up; infinity with one."""
    if machine.id in seen.nodes:
        return float("inf")
    if machine.id in seen.left:
        return max(seen.left[machine.id].at, seen.since) + policy.silent_for
    return max(machine.launched_at, seen.since) + policy.boot_within


def _wake_at(seen: Seen, now: float, policy: Policy) -> float | None:
    moments = [
        _patience(seen, machine, policy)
        for machine in seen.machines.values()
        if machine.role == "worker" and machine.state in ALIVE and not seen.ended
    ]
    later = [moment for moment in moments if now < moment < float("inf")]
    return min(later, default=None)


def _reason(seen: Seen) -> str:
    state = seen.job.state if seen.job else "pending"
    if seen.group is None:
        return f"job {state}, no worker group"
    staying = sum(not place.leaving for place in seen.group.places)
    leaving = len(seen.group.places) - staying
    wanted = 0 if seen.ended else seen.desired
    return f"job {state}, {staying} of {wanted} worker nodes, {leaving} leaving"


def settled(seen: Seen) -> bool:
    """Whether AWS holds what it should, and nothing is on its way."""
    if seen.group is None:
        return True
    wanted = 0 if seen.ended else seen.desired
    return (
        seen.group.desired == wanted == len(seen.group.places)
        and all(place.state == "InService" for place in seen.group.places)
        and all(place.instance in seen.nodes for place in seen.group.places)
    )


def account(event: Event) -> tuple[str, str, str]:
    """What makes two accounts of one thing the same."""
    which = (str(event.data.get(name, "")) for name in ("kind", "source", "incarnation"))
    return event.kind, event.node, ":".join(which)


def _is_worker(seen: Seen, instance: str) -> bool:
    machine = seen.machines.get(instance)
    return machine is not None and machine.role == "worker"
