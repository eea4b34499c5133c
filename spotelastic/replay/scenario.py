"""Describes what is replayed: a job, its nodes, and how long things take on them."""

from dataclasses import dataclass, field

from spotelastic_checkpoints.types import Schedule

from spotelastic.model.interval import Interval
from spotelastic.model.job import Capacity, Settings


@dataclass(frozen=True, slots=True)
class NodeTimings:
    """How fast one node is, and what it costs."""

    boot: float = 90.0
    """Seconds from a node's launch until its agent has registered."""
    start: float = 3.0
    """Seconds from a warm worker's fork to its first step, without the restore: CUDA and NCCL."""
    cold: float = 2.0
    """Further seconds of a worker that is not forked: a process and its imports."""
    copy: float = 10e9
    """Bytes per second between GPUs and shared memory."""
    peer: float = 3e9
    """Bytes per second from the memory of other nodes."""
    store: float = 1e9
    """Bytes per second to and from the object store."""
    spot_usd: float = 0.0
    """US dollars per hour of a spot node."""
    on_demand_usd: float = 0.0
    """US dollars per hour of an on-demand node."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """The job and its environment."""

    min_nodes: int
    max_nodes: int
    step: float = 1.0
    """Seconds per step. They do not depend on the number of nodes, each of which has its share of
    samples.
    """
    state: float = 10e9
    """Bytes of model and optimizer, the same on all nodes unless `sharded`."""
    sharded: bool = False
    """Whether each node holds only its part. A node that is lost without notice then costs the
    steps since the last commit, not only those since the last snapshot.
    """
    notice: float = 120.0
    """Seconds of notice before a node is taken; 0 for none."""
    capacity: Capacity = Capacity()
    """What may be bought, and when the job ends at the latest."""
    schedule: Schedule = Schedule()
    """When to save, in steps, unless `automatic`."""
    automatic: bool = False
    """Whether spotelastic chooses the intervals itself from what it measures."""
    machines: NodeTimings = field(default_factory=NodeTimings)

    @property
    def settings(self) -> Settings:
        """The same as settings of a job."""
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
        """Seconds for which a save stops training."""
        return self.state / self.machines.copy

    def mean_step(self, schedule: Schedule) -> float:
        """Return the seconds of a step with its share of a snapshot."""
        return self.step + self.copied_within / schedule.snapshot_every

    def uploaded_within(self, nodes: int) -> float:
        """Return the seconds of an upload, of which each node does its part."""
        return self.state / (self.machines.store * nodes)

    def fetched_within(self) -> float:
        """Return the seconds in which a node has the whole state from the object store."""
        return self.state / self.machines.store
