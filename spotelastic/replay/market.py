"""Simulates the cloud of a replay: the groups of memory, fed by the market that a trace describes.

A group launches up to its desired size as soon as the market has a free node. A terminating
instance stays until its drain is completed. A node that is taken back is announced on the event
bus. On-demand nodes can always be had. There may be several zones, each with its own trace: the
group launches in the first one (`benchmarks/` has a market in which it goes on to others).
"""

import math
from collections.abc import Callable, Mapping
from functools import partial

from spotelastic.cloud.events import CloudEvent
from spotelastic.cloud.memory.memory_capacity import MemoryCapacity, MemoryHooks
from spotelastic.cloud.model import ALIVE, GroupNames, Instance, ZoneOffer
from spotelastic.controller.model.observation import Message
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.notice import Drain, Notice
from spotelastic.replay.nodes import SimulatedNodes
from spotelastic.replay.scenario import Scenario
from spotelastic.replay.timeline import Soon, Timeline
from spotelastic.replay.trace import Span, Trace

GROUPS = GroupNames("workers", "workers-on-demand")
TYPE = "replayed"
ZONE = "a"
"""Name of the zone of a replay."""
POLLED = 0.5
"""Seconds until an agent, which asks once a second, sees a notice."""
HOOK = 120.0
"""Seconds that a terminating node may take for its last save."""
BUS = 1.0
"""Seconds that an event takes to reach the queue."""


class SimulatedMarket:
    """The market, the two groups, and the queue of events."""

    def __init__(
        self,
        timeline: Timeline,
        traces: Mapping[str, Trace],
        scenario: Scenario,
        nodes: SimulatedNodes,
        changed: Callable[[], None],
    ) -> None:
        """Schedule everything in the traces of these zones, given by name.

        `changed` is called when the cloud has something new to show.
        """
        self.messages: dict[str, Message] = {}
        """Messages in the queue, by receipt."""
        self._timeline, self._scenario = timeline, scenario
        self._nodes, self._changed = nodes, changed
        self._spans: dict[tuple[str, Span], str] = {}
        """Nodes that each zone has, with the instance that runs on each; empty for none."""
        self._taken: dict[str, tuple[str, Span]] = {}
        """The node of the trace that each spot instance runs on. Others are never taken back."""
        self._told = 0
        self._launches_in = next(iter(traces))
        self._fill = Soon(timeline, 0.1, self._launch_missing)
        hooks = MemoryHooks(
            room=self._room,
            launched=self._launched,
            drains=self._drains,
            ended=self._ended,
            emit=self._tell,
            lacks=self._fill,
        )
        zones = tuple(ZoneOffer(zone, (f"subnet-{zone}",)) for zone in traces)
        self.capacity = MemoryCapacity(
            lambda: timeline.now, hooks, GROUPS, zones, TYPE, "i-{:04}".format
        )
        """The two groups, as the controller sees them."""
        for zone, trace in traces.items():
            for span in trace.spans:
                self._schedule(zone, span)

    def _schedule(self, zone: str, span: Span) -> None:
        timeline = self._timeline
        timeline.at(span.start, partial(self._appear, zone, span))
        if span.end < math.inf:
            notice = max(span.start, span.end - self._scenario.notice)
            timeline.at(notice, partial(self._warn, zone, span))
            timeline.at(span.end, partial(self._take, zone, span))

    # -- the market -------------------------------------------------------------------------------

    def _free(self, zone: str) -> int:
        return sum(its == zone and not each for (its, _), each in self._spans.items())

    def _appear(self, zone: str, span: Span) -> None:
        self._spans[zone, span] = ""
        self._fill()

    def _warn(self, zone: str, span: Span) -> None:
        """Take a node off the market, and send a notice to the instance on it."""
        instance = self._spans.pop((zone, span))
        if not instance or not self._scenario.notice:
            return
        now = self._timeline.now
        self.capacity.warn(instance)
        notice = Notice(
            InterruptionKind.SPOT_INTERRUPTION, instance, "imds", now, now + POLLED, span.end
        )
        self._timeline.after(POLLED, lambda: self._nodes.drain(Drain(instance, notice)))

    def _take(self, zone: str, span: Span) -> None:
        for name in [name for name, its in self._taken.items() if its == (zone, span)]:
            self.capacity.lose(name)

    # -- the groups -------------------------------------------------------------------------------

    def _launch_missing(self) -> None:
        self.capacity.launch_missing()

    def _room(self, group: str) -> float:
        return self._free(self._launches_in) if group == GROUPS.spot else math.inf

    def _launched(self, instance: Instance) -> None:
        if instance.spot:
            free = (each for each, taken in self._spans.items() if not taken)
            place = next(each for each in free if each[0] == self._launches_in)
            self._spans[place] = instance.id
            self._taken[instance.id] = place
        self._timeline.after(self._scenario.machines.boot, lambda: self._booted(instance.id))
        self._changed()

    def _booted(self, name: str) -> None:
        known = self.capacity.launched.get(name)  # those that ended long ago are forgotten
        if known is not None and known.instance.state in ALIVE:
            self._nodes.join(name, known.instance.zone, spot=known.instance.spot)

    def _drains(self, name: str) -> None:
        now = self._timeline.now
        leaves = Notice(InterruptionKind.PLANNED, name, "imds", now, now + POLLED, now + HOOK)
        self._timeline.after(POLLED, lambda: self._nodes.drain(Drain(name, leaves)))
        self._changed()

    def _ended(self, name: str) -> None:
        place = self._taken.pop(name, None)
        if place is not None and place in self._spans:
            self._spans[place] = ""
        if name in self._nodes.seen.nodes:
            self._nodes.vanish(name)
        self._changed()

    def _tell(self, event: CloudEvent) -> None:
        self._told += 1
        receipt = f"r{self._told}"

        def arrive() -> None:
            self.messages[receipt] = Message(receipt, event, self._timeline.now)
            self._changed()

        self._timeline.after(BUS, arrive)
