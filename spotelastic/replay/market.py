"""Simulates the AWS side of a replay: a spot worker group fed by a trace, and an on-demand group.

It behaves as AWS does. A group launches up to its desired size as soon as the market has a free
node. A terminating instance stays at its lifecycle hook until that is completed. A node that is
taken back is announced on the event bus. On-demand nodes can always be had.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from spotelastic.cloud.events import CloudEvent, SpotWarning, StateChange
from spotelastic.cloud.model import ALIVE, GroupMember, Instance, WorkerGroup
from spotelastic.controller.model.observation import Message
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.notice import Drain, Notice
from spotelastic.replay.nodes import SimulatedNodes
from spotelastic.replay.scenario import Scenario
from spotelastic.replay.timeline import Soon, Timeline
from spotelastic.replay.trace import Span, Trace

SPOT, ON_DEMAND = "workers", "workers-on-demand"
TYPE = "replayed"
ZONE = "a"
POLLED = 0.5
"""Seconds until an agent, which asks once a second, sees a notice."""
HOOK = 120.0
"""Seconds that a terminating node may take for its last save."""
BUS = 1.0
"""Seconds that an event takes to reach the queue."""


@dataclass(frozen=True, slots=True)
class Rented:
    """An instance that a group has launched."""

    machine: Instance
    group: str
    span: Span | None
    """The node of the trace that it is; None for an on-demand instance, which is never
    taken back.
    """
    state: str
    """State of the group member; empty once the instance has left the group."""


class SimulatedMarket:
    """The market, the two groups, and the queue of events."""

    def __init__(
        self,
        timeline: Timeline,
        trace: Trace,
        scenario: Scenario,
        nodes: SimulatedNodes,
        changed: Callable[[], None],
    ) -> None:
        """Schedule everything in the trace.

        `changed` is called when AWS has something new to show.
        """
        self.desired = {SPOT: 0, ON_DEMAND: 0}
        """Desired size of each group."""
        self.rented: dict[str, Rented] = {}
        """Instances by id."""
        self.messages: dict[str, Message] = {}
        """Messages in the queue, by receipt."""
        self._timeline, self._scenario = timeline, scenario
        self._nodes, self._changed = nodes, changed
        self._spans: dict[Span, str] = {}
        """Nodes that the market has, with the instance that runs on each; empty for none."""
        self._launched = 0
        self._told = 0
        self._fill = Soon(timeline, 0.1, self._launch_missing)
        for span in trace.spans:
            timeline.at(span.start, partial(self._appear, span))
            if span.end < math.inf:
                notice = max(span.start, span.end - scenario.notice)
                timeline.at(notice, partial(self._warn, span))
                timeline.at(span.end, partial(self._take, span))

    # -- the market -------------------------------------------------------------------------------

    def _appear(self, span: Span) -> None:
        self._spans[span] = ""
        self._fill()

    def _warn(self, span: Span) -> None:
        """Take a node off the market, and send a notice to the instance on it."""
        instance = self._spans.pop(span)
        if not instance or not self._scenario.notice:
            return
        now = self._timeline.now
        self._tell(SpotWarning(f"warning-{instance}", now, instance))
        notice = Notice(
            InterruptionKind.SPOT_INTERRUPTION, instance, "imds", now, now + POLLED, span.end
        )
        self._timeline.after(POLLED, lambda: self._nodes.drain(Drain(instance, notice)))

    def _take(self, span: Span) -> None:
        for name, rented in list(self.rented.items()):
            if rented.span == span:
                self._end(name)

    # -- the group --------------------------------------------------------------------------------

    def group(self, name: str) -> WorkerGroup:
        """Return the group as Auto Scaling describes it."""
        mine = ((id, each.state) for id, each in self.rented.items() if each.group == name)
        members = sorted((GroupMember(id, state) for id, state in mine if state), key=_instance)
        return WorkerGroup(name, self.desired[name], tuple(members))

    def set_desired(self, group: str, size: int) -> None:
        """Set the size of a group."""
        self.desired[group] = size
        self._fill()

    def terminate(self, instance: str, *, smaller: bool = False) -> None:
        """Terminate an instance. The group launches another, unless it becomes `smaller`."""
        rented = self.rented[instance]
        if rented.state == "InService":
            self.desired[rented.group] -= smaller
            self.rented[instance] = replace(rented, state="Terminating:Wait")
            now = self._timeline.now
            leaves = Notice(
                InterruptionKind.PLANNED, instance, "imds", now, now + POLLED, now + HOOK
            )
            self._timeline.after(POLLED, lambda: self._nodes.drain(Drain(instance, leaves)))
            self._fill()
            self._changed()

    def complete(self, instance: str) -> None:
        """Complete the lifecycle hook of an instance, which ends it."""
        self._end(instance)

    def end(self, instance: str) -> None:
        """End an instance at once."""
        self._end(instance)

    def _launch_missing(self) -> None:
        free = [span for span, instance in self._spans.items() if not instance]
        for span in free[: self._missing(SPOT)]:
            self._launch(SPOT, span)
        for _ in range(self._missing(ON_DEMAND)):
            self._launch(ON_DEMAND, None)

    def _missing(self, group: str) -> int:
        mine = [each for each in self.rented.values() if each.group == group]
        return max(0, self.desired[group] - sum(each.state == "InService" for each in mine))

    def _launch(self, group: str, span: Span | None) -> None:
        self._launched += 1
        name = f"i-{self._launched:04}"
        if span is not None:
            self._spans[span] = name
        now, spot = self._timeline.now, group == SPOT
        machine = Instance(name, "worker", "running", TYPE, ZONE, "", spot, now)
        self.rented[name] = Rented(machine, group, span, "InService")
        self._timeline.after(self._scenario.machines.boot, lambda: self._booted(name))
        self._changed()

    def _booted(self, name: str) -> None:
        rented = self.rented.get(name)  # EC2 forgets instances that ended long ago.
        if rented is not None and rented.machine.state in ALIVE:
            self._nodes.join(name, ZONE, spot=rented.machine.spot)

    def _end(self, name: str) -> None:
        rented = self.rented[name]
        if rented.machine.state not in ALIVE:
            return
        machine = replace(rented.machine, state="terminated")
        self.rented[name] = replace(rented, machine=machine, state="")
        if rented.span is not None and rented.span in self._spans:
            self._spans[rented.span] = ""
        if name in self._nodes.seen.nodes:
            self._nodes.vanish(name)
        self._tell(StateChange(f"gone-{name}", self._timeline.now, name, "terminated"))
        self._fill()
        self._changed()

    def _tell(self, event: CloudEvent) -> None:
        self._told += 1
        receipt = f"r{self._told}"

        def arrive() -> None:
            self.messages[receipt] = Message(receipt, event, self._timeline.now)
            self._changed()

        self._timeline.after(BUS, arrive)


def _instance(member: GroupMember) -> str:
    return member.instance
