"""Decides what the leading controller does next (pure); `effects/executor.py` performs it.

From one observation (worker groups, states of instances, etcd, the cloud's messages) follows a
list of actions, each with the id of the message that caused it. Deciding again from the next
observation is always right: nothing but observations is remembered between two decisions, so that
another controller may take over at any point.

By subject: what messages and losses cause (`interruptions.py`), what people ask for
(`commands.py`), how many nodes of which kind there should be (`capacity.py`) and in which zone
(`zone_packing.py`, `short_lives.py`), what ends the job (`limits.py`), what is announced for a
later time (`scheduled.py`), and here each node's fate.
"""

import math
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace

from spotelastic.cloud.model import ALIVE, DRAINING, GONE, IN_SERVICE, Instance, WorkerGroup
from spotelastic.controller.decisions import (
    capacity,
    commands,
    health,
    interruptions,
    limits,
    scheduled,
    short_lives,
    slow_nodes,
    zone_packing,
)
from spotelastic.controller.model.observation import (
    Action,
    AskToEnd,
    CompleteDrain,
    ControllerPolicy,
    Discard,
    DrainNode,
    EndJobAtOnce,
    EndMachine,
    Forget,
    Observation,
    Remove,
    Replace,
    Reply,
    Resettle,
    Revive,
    SetDesired,
    Tell,
    account,
)
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.notice import Drain
from spotelastic.model.progress import Event


@dataclass(frozen=True, slots=True)
class ControllerDecision:
    actions: tuple[Action, ...]
    reason: str
    """One line for people; the same for as long as nothing changes."""
    wake_at: float | None
    """When to decide again even if nothing happens; None: no need."""


def decide(seen: Observation, now: float, policy: ControllerPolicy) -> ControllerDecision:
    actions = [*interruptions.read(seen, now), *health.blame(seen, now)]
    seen = _with_drains(seen, actions)
    actions += scheduled.due(seen, now)
    seen = _with_drains(seen, actions)
    told = {account(a.event) for a in actions if isinstance(a, Tell)}
    seen = replace(seen, told=seen.told | told)
    actions += interruptions.losses(seen, now)
    actions += short_lives.tell(seen, now, policy)
    actions += _forgotten(seen)
    actions += commands.read(seen, now, policy.command_lifetime)
    seen, gone = _with_effects(seen, actions)
    if seen.wanted and seen.settings and seen.settings != seen.wanted and not seen.ended:
        actions.append(Resettle(seen.wanted))
    if seen.groups:
        actions += _end(seen, now, policy)
        seen, _ = _with_effects(seen, actions)
        sized = list(capacity.change_sizes(seen, now, policy))
        removed = gone | {action.instance for action in sized if isinstance(action, Remove)}
        actions += sized
        actions += zone_packing.change(seen, now, policy, removed)
        actions += scheduled.replacement(seen, removed, now, policy)
        for group in seen.groups:
            actions += _replacements(seen, group, removed, now, policy)
        if not any(isinstance(each, Replace | Remove | SetDesired) for each in actions):
            actions += slow_nodes.replacement(seen, now, policy)
        actions += _strangers(seen, now, policy)
    for group in seen.groups:
        actions += _drained(seen, group, now, policy)
    actions = list(capacity.within_reach(seen, actions, now, policy))
    actions.sort(key=_rank)
    return ControllerDecision(
        tuple(actions), _reason(seen, now, policy), _wake_at(seen, now, policy)
    )


def _with_drains(seen: Observation, actions: Sequence[Action]) -> Observation:
    """Return the observation with the drains that the actions write."""
    new = {each.drain.node: each.drain for each in actions if isinstance(each, DrainNode)}
    return replace(seen, drains={**new, **seen.drains})


def _rank(action: Action) -> int:
    """Orders actions: the record follows what is done, and messages are deleted last.

    A message is deleted once what it caused is done.
    """
    match action:
        case Discard() | Reply():
            return 2
        case Tell():
            return 1
    return 0


def urgent(
    seen: Observation, nodes: Set[str], now: float, policy: ControllerPolicy
) -> tuple[Action, ...]:
    """Decides about these nodes and messages before the cloud has been looked at again."""
    causes = {message.event.id for message in seen.messages}

    def concerns(action: Action) -> bool:
        its = isinstance(action, Replace | Remove) and action.instance in nodes
        return its or (bool(action.cause) and action.cause in causes)

    return tuple(filter(concerns, decide(seen, now, policy).actions))


def ends(seen: Observation, now: float, policy: ControllerPolicy) -> tuple[Action, ...]:
    """Return what a limit asks for. It concerns etcd alone, and needs no answer of the cloud."""
    return tuple(_end(seen, now, policy)) if seen.groups else ()


def _with_effects(seen: Observation, actions: Sequence[Action]) -> tuple[Observation, set[str]]:
    """Return the observation as it will be once these actions are done.

    Also returns the instances that the actions end.
    """
    for action in actions:
        match action:
            case AskToEnd(ending):
                seen = replace(seen, ending=ending)
            case EndJobAtOnce(job):
                seen = replace(seen, job=job)
            case Revive(job):
                seen = replace(seen, job=job, ending=None)
    return seen, {action.instance for action in actions if isinstance(action, Replace)}


def _end(seen: Observation, now: float, policy: ControllerPolicy) -> Iterator[Action]:
    """End the job for a limit, or because its last save took too long."""
    end = limits.verdict(seen, now, policy)
    if end is not None:
        life = {"incarnation": str(seen.life)}
        step = f"the newest commit is of step {seen.committed}"
        limit = Event(now, "limit", f"the job is {end.state}: {end.reason}; {step}", data=life)
        ends = AskToEnd(end)
        yield ends
        yield from seen.tell_once(limit, (ends,))
        seen = replace(seen, ending=end)
    job = limits.overdue(seen, now, policy)
    if job is not None:
        over = EndJobAtOnce(job)
        yield over
        yield Tell(Event(now, "job", f"{job.state}: {job.reason}"), after=(over,))


def _forgotten(seen: Observation) -> Iterator[Forget]:
    """Drop registrations of instances that EC2 calls gone.

    An instance that is shutting down may still register again; a terminated one does nothing any
    more.
    """
    for name, node in seen.nodes.items():
        machine = seen.machines.get(name)
        if machine is not None and machine.role == "worker" and machine.state == "terminated":
            yield Forget(node)


def _replacements(
    seen: Observation, group: WorkerGroup, removed: set[str], now: float, policy: ControllerPolicy
) -> Iterator[Replace]:
    for member in group.members:
        machine = seen.machines.get(member.instance)
        if member.leaving or machine is None:
            continue
        if seen.ended:
            if group.desired == 0 and machine.state in ALIVE:
                yield Replace(member.instance, "the job has ended")
        elif member.instance in removed:
            continue
        elif seen.ending is not None:
            continue  # nobody new is needed any more
        elif machine.state in GONE:  # which its group may find out a minute later
            yield Replace(member.instance, f"the cloud says that it is {machine.state}")
        elif member.instance in seen.drains:
            reason = _why_drained(seen.drains[member.instance])
            yield Replace(member.instance, reason, cause=seen.warning(member.instance))
        elif now >= _patience(seen, machine, policy):
            yield Replace(member.instance, "it runs, but its node does not answer")


def _why_drained(drain: Drain) -> str:
    if drain.notice.kind is InterruptionKind.UNHEALTHY:
        return "it is sick"
    return "it is to leave" if drain.notice.kind.traits.is_asked_for else "it has a notice"


def _drained(
    seen: Observation, group: WorkerGroup, now: float, policy: ControllerPolicy
) -> Iterator[CompleteDrain]:
    """Completes the termination of an instance.

    That is due when the node's registration is gone, or when the cloud should have taken the
    instance and has not. It is replaced then, and counts no more.
    """
    for member in group.members:
        if member.state != DRAINING:
            continue
        machine = seen.machines.get(member.instance)
        gone = machine is None or machine.state in GONE
        late = now >= _taken_by(seen, member.instance, policy)
        if gone or late or member.instance not in seen.nodes:
            yield CompleteDrain(member.instance, group.name)


def _taken_by(seen: Observation, instance: str, policy: ControllerPolicy) -> float:
    """Return when an instance whose end is announced is gone; infinity for any other."""
    drain = seen.drains.get(instance)
    notice = drain.notice if drain is not None else None
    if notice is None or notice.deadline is None or notice.kind.traits.is_asked_for:
        return math.inf
    return notice.deadline + policy.taken_within


def _strangers(seen: Observation, now: float, policy: ControllerPolicy) -> Iterator[EndMachine]:
    placed = {member.instance for member in seen.members}
    for machine in seen.machines.values():
        outside = machine.role == "worker" and machine.id not in placed
        old = now - machine.launched_at > policy.strange_for
        drain = seen.drains.get(machine.id) if machine.id in seen.nodes else None
        # One that somebody has taken out of its group is given the time to save.
        saves = drain is not None and now < (drain.notice.deadline or 0.0)
        if outside and old and not saves and machine.state in ALIVE:
            yield EndMachine(machine.id, "it belongs to no group")


def _patience(seen: Observation, machine: Instance, policy: ControllerPolicy) -> float:
    """Return when a running instance without a registered node is given up.

    Infinity for an instance with a node.
    """
    if machine.id in seen.nodes:
        return math.inf
    left = seen.left.get(machine.id)
    if left is None:
        return seen.booted_from(machine) + policy.boot_within
    prepared = seen.preparing.get(machine.id, 0.0)
    if prepared > left.at or seen.restarts(machine.id, left.incarnation):
        return max(left.at, seen.since, prepared) + policy.boot_within
    return max(left.at, seen.since) + policy.silent_for


def _wake_at(seen: Observation, now: float, policy: ControllerPolicy) -> float | None:
    moments = [
        _patience(seen, machine, policy)
        for machine in seen.machines.values()
        if machine.role == "worker" and machine.state in ALIVE and not seen.ended
    ]
    moments += [
        _taken_by(seen, member.instance, policy)
        for group in seen.groups
        for member in group.members
        if member.state == DRAINING
    ]
    if not seen.ended:
        moments += [*capacity.wakes(seen, policy), *limits.wakes(seen, now, policy)]
        moments += scheduled.wakes(seen, now, policy)
        moments += short_lives.wakes(seen, policy)
    later = [moment for moment in moments if now < moment < math.inf]
    return min(later, default=None)


def _reason(seen: Observation, now: float, policy: ControllerPolicy) -> str:
    state = seen.job.state if seen.job else "pending"
    if not seen.groups:
        return f"job {state}, no worker group"
    staying = sum(group.staying for group in seen.groups)
    leaving = sum(len(group.members) for group in seen.groups) - staying
    wanted = sum(size.wanted for size in capacity.sizes(seen, now, policy))
    return f"job {state}, {staying} of {wanted} worker nodes, {leaving} leaving"


def settled(seen: Observation, now: float, policy: ControllerPolicy) -> bool:
    """Whether the cloud has what it should have, and nothing is under way."""
    return all(
        size.group.desired == size.wanted == len(size.group.members)
        and all(member.state == IN_SERVICE for member in size.group.members)
        and all(seen.ended or member.instance in seen.nodes for member in size.group.members)
        and (seen.ended or not size.group.launches_held)
        for size in capacity.sizes(seen, now, policy)
    )
