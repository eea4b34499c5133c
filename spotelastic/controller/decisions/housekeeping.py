"""Decides on the upkeep of a cluster: the dead man's switch, instances that fail to boot, teardown.

Pure, like `decide.py`. It postpones the dead man's switch of the worker groups, gives up on
instances that cannot boot, and takes the cluster down: once its job has ended and lingered, once a
stop was recorded, or if `up` died before it created worker groups.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from spotelastic_checkpoints import log_records

from spotelastic.cloud.model import ALIVE, UNATTENDED, Instance
from spotelastic.controller.decisions import health
from spotelastic.controller.model.observation import CausedAction, EndJobAtOnce, Observation, Tell
from spotelastic.model.job import Job
from spotelastic.model.progress import Event

BOOT = "boot"
"""Kind of the event that an instance did not boot."""
CONSOLE_LINES = 20
"""Lines of an instance's console that are kept."""
_SAID = re.compile(r"(?<!\S)(spotelastic|boot|controller|agent): \S")
_AGAIN = "starting it again"
"""End of a supervisor's line that reports a restart. The line before it says why."""
_VARIES = re.compile(r"\b(0x)?[0-9a-f]{6,}\b|\d+")


@dataclass(frozen=True, slots=True)
class HousekeepingPolicy:
    """Times and limits of the cluster's upkeep, in seconds unless a name says otherwise."""

    unattended: float = UNATTENDED
    postpone_every: float = 600.0
    boots: int = 3
    """Instances in a row that fail to boot for one cause, before no more are launched."""
    boot_within: float = 900.0
    up_within: float = 3600.0
    """Seconds after which an `up` that has created no worker group counts as dead."""
    linger: float | None = 600.0
    """Seconds that the cluster stays after its job has ended; None: until `down`."""

    @property
    def boot_memory(self) -> float:
        """Seconds after which a failed boot no longer counts.

        Where there is one node at a time and each boot hangs, failures are `boot_within` apart.
        """
        return (self.boots + 1) * self.boot_within


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What is known of the cluster besides the `Observation`."""

    minimum: int
    switch_at: float = 0.0
    stopping: bool = False
    joined: frozenset[str] = frozenset()
    """Every node that was ever registered."""
    boots: tuple[Event, ...] = ()
    asked_at: float = 0.0
    """When this leader saw that `up` was run again. Failures before that no longer count."""
    examined: frozenset[str] = frozenset()
    """Instances whose failed boot this leader has just recorded."""


@dataclass(frozen=True, slots=True)
class Postpone(CausedAction):
    """Let the dead man's switch act at `until`."""

    until: float


@dataclass(frozen=True, slots=True)
class Examine(CausedAction):
    """Record that an instance did not boot, with the end of its console."""

    machine: Instance
    why: str
    until: float
    """Until when to wait for an empty console: it is shown some time after it was written."""


@dataclass(frozen=True, slots=True)
class Teardown(CausedAction):
    """Take the whole cluster down, this controller included."""

    reason: str


Action = Postpone | Examine | Teardown


@dataclass(frozen=True, slots=True)
class Housekeeping:
    actions: tuple[Action | EndJobAtOnce | Tell, ...]
    desired: int
    """Number of worker nodes to have: fewer than asked for while none can be launched."""
    wake_at: float | None
    hopeless: bool = False
    """Whether no node is launched for now."""


def upkeep(
    seen: Observation, standing: ClusterState, now: float, policy: HousekeepingPolicy
) -> Housekeeping:
    """Decides on the cluster's upkeep. `seen.desired` is the number of nodes that was asked for."""
    if standing.stopping:
        return Housekeeping((Teardown("the cluster is being taken down"),), 0, None)
    if seen.ended:
        return _after_the_job(seen, standing, now, policy)
    if _abandoned(seen, standing, now, policy):
        reason = f"`up` was not finished, nor run again, within {policy.up_within:g} s"
        event = Event(now, "down", f"the cluster is taken down: {reason}")
        return Housekeeping((*seen.tell_once(event), Teardown(reason)), 0, None)
    actions: list[Action | EndJobAtOnce | Tell] = []
    if seen.group is not None and now >= postpone_at(standing, policy):
        actions.append(Postpone(now + policy.unattended))
    actions += _examinations(seen, standing, now, policy)
    of_the_sick, desired, again_at = _of_the_sick(seen, standing, now)
    actions += of_the_sick
    failed = hopeless(standing, seen.machines.values(), now, policy)
    if failed:
        ends: tuple[EndJobAtOnce, ...] = ()
        if len(seen.nodes) < standing.minimum:
            reason = _verdict(failed)
            ends = (EndJobAtOnce(Job("failed", now, reason)),)
            actions += ends
            event = Event(now, "job", f"failed: {reason}")
        else:
            desired = min(desired, len(seen.nodes))
            line = f"no more nodes are launched for now: {_summary(failed)}"
            event = Event(now, "limit", line, data={"kind": BOOT, "source": failed[-1].node})
        actions += seen.tell_once(event, ends)
    wake_at = min(postpone_at(standing, policy) if seen.group else math.inf, again_at)
    return Housekeeping(
        tuple(actions), desired, wake_at if wake_at < math.inf else None, bool(failed)
    )


def _of_the_sick(
    seen: Observation, standing: ClusterState, now: float
) -> tuple[tuple[EndJobAtOnce | Tell, ...], int, float]:
    """Return what follows from nodes that fell ill, and the number of nodes to have.

    Also returns when that may change.
    """
    ill = health.sick(seen.events, seen.desired, max(seen.life, standing.asked_at), now)
    if not ill.too_many:
        return (), seen.desired, math.inf
    well = len(health.healthy(seen.nodes, seen.drains))
    desired = min(seen.desired, max(seen.desired - ill.too_many, well))
    ends: tuple[EndJobAtOnce, ...] = ()
    if max(desired, well) < standing.minimum:
        ends = (EndJobAtOnce(Job("failed", now, ill.summary)),)
        event = Event(now, "job", f"failed: {ill.summary}")
    else:
        data = {"kind": health.LIMIT, "source": ill.events[-1].node}
        event = Event(now, "limit", f"not every sick node is replaced: {ill.summary}", data=data)
    return (*ends, *seen.tell_once(event, ends)), desired, ill.again_at


def _abandoned(
    seen: Observation, standing: ClusterState, now: float, policy: HousekeepingPolicy
) -> bool:
    """Whether only control nodes were ever created, and no `up` creates the rest.

    A leader that has postponed a group's switch has seen that group, even if an answer leaves
    it out.
    """
    begun = seen.job is not None or seen.groups or standing.joined or standing.switch_at
    return not begun and now >= max(seen.since, standing.asked_at) + policy.up_within


def _after_the_job(
    seen: Observation, standing: ClusterState, now: float, policy: HousekeepingPolicy
) -> Housekeeping:
    """Whether the cluster lingers after its job.

    Nodes that are kept that long are looked after, too.
    """
    assert seen.job is not None
    end = math.inf if policy.linger is None else seen.job.at + policy.linger
    if now >= end:
        reason = f"the job has {seen.job.state} {policy.linger:g} s ago"
        return Housekeeping((Teardown(reason),), 0, None)
    if not seen.staying:
        return Housekeeping((), 0, end if end < math.inf else None)
    due = postpone_at(standing, policy)
    postponed = (Postpone(now + policy.unattended),) if now >= due else ()
    return Housekeeping(postponed, 0, min(end, due if now < due else now + policy.postpone_every))


def postpone_at(standing: ClusterState, policy: HousekeepingPolicy) -> float:
    """Return when the dead man's switch is to be postponed next."""
    return standing.switch_at - policy.unattended + policy.postpone_every


def _examinations(
    seen: Observation, standing: ClusterState, now: float, policy: HousekeepingPolicy
) -> Iterator[Examine]:
    told = standing.examined | {event.node for event in standing.boots}
    for machine in seen.machines.values():
        if machine.role != "worker" or machine.id in told or machine.id in standing.joined:
            continue
        due = seen.booted_from(machine) + policy.boot_within
        if machine.reason == "Client.InstanceInitiatedShutdown":
            yield Examine(machine, "it has shut itself down", due)
        elif machine.state in ALIVE and now >= due:
            yield Examine(machine, f"it has not joined within {policy.boot_within:g} s", due)


def hopeless(
    standing: ClusterState, machines: Iterable[Instance], now: float, policy: HousekeepingPolicy
) -> tuple[Event, ...]:
    """Return the last boots if enough in a row have failed for one cause, else nothing."""
    once = {event.node: event for event in standing.boots}
    recent = sorted(
        (
            event
            for event in once.values()
            if event.data["launched"] >= standing.asked_at and now - event.at <= policy.boot_memory
        ),
        key=lambda event: float(event.data["launched"]),
    )[-policy.boots :]
    if len(recent) < policy.boots or len({event.data["cause"] for event in recent}) > 1:
        return ()
    first = float(recent[0].data["launched"])
    between = any(m.id in standing.joined and m.launched_at >= first for m in machines)
    return () if between else tuple(recent)


def said(console: str) -> str:
    """Return why an instance did not boot, from the end of its console."""
    lines = [_as_text(line).strip() for line in console.splitlines()]
    lines = [line for line in lines if line and not line.endswith(_AGAIN)]
    ours = [line[match.start() :] for line in lines if (match := _SAID.search(line))]
    last = (ours or lines or ["its console is empty"])[-1]
    return last.removeprefix("boot: ").rstrip(":")


def _as_text(line: str) -> str:
    """Return a line of the console as people read it, where it is a JSON record."""
    message = log_records.message_of(line)
    return line if message is None else f"boot: {message}".partition("\n")[0]


def cause(line: str) -> str:
    """Return a failure line without what differs between instances.

    So equal causes compare equal.
    """
    return _VARIES.sub("#", line)


def _summary(failed: tuple[Event, ...]) -> str:
    return f"{len(failed)} instances in a row did not boot: {failed[-1].data['said']}"


def _verdict(failed: tuple[Event, ...]) -> str:
    last = failed[-1]
    return f"{_summary(failed)}\nThe console of {last.node} ends:\n{last.data['console']}"
