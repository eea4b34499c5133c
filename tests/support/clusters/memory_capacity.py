"""All that a cloud's worker groups have, in memory: what a replay does not need, too."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spotelastic.cloud.events import ScheduledChange
from spotelastic.cloud.memory import memory_capacity
from spotelastic.cloud.memory.memory_capacity import MemoryHooks
from spotelastic.cloud.model import (
    DRAINING,
    IN_SERVICE,
    Instance,
    LaunchQuotas,
    WorkerGroup,
    ZoneOffer,
)

__all__ = ["MemoryCapacity", "MemoryHooks"]


@dataclass
class MemoryCapacity(memory_capacity.MemoryCapacity):
    """The product's groups, with consoles, zones, pauses, and drains that time out."""

    drain_within: float = math.inf
    """Seconds that a group waits for the drain of an instance."""
    consoles: dict[str, str] = field(default_factory=dict)
    _until: float = field(default=math.inf, init=False)
    _drained_by: dict[str, float] = field(default_factory=dict, init=False)
    _suspended: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        room = self.hooks.room
        self.hooks = replace(
            self.hooks, room=lambda group: 0 if group in self._suspended else room(group)
        )

    def groups(self) -> Mapping[str, WorkerGroup]:
        with self._lock:
            self._pass_time()
            return {
                name: replace(group, suspended=name in self._suspended)
                for name, group in super().groups().items()
            }

    def instances(self) -> tuple[Instance, ...]:
        with self._lock:
            self._pass_time()
            return super().instances()

    def console(self, instance: str) -> str:
        return self.consoles.get(instance, "")

    def resume(self, group: str) -> None:
        with self._lock:
            self._suspended.discard(group)
            self._lacks()

    def suspend(self, group: str) -> None:
        """Stop the launches of a group until they are resumed."""
        with self._lock:
            self._suspended.add(group)

    def postpone(self, until: float) -> None:
        with self._lock:
            self._until = until

    def tear_down(self) -> None:
        with self._lock:
            self._groups.clear()
            self.end(tuple(self.launched))

    def zones(self, subnets: Sequence[str]) -> tuple[ZoneOffer, ...]:
        found = [
            replace(zone, subnets=its, usd=0.0, score=0)
            for zone in self.offered
            if (its := tuple(each for each in zone.subnets if each in subnets))
        ]
        return tuple(found)

    def offers(
        self, zones: Iterable[ZoneOffer], types: Sequence[str], nodes: int
    ) -> tuple[ZoneOffer, ...]:
        known = {zone.name: zone for zone in self.offered}
        return tuple(
            replace(zone, usd=known[zone.name].usd, score=known[zone.name].score) for zone in zones
        )

    def quotas(self, types: Sequence[str]) -> LaunchQuotas:
        return LaunchQuotas()

    def announce(self, instance: str, begins: float) -> None:
        """Announce that the instance is maintained from that time on."""
        change = f"change-{instance}"
        self.hooks.emit(
            ScheduledChange(f"{change}-{begins}", self.clock(), (instance,), begins, change)
        )

    def _leave(self, instance: str, *, smaller: bool) -> None:
        known = self.launched.get(instance)
        if known is not None and known.state == IN_SERVICE:
            self._drained_by[instance] = self.clock() + self.drain_within
        super()._leave(instance, smaller=smaller)

    def _pass_time(self) -> None:
        """Do what is due by now: ends of drains, and the end of groups that nobody looks after."""
        now = self.clock()
        if now >= self._until:
            self._until = math.inf
            for group in self._groups:
                self.set_desired(group, 0)
        for name, each in list(self.launched.items()):
            if each.state == DRAINING and now >= self._drained_by[name]:
                self._end(name, "")
