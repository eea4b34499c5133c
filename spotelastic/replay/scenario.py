"""What is replayed: a job, the machines that it runs on, and how long things take there."""

from dataclasses import dataclass, field

from spotelastic_checkpoints.types import Schedule

from spotelastic.model.interval import Interval
from spotelastic.model.job import Capacity, Settings


@dataclass(frozen=True, slots=True)
class NodeTimings:
    """One node. Seconds, and bytes a second, unless a name says otherwise."""

    boot: float = 90.0
    """From its launch until its agent has registered."""
    start: float = 3.0
    """From a warm worker's fork to its first step, without the restore: CUDA and NCCL."""
    cold: float = 2.0
    """What a worker that is not forked takes on top: a process, and its imports."""
    copy: float = 10e9
    """Between the GPUs and shared memory."""
    peer: float = 3e9
    """From the memory of other nodes."""
    store: float = 1e9
    """To and from the object store."""
    spot_usd: float = 0.0
    on_demand_usd: float = 0.0
    """An hour."""


@dataclass(frozen=True, slots=True)
class Scenario:
    min_nodes: int
    max_nodes: int
    step: float = 1.0
    """Seconds; the same however many nodes there are: each has its share of samples."""
    state: float = 10e9
    """Bytes of model and optimizer, the same on all nodes unless `sharded`."""
    sharded: bool = False
    """Each node holds only its part: a node lost without notice costs the steps since the last
    commit, not only those since the last snapshot."""
    notice: float = 120.0
    """Seconds of warning before a node is taken; 0: none."""
    capacity: Capacity = Capacity()
    """What may be bought, and when it all ends."""
    schedule: Schedule = Schedule()
    """When to save, in steps,"""
    automatic: bool = False
    """unless this product chooses it itself, as it goes, by what is measured."""
    machines: NodeTimings = field(default_factory=NodeTimings)

    @property
    def settings(self) -> Settings:
        if self.automatic:
            return Settings(self.min_nodes, self.max_nodes)
        return Settings(
            self.min_nodes,
            self.max_nodes,
            snapshot_every=Interval(self.schedule.snapshot_every),
            checkpoint_every=Interval(self.schedule.checkpoint_every),
        )

    @property
    def copied_within(self) -> float:
        """Seconds that a save stops training for."""
        return self.state / self.machines.copy

    def mean_step(self, schedule: Schedule) -> float:
        """Seconds, with its part of a snapshot."""
        return self.step + self.copied_within / schedule.snapshot_every

    def uploaded_within(self, nodes: int) -> float:
        """Seconds; every node uploads its part."""
        return self.state / (self.machines.store * nodes)

    def fetched_within(self) -> float:
        """Seconds for a node to have the whole state from the object store."""
        return self.state / self.machines.store
