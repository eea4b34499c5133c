"""Defines the values that agents, daemons and workers exchange: rounds, saves, commits, statuses.

They cross process borders inside messages (`messages.py`). Some are stored in etcd.
"""

from collections.abc import Collection
from typing import Literal, NamedTuple

import msgspec

Range = tuple[int, int]
"""A range of a file: its first byte, and the one behind its last."""
Moved = tuple[int, int, int]
"""A range of a file, and the offset in the file at which its bytes begin instead."""


class Value(msgspec.Struct, frozen=True):
    """Base of all values: immutable, compared by content."""


class Commit(Value, frozen=True, order=True):
    """A checkpoint that is committed in the object store.

    Later ones compare greater. A round that was sent back commits lower steps, under a later epoch.
    """

    epoch: int
    step: int


class MemberRanks(Value, frozen=True):
    """The ranks of one node in a round."""

    slot: int
    """The node's group rank."""
    node: str
    """Id of the node."""
    ranks: tuple[int, ...]
    """The global ranks of the node's workers, by local rank. They need not be consecutive: some
    starters deal ranks out over the nodes.
    """


class Branch(Value, frozen=True):
    """An ancestor of a round. Slots that it sealed at steps up to `step` belong to the lineage."""

    incarnation: str
    step: int
    known: Commit | None = None
    """The newest commit that existed when the ancestor started."""


class Ancestry(Value, frozen=True):
    """The round that a node was in last, and those that it descends from."""

    incarnation: str
    lineage: tuple[Branch, ...] = ()
    """Its ancestors, oldest first."""
    known: Commit | None = None
    """The newest commit that existed when it started."""
    epoch: int = 0
    """The storage epoch that it had claimed; 0 if none."""
    run_id: str = ""
    """The run's id for experiment trackers: a run that began afresh has another."""


class Schedule(Value, frozen=True):
    """When to save, in steps; 0 turns a kind of save off.

    All ranks of a round have the same schedule, and change it at the same step.
    """

    snapshot_every: int = 10
    """Steps between two snapshots in shared memory."""
    checkpoint_every: int = 50
    """Steps between two checkpoints in the object store."""


REHEARSAL = "-rehearsal"
"""End of the incarnation of slots that a rehearsal restores from. No round has such a name."""


class Holder(Value, frozen=True):
    """A node that holds sealed slots which a round resumes from."""

    node: str
    daemon: str
    """Endpoint ("host:port") of the daemon that serves the slots."""
    ranks: tuple[int, ...]
    """Global ranks whose slots the node holds, as numbered in the round that sealed them."""
    whole: bool = False
    """Whether these slots alone hold everything that is not per-rank."""
    replica: bool = False
    """Whether these are the shards of another node, which this one has kept."""


class Resume(Value, frozen=True):
    """The exact source that every rank of a round restores from; it is never "the latest"."""

    kind: Literal["fresh", "memory", "store"] = "fresh"
    """"fresh" (nothing to restore), "memory" (sealed slots) or "store" (a checkpoint)."""
    step: int = 0
    """The step that training goes on from."""
    incarnation: str = ""
    """For "memory": the round that sealed the slots."""
    layout: str = ""
    """For "memory": hash of the layout of these slots."""
    holders: tuple[Holder, ...] = ()
    """For "memory": the nodes that hold the slots."""
    epoch: int = 0
    """For "store": the epoch under which the step was committed."""

    def needs(self, node: str) -> bool:
        """Return whether the other holders could not restore it without this node's slots."""
        others = [holder for holder in self.holders if holder.node != node]
        return len(others) < len(self.holders) and not any(holder.whole for holder in others)

    def outlives_any_of(self, nodes: Collection[str]) -> bool:
        """Return whether these nodes still hold all of it when any one of them is lost."""
        every = {rank for holder in self.holders for rank in holder.ranks}

        def outlives(lost: str) -> bool:
            left = [each for each in self.holders if each.node in nodes and each.node != lost]
            ranks = {rank for holder in left for rank in holder.ranks}
            return any(holder.whole for holder in left) or (bool(every) and ranks >= every)

        return all(outlives(node) for node in nodes)


class Ward(Value, frozen=True):
    """The node whose replica a daemon keeps: what no other node of the round holds."""

    node: str
    daemon: str
    """Endpoint ("host:port") of its daemon."""
    rate: float = 0.0
    """Most bytes per second that are asked for; 0: the daemons choose."""


class RoundInfo(Value, frozen=True):
    """What a daemon has to know of a round."""

    incarnation: str
    number: int
    world_size: int
    slot: int
    """Group rank of the daemon's own node."""
    members: tuple[MemberRanks, ...]
    epoch: int = 0
    """Storage epoch that the round has claimed; 0 if none."""
    lineage: tuple[Branch, ...] = ()
    """The rounds that this one descends from."""
    schedule: Schedule = Schedule()
    resume: Resume = Resume()
    cause: str = ""
    """Why the round was formed; the daemon's log records carry it."""
    ward: Ward | None = None
    """The node whose replica the daemon keeps; None: it keeps none."""
    known: Commit | None = None
    """The newest commit that existed when the round started."""
    run_id: str = ""
    """The run's id for experiment trackers."""

    @property
    def own(self) -> MemberRanks:
        """The daemon's own node."""
        return next(member for member in self.members if member.slot == self.slot)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks of the daemon's own node, by local rank."""
        return self.own.ranks

    @property
    def ancestry(self) -> Ancestry:
        """What tells of this round where the rendezvous store has forgotten it."""
        return Ancestry(self.incarnation, self.lineage, self.known, self.epoch, self.run_id)


class EpochClaim(Value, frozen=True):
    """An epoch that was claimed, and the newest commit at that moment."""

    epoch: int
    commit: Commit | None = None
    run_id: str = ""
    """The run's id for experiment trackers."""


class Snapshot(Value, frozen=True):
    """The sealed slots of one save on one node. All ranks of the node have sealed it."""

    incarnation: str
    """The round that sealed the slots."""
    step: int
    layout: str
    """Hash of the layout."""
    ranks: tuple[int, ...]
    """Global ranks whose slots are here, as numbered in that round."""
    world_size: int
    whole: bool
    """Whether these slots alone hold everything that is not per-rank."""
    nbytes: int = 0
    covers: tuple[int, ...] = ()
    """Ranks of other nodes whose slots hold the same as these, but for what is per-rank."""
    replica: bool = False
    """Whether it is a replica: what the node of these ranks alone holds, in another's memory."""


class TimedValue(NamedTuple):
    """A value at a time: one that the script logs, or that was measured."""

    at: float
    """When it was so (epoch seconds)."""
    value: float | None
    """None: it is NaN or infinite, which JSON has no word for."""


class WorkerStep(Value, frozen=True):
    """What a worker's page says: how far the worker is, and how fast it goes."""

    rank: int
    local_rank: int
    step: int
    """The last step that the worker finished."""
    step_time: float
    """Seconds per step, averaged."""
    first_step_at: float
    """When its first step in this round was finished (epoch seconds)."""
    last_step_at: float
    """When its last step was finished (epoch seconds)."""
    attached: bool
    """Whether the worker has a `Checkpointer` and is in its training loop."""
    waiting: bool = False
    """Whether the worker waits for the daemon: at a target, for a commit, or for what it restores.
    """
    stall: float = 0.0
    """Seconds for which a save keeps training waiting, averaged; 0 before the first."""
    measured: int = 0
    """Number of the measurement of the next two; 0: there was none in this round."""
    own_time: float = 0.0
    """Seconds of a step in which the worker did not wait for other ranks."""
    waiting_time: float = 0.0
    """Seconds of a step in which it did."""
    total: int = 0
    """The step that the run ends with; 0: the script does not say."""
    samples: float = 0.0
    """Samples per step of the worker, averaged; 0: the script does not say."""
    logged: dict[str, TimedValue] = {}
    """The newest value of each name that the script logs."""


class UploadStatus(Value, frozen=True):
    """The upload in progress."""

    epoch: int
    step: int
    done: int
    """Bytes sent."""
    total: int
    """Bytes that this node has to send."""
    rate: float = 0.0
    """Bytes per second since the upload began."""


class DaemonStatus(Value, frozen=True):
    """What a checkpoint daemon holds and does at one moment."""

    listen: str
    """Endpoint ("host:port") at which it serves other nodes."""
    snapshots: tuple[Snapshot, ...]
    commit: Commit | None
    """The newest commit that the daemon knows of."""
    workers: tuple[WorkerStep, ...]
    upload: UploadStatus | None = None
    error: str = ""
    """Why the last upload or collection failed; empty if it did not."""
    ready: bool = False
    """Whether slots were asked for and are all in memory, so that no save pays for fresh pages."""
    arena: int = 0
    """Bytes of shared memory that the slots take."""
    commit_time: float = 0.0
    """Seconds that this daemon's newest commit took; 0 before the first."""
    collecting: bool = False
    """Whether old checkpoints are being deleted."""
    replica_time: float = 0.0
    """Seconds that the newest replica of another node's shards took; 0 before the first."""
    restore_time: float = 0.0
    """Seconds that the node's ranks took to restore in this round; 0 before they have."""
    restored_from: str = ""
    """Where that came from: memory, replica or store."""
    ancestry: Ancestry | None = None
    """Of the round that it was told of last."""
    outage: str = ""
    """Why the last upload failed; empty if it did not."""


class Item(Value, frozen=True, array_like=True):
    """One chunk of a tensor, or one pickled value, and where it lies in its slot or file."""

    fqn: str
    """Fully qualified name: the path joined by dots."""
    path: tuple[str | int, ...]
    """The keys that lead to it in the nested state dict."""
    dtype: str
    """Name of the torch dtype; empty for a pickled value."""
    shape: tuple[int, ...]
    """Global shape of the tensor that this is a chunk of."""
    offsets: tuple[int, ...]
    """Where the chunk begins in the tensor, by axis."""
    sizes: tuple[int, ...]
    """Shape of the chunk."""
    rank: int
    """The global rank that a per-rank value belongs to; -1 for what all ranks share."""
    offset: int
    """First byte in the slot's data, or in the file."""
    length: int
    """Bytes of the item as `torch.save` would write it. The raw bytes of a tensor are the last of
    them.
    """
    checksum: str = ""
    """xxh3 (64 bits, hex) of the item's bytes; empty while not computed."""
    blocks: str = ""
    """Checksums of the blocks of an item with more than one block (see format/manifest.py),
    concatenated.
    """

    @property
    def is_tensor(self) -> bool:
        """Whether it is a chunk of a tensor, and not a pickled value."""
        return bool(self.dtype)

    @property
    def key(self) -> tuple[str, tuple[int, ...]]:
        """Identifies the item within a checkpoint."""
        return self.fqn, self.offsets


class RestoreSet(Value, frozen=True):
    """What this node has, or can fetch, of one exact source."""

    id: int
    step: int
    world_size: int
    """World size of the round that saved it."""
    slots: tuple[str, ...]
    """This node's slots that hold a part of it. Their indexes say which."""
    file: str
    """File in shared memory that receives what is fetched from elsewhere."""
    items: tuple[Item, ...]
    """Items that can be fetched into the file."""


class SlotGrant(Value, frozen=True):
    """The slot that the next save has to be written to."""

    path: str
    owner: str
    """Name of the run, for the slot's header."""


class StepPoint(Value, frozen=True, array_like=True):
    """A finished step with its loss, as the curve of a run shows it."""

    step: int
    loss: float | None
    """The loss; None where it is not known."""
    at: float
    """When the step was finished (epoch seconds)."""
