"""Worker groups and instances in memory, for replays; the tests have a whole cloud of them.

They behave as the port says. What else happens to instances (a warning, a loss, a market without
room) is up to the owner, and so is what a launch or an end means: `MemoryHooks` are called then.
Time is the owner's as well: nothing happens on a thread of its own.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spotelastic.clock import Clock
from spotelastic.cloud.events import WARNED_AHEAD, CloudEvent, SpotWarning, StateChange
from spotelastic.cloud.model import (
    ALIVE,
    DRAINING,
    IN_SERVICE,
    GroupMember,
    GroupNames,
    Instance,
    WorkerGroup,
    ZoneOffer,
)

NAMES = GroupNames("workers", "workers-on-demand")


def _nothing(_: object) -> None: ...


@dataclass(frozen=True, slots=True)
class MemoryHooks:
    """What the owner of the groups does when they change. Called with the groups' lock held."""

    room: Callable[[str], float] = lambda group: math.inf
    """Returns how many more instances a group can launch now."""
    launched: Callable[[Instance], None] = _nothing
    drains: Callable[[str], None] = _nothing
    """An instance is to end, and its group waits for its drain."""
    ended: Callable[[str], None] = _nothing
    emit: Callable[[CloudEvent], None] = _nothing
    """Receives what the cloud says about instances."""
    lacks: Callable[[], None] | None = None
    """A group may lack instances: `launch_missing` is due. By default it is called at once."""


@dataclass(frozen=True, slots=True)
class LaunchedInstance:
    """An instance, and the group that has launched it."""

    instance: Instance
    group: str
    state: str
    """State of the group's member; "" once the instance has left the group."""


@dataclass(slots=True)
class _Group:
    name: str
    spot: bool
    desired: int = 0
    subnets: tuple[str, ...] = ()


@dataclass(slots=True)
class MemoryCapacity:
    """The worker groups of one cluster: one of spot instances, and one on demand."""

    clock: Clock
    hooks: MemoryHooks = field(default_factory=MemoryHooks)
    names: GroupNames = NAMES
    offered: tuple[ZoneOffer, ...] = (ZoneOffer("a", ("subnet-a",)),)
    """The zones in which groups may launch, with the price and score of each."""
    type: str = "memory"
    name: Callable[[int], str] = "i-{}".format
    """Names the n-th instance; `address` gives its address."""
    address: Callable[[int], str] = lambda number: ""
    launched: dict[str, LaunchedInstance] = field(default_factory=dict)
    """All instances, by id, until `forget`."""
    _count: int = field(default_factory=int, init=False)
    _groups: dict[str, _Group] = field(default_factory=dict, init=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False)

    def __post_init__(self) -> None:
        for name in (self.names.spot, self.names.on_demand):
            group = _Group(name, name == self.names.spot, subnets=self._all_subnets)
            self._groups[name] = group

    # -- observe ---------------------------------------------------------------------------------

    def groups(self) -> Mapping[str, WorkerGroup]:
        """Return the worker groups, by name."""
        with self._lock:
            return {name: self._described(group) for name, group in self._groups.items()}

    def instances(self) -> tuple[Instance, ...]:
        """Return all instances that were not forgotten."""
        with self._lock:
            return tuple(each.instance for each in self.launched.values())

    def _described(self, group: _Group) -> WorkerGroup:
        members = tuple(
            GroupMember(name, each.state)
            for name, each in sorted(self.launched.items())
            if each.group == group.name and each.state
        )
        return WorkerGroup(group.name, group.desired, members, group.subnets, self._all_subnets)

    @property
    def _all_subnets(self) -> tuple[str, ...]:
        return tuple(subnet for zone in self.offered for subnet in zone.subnets)

    # -- instances -------------------------------------------------------------------------------

    def replace(self, instance: str) -> None:
        """End an instance of a group, which launches another one."""
        self._leave(instance, smaller=False)

    def remove(self, instance: str) -> None:
        """End an instance of a group, and shrink the group by one."""
        self._leave(instance, smaller=True)

    def complete_drain(self, group: str, instance: str) -> None:
        """Let the group end an instance that has drained."""
        with self._lock:
            known = self.launched.get(instance)
            if known is not None and known.state == DRAINING:
                self._end(instance, "")

    def end(self, instances: Sequence[str]) -> None:
        """End instances at once."""
        with self._lock:
            for instance in instances:
                self._end(instance, "")

    def _leave(self, instance: str, *, smaller: bool) -> None:
        with self._lock:
            known = self.launched.get(instance)
            if known is None or known.state != IN_SERVICE:
                return
            self._groups[known.group].desired -= smaller
            self.launched[instance] = replace(known, state=DRAINING)
            self.hooks.drains(instance)
            self._lacks()

    # -- groups ----------------------------------------------------------------------------------

    def set_desired(self, group: str, desired: int) -> None:
        """Set the number of instances that the group keeps; the newest go if it has more."""
        with self._lock:
            self._groups[group].desired = desired
            staying = self._staying(group)
            for name in reversed(staying[desired:]):
                self._leave(name, smaller=False)
            self._lacks()

    def set_subnets(self, group: str, subnets: Sequence[str]) -> None:
        """Set the subnets in which the group launches from now on."""
        with self._lock:
            self._groups[group].subnets = tuple(subnets)
            self._lacks()

    # -- what the owner lets happen --------------------------------------------------------------

    def launch_missing(self) -> None:
        """Launch what the groups lack, as far as there is room."""
        with self._lock:
            for group in self._groups.values():
                lacking = group.desired - len(self._staying(group.name))
                if lacking > 0 and group.subnets:
                    for _ in range(int(min(lacking, self.hooks.room(group.name)))):
                        self._launch(group)

    def warn(self, instance: str, ahead: float = WARNED_AHEAD) -> None:
        """Announce that the instance is taken back in so many seconds."""
        now = self.clock()
        self.hooks.emit(SpotWarning(f"warning-{instance}", now, instance, ahead))

    def lose(self, instance: str, reason: str = "Server.SpotInstanceTermination") -> None:
        """Take an instance at once."""
        with self._lock:
            self._end(instance, reason)

    def forget(self, instance: str) -> None:
        """Show an ended instance no more."""
        with self._lock:
            self.launched.pop(instance, None)

    def _launch(self, group: _Group) -> None:
        self._count += 1
        name = self.name(self._count)
        zone = next((z.name for z in self.offered if group.subnets[0] in z.subnets), "")
        made = Instance(
            name,
            "worker",
            "running",
            self.type,
            zone,
            self.address(self._count),
            group.spot,
            self.clock(),
        )
        self.launched[name] = LaunchedInstance(made, group.name, IN_SERVICE)
        self.hooks.launched(made)

    def _end(self, instance: str, reason: str) -> None:
        known = self.launched.get(instance)
        if known is None or known.instance.state not in ALIVE:
            return
        gone = replace(known.instance, state="terminated", reason=reason)
        self.launched[instance] = replace(known, instance=gone, state="")
        self.hooks.ended(instance)
        self.hooks.emit(StateChange(f"gone-{instance}", self.clock(), instance, "terminated"))
        self._lacks()

    def _staying(self, group: str) -> list[str]:
        return [
            name
            for name, each in self.launched.items()
            if each.group == group and each.state == IN_SERVICE
        ]

    def _lacks(self) -> None:
        if self.hooks.lacks is None:
            self.launch_missing()
        else:
            self.hooks.lacks()
