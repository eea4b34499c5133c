"""The values that agents, daemons and workers share: a round as a daemon sees it, saves, commits.

They cross process borders inside messages (`messages.py`), and some are stored in etcd.
"""

from typing import Literal

import msgspec

Range = tuple[int, int]
"""Of a file: its first byte, and the one behind its last."""
Moved = tuple[int, int, int]
"""A range of a file, and where in the file it begins instead."""


class Value(msgspec.Struct, frozen=True):
    """Base of all values: immutable, compared by content."""


class Commit(Value, frozen=True, order=True):
    """A checkpoint committed in the object store. Later ones compare greater: a round that was sent
    back commits lower steps, under a later epoch."""

    epoch: int
    step: int


class MemberRanks(Value, frozen=True):
    """A node's place in a round. `slot` is its group rank, `ranks` its global ones, by local rank:
    some starters deal them out one by one over the nodes."""

    slot: int
    node: str
    ranks: tuple[int, ...]


class Branch(Value, frozen=True):
    """An ancestor of a round: slots that it sealed at steps up to `step` are on the lineage."""

    incarnation: str
    step: int
    known: Commit | None = None
    """The newest commit that existed when the ancestor started."""


class Schedule(Value, frozen=True):
    """When to save, in steps; 0 turns a kind of save off.

    All ranks of a round have the same one, and change it at the same step.
    """

    snapshot_every: int = 10
    checkpoint_every: int = 50


class Holder(Value, frozen=True):
    """A node that holds sealed slots which a round resumes from."""

    node: str
    daemon: str
    """host:port of the daemon that serves them."""
    ranks: tuple[int, ...]
    """The global ranks, of the round that sealed them, whose slots are there."""
    whole: bool = False
    """These slots alone hold everything that is not per-rank."""


class Resume(Value, frozen=True):
    """The exact source that every rank of a round restores from, never "the latest"."""

    kind: Literal["fresh", "memory", "store"] = "fresh"
    step: int = 0
    incarnation: str = ""
    """kind "memory": the round that sealed the slots."""
    layout: str = ""
    """kind "memory": hash of the global layout of those slots."""
    holders: tuple[Holder, ...] = ()
    epoch: int = 0
    """kind "store": the storage epoch that the step was committed under."""

    def needs(self, node: str) -> bool:
        """Whether others can restore it only for as long as this node serves its slots."""
        others = [holder for holder in self.holders if holder.node != node]
        return len(others) < len(self.holders) and not any(holder.whole for holder in others)


class RoundInfo(Value, frozen=True):
    """What a daemon needs to know of a round. `slot` is this node's own; epoch 0: none claimed."""

    incarnation: str
    number: int
    world_size: int
    slot: int
    members: tuple[MemberRanks, ...]
    epoch: int = 0
    lineage: tuple[Branch, ...] = ()
    schedule: Schedule = Schedule()
    resume: Resume = Resume()

    @property
    def own(self) -> MemberRanks:
        return next(member for member in self.members if member.slot == self.slot)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The global ranks of this node, by local rank."""
        return self.own.ranks


class EpochClaim(Value, frozen=True):
    """The epoch that was claimed, and the newest commit at that moment."""

    epoch: int
    commit: Commit | None = None


class Snapshot(Value, frozen=True):
    """The sealed slots of one save on one node; all of the node's ranks have sealed it."""

    incarnation: str
    """The round that sealed them."""
    step: int
    layout: str
    """Hash of the global layout."""
    ranks: tuple[int, ...]
    """The global ranks of that round whose slots are here."""
    world_size: int
    whole: bool
    """These slots alone hold everything that is not per-rank."""
    nbytes: int = 0


class WorkerStep(Value, frozen=True):
    """A worker's page: the last step it published, seconds per step, and when (epoch seconds)."""

    rank: int
    local_rank: int
    step: int
    step_time: float
    first_step_at: float
    last_step_at: float
    attached: bool
    waiting: bool = False
    """The daemon keeps it: at the target, until a save is committed, for what it restores."""
    stall: float = 0.0
    """Seconds that a save keeps training waiting; 0: there was none yet."""


class UploadStatus(Value, frozen=True):
    """The upload in progress."""

    epoch: int
    step: int
    done: int
    """Bytes handed to the network."""
    total: int
    rate: float = 0.0
    """Bytes per second since it began."""


class DaemonStatus(Value, frozen=True):
    listen: str
    """host:port that serves peers."""
    snapshots: tuple[Snapshot, ...]
    commit: Commit | None
    """The newest commit that this daemon knows of."""
    workers: tuple[WorkerStep, ...]
    upload: UploadStatus | None = None
    error: str = ""
    """Why the last upload or collection did not get on, if it did not."""
    ready: bool = False
    """Slots were asked for, and all of them are in memory: no save pays for fresh pages."""
    arena: int = 0
    """Bytes of shared memory that the slots take."""
    commit_time: float = 0.0
    """Seconds that the newest commit of this daemon's took; 0: there was none yet."""
    collecting: bool = False
    """Old checkpoints are being removed right now."""


class Item(Value, frozen=True, array_like=True):
    """One chunk of a tensor, or one pickled value, and where it lies in its slot or file.

    `length` covers the item as `torch.save` would write it; a tensor's raw bytes are the last
    `nbytes` of it. `path` is the key in the nested state dict, `fqn` its dotted form.
    """

    fqn: str
    path: tuple[str | int, ...]
    dtype: str
    """Name of the torch dtype; empty for a pickled value."""
    shape: tuple[int, ...]
    """Global shape of the tensor that this is a chunk of."""
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    rank: int
    """The global rank that a per-rank value belongs to; -1 for what all share."""
    offset: int
    length: int
    checksum: str = ""
    """xxh3 (64 bits, hex) of the item's bytes; empty where not computed yet."""
    blocks: str = ""
    """The same of every block of a longer item (see manifest.py), one after the other."""

    @property
    def is_tensor(self) -> bool:
        return bool(self.dtype)

    @property
    def key(self) -> tuple[str, tuple[int, ...]]:
        return self.fqn, self.offsets


class RestoreSet(Value, frozen=True):
    """One exact source, as this node has it or can have it."""

    id: int
    step: int
    world_size: int
    """Of the round that saved."""
    slots: tuple[str, ...]
    """Own slots that hold a part of it; their indexes say which."""
    file: str
    """What comes from elsewhere lies here, each range of it once it has been fetched."""
    items: tuple[Item, ...]
    """What there is in the file."""


class SlotGrant(Value, frozen=True):
    """The slot that the next save goes to."""

    path: str
    owner: str
    """For the slot's header."""


class StepPoint(Value, frozen=True, array_like=True):
    step: int
    loss: float | None
    at: float
