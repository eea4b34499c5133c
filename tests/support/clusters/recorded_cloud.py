"""The cloud in memory, whose calls are recorded in their order, and may fail."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import IO

from support.clusters.memory_bucket import MemoryBucket
from support.clusters.memory_capacity import MemoryCapacity, MemoryHooks

from spotelastic.clock import Clock
from spotelastic.cloud.events import CloudEvent
from spotelastic.cloud.memory.memory_capacity import LaunchedInstance
from spotelastic.cloud.memory.queue import MemoryQueue
from spotelastic.cloud.model import IN_SERVICE, Instance, WorkerGroup, ZoneOffer
from spotelastic.cloud.port import Cloud, ClusterPrices
from spotelastic.errors import Unavailable
from spotelastic.model.requests.command import Command


@dataclass
class CloudCalls:
    """The calls to a cloud, in their order, and what befalls them."""

    calls: list[str] = field(default_factory=list)
    during: dict[str, Callable[[], object]] = field(default_factory=dict)
    """What happens within the next call of that name, once."""
    throttled: frozenset[str] = frozenset()
    """Calls that fail until further notice."""

    def __call__(self, name: str) -> None:
        self.calls.append(name)
        self.during.pop(name, lambda: None)()
        if name in self.throttled:
            raise Unavailable("the cloud is busy")


class RecordedCapacity(MemoryCapacity):
    """Groups that launch nothing by themselves: a test says which instances there are."""

    def __init__(self, log: CloudCalls, clock: Clock) -> None:
        super().__init__(clock, MemoryHooks(lacks=lambda: None), offered=(), type="t")
        self.log = log

    def has(self, name: str, launched_at: float) -> None:
        """There is another instance, in the first group."""
        made = Instance(name, "worker", "running", self.type, "z", "", False, launched_at)
        self.launched[name] = LaunchedInstance(made, self.names.spot, IN_SERVICE)
        super().set_desired(self.names.spot, super().groups()[self.names.spot].desired + 1)

    def had(self, name: str, launched_at: float) -> None:
        """An instance that has ended is still shown."""
        self.has(name, launched_at)
        super().remove(name)
        self.lose(name)

    def groups(self) -> dict[str, WorkerGroup]:
        self.log("groups")
        return {**super().groups()}

    def instances(self) -> tuple[Instance, ...]:
        self.log("instances")
        return super().instances()

    def console(self, instance: str) -> str:
        self.log(f"console {instance}")
        return "no"

    def replace(self, instance: str) -> None:
        self.log(f"replace {instance}")
        super().replace(instance)

    def remove(self, instance: str) -> None:
        self.log(f"remove {instance}")
        super().remove(instance)

    def complete_drain(self, group: str, instance: str) -> None:
        self.log(f"complete {instance}")
        super().complete_drain(group, instance)

    def set_desired(self, group: str, desired: int) -> None:
        self.log("size")
        super().set_desired(group, desired)

    def set_subnets(self, group: str, subnets: Sequence[str]) -> None:
        self.log(f"launch in {', '.join(subnets)}")
        super().set_subnets(group, subnets)

    def postpone(self, until: float) -> None:
        self.log("postpone")
        super().postpone(until)

    def zones(self, subnets: Sequence[str]) -> tuple[ZoneOffer, ...]:
        if subnets:
            self.log("zones")
        return super().zones(subnets)

    def offers(
        self, zones: Iterable[ZoneOffer], types: Sequence[str], nodes: int
    ) -> tuple[ZoneOffer, ...]:
        self.log("prices")
        return super().offers(zones, types, nodes)


@dataclass(slots=True)
class RecordedBucket(MemoryBucket):
    """The objects of a cluster."""

    log: CloudCalls = field(default_factory=CloudCalls)

    def read(self, name: str) -> tuple[bytes, str] | None:
        self.log(f"get {name}")
        return MemoryBucket.read(self, name)

    def put(self, name: str, data: bytes | IO[bytes]) -> None:
        self.log(f"put {name}")
        MemoryBucket.put(self, name, data)

    def has(self, name: str) -> bool:
        self.log(f"has {name}")
        return MemoryBucket.has(self, name)


class RecordedQueue(MemoryQueue[CloudEvent]):
    """Events, of which only the deletions matter."""

    def __init__(self, log: CloudCalls) -> None:
        super().__init__()
        self.log = log

    def delete(self, receipt: str) -> None:
        self.log(f"delete {receipt}")


@dataclass(frozen=True)
class RecordedCloud:
    """All parts of a cluster's cloud, with one log of calls."""

    log: CloudCalls
    capacity: RecordedCapacity
    objects: RecordedBucket
    prices: ClusterPrices

    @property
    def cloud(self) -> Cloud:
        commands = MemoryQueue[Command | None]()
        return Cloud(self.capacity, RecordedQueue(self.log), commands, self.prices, self.objects)
