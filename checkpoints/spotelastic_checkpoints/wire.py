"""Pure: what the daemon, the agent and the workers say to each other; see `messages.py` for what
daemons do.

A frame is a little-endian uint32 length, then msgpack. A client sends `(id, request)` and gets one
`(id, error, result)`; the daemon pushes events to subscribers as frames with id 0. Values that the
rest of spotelastic has too carry the same field names, so that they convert one to one.
"""

import struct
from typing import TypeVar

import msgspec

FRAME = struct.Struct("<I")
Range = tuple[int, int]
"""Of a file: its first byte, and the one behind its last."""
Moved = tuple[int, int, int]
"""A range of a file, and where in the file it begins instead."""


class Value(msgspec.Struct, frozen=True):
    """Base of all values: immutable, compared by content."""


# -- values ---------------------------------------------------------------------------------------


class Member(Value, frozen=True):
    """A node's place in a round. `slot` is its group rank, `ranks` its global ones, by local rank:
    some starters deal them out one by one over the nodes."""

    slot: int
    node: str
    ranks: tuple[int, ...]


class Branch(Value, frozen=True):
    """An ancestor of the round: slots that it sealed at steps up to `step` are on the lineage."""

    incarnation: str
    step: int


class Schedule(Value, frozen=True):
    """When to save, in steps; 0 turns a kind of save off."""

    snapshot_every: int = 10
    checkpoint_every: int = 50


class Holder(Value, frozen=True):
    """A node whose daemon (host:port) holds sealed slots of `ranks` of the round that sealed."""

    node: str
    daemon: str
    ranks: tuple[int, ...]


class Resume(Value, frozen=True):
    """The exact source that every rank restores from: kind "fresh", "memory" or "store"."""

    kind: str = "fresh"
    step: int = 0
    incarnation: str = ""
    layout: str = ""
    holders: tuple[Holder, ...] = ()
    epoch: int = 0


class RoundInfo(Value, frozen=True):
    """What a daemon needs to know of a round. `slot` is this node's own; epoch 0: none claimed."""

    incarnation: str
    number: int
    world_size: int
    slot: int
    members: tuple[Member, ...]
    epoch: int = 0
    lineage: tuple[Branch, ...] = ()
    schedule: Schedule = Schedule()
    resume: Resume = Resume()

    @property
    def own(self) -> Member:
        return next(member for member in self.members if member.slot == self.slot)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The global ranks of this node, by local rank."""
        return self.own.ranks


class Commit(Value, frozen=True, order=True):
    """A checkpoint committed in the object store. Later ones compare greater."""

    epoch: int
    step: int


class Claim(Value, frozen=True):
    """The epoch that was claimed, and the newest commit at that moment."""

    epoch: int
    commit: Commit | None = None


class Snapshot(Value, frozen=True):
    """The sealed slots of one save on one node; all of the node's ranks have sealed it."""

    incarnation: str
    step: int
    layout: str
    ranks: tuple[int, ...]
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


class Upload(Value, frozen=True):
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
    upload: Upload | None = None
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


# -- events ---------------------------------------------------------------------------------------


class Attached(Value, frozen=True, tag="attached"):
    """A worker has entered its Checkpointer: its page is live."""

    rank: int


class Sealed(Value, frozen=True, tag="sealed"):
    """All workers of this node have sealed `step`; `waiting`: at the target, and wait there."""

    step: int
    ranks: tuple[int, ...]
    waiting: bool


class StepPoint(Value, frozen=True, array_like=True):
    step: int
    loss: float | None
    at: float


class Points(Value, frozen=True, tag="points"):
    """Steps finished by this node's first worker since the last such event."""

    points: tuple[StepPoint, ...]


class Committed(Value, frozen=True, tag="committed"):
    epoch: int
    step: int
    at: float


class Left(Value, frozen=True, tag="left"):
    """A worker has left its Checkpointer; `step` is its last."""

    rank: int
    step: int
    clean: bool
    """Without an exception."""


class Failed(Value, frozen=True, tag="failed"):
    """Saving or uploading did not get on; training does. One line."""

    message: str


class Outrun(Value, frozen=True, tag="outrun"):
    """A later claim of the same run has fenced this epoch of the round: nothing is committed."""

    epoch: int


class Closed(Value, frozen=True, tag="closed"):
    """The connection to the daemon was lost (made by the client, never sent)."""


DaemonEvent = Attached | Sealed | Points | Committed | Left | Failed | Outrun | Closed

# -- requests: from the agent ---------------------------------------------------------------------


class Begin(Value, frozen=True, tag="begin"):
    round: RoundInfo


class ClaimEpoch(Value, frozen=True, tag="claim"):
    owner: str
    timeout: float
    take_over: bool = False


class GetStatus(Value, frozen=True, tag="status"):
    pass


class SetTarget(Value, frozen=True, tag="target"):
    """With a `schedule`: the round's from now on. All of its workers wait at a target then."""

    round: str
    proposal: str
    target: int
    schedule: Schedule | None = None


class End(Value, frozen=True, tag="end"):
    pass


class Flush(Value, frozen=True, tag="flush"):
    timeout: float


class Hurry(Value, frozen=True, tag="hurry"):
    deadline: float


class Subscribe(Value, frozen=True, tag="subscribe"):
    pass


# -- requests: from workers -----------------------------------------------------------------------


class Attach(Value, frozen=True, tag="attach"):
    """A worker has come; the answer is the path of its page."""

    round: str
    rank: int
    local_rank: int


class Open(Value, frozen=True, tag="open"):
    """See what the source of `resume` holds; answered with a RestoreSet."""

    resume: Resume


class Fetch(Value, frozen=True, tag="fetch"):
    """Bring ranges of the restore set's file to this node; answered with `Fetched` once they are
    there and verified. What several workers need comes once."""

    id: int
    ranges: tuple[Range, ...]
    ahead: tuple[Range, ...] = ()
    """What will be asked for next, and begins to come."""
    passed: int | None = None
    """The worker needs nothing before this offset any more; these ranges neither, once it has told
    an offset behind them. None: they stay in their places until it has restored everything."""


class Fetched(Value, frozen=True):
    moved: tuple[Moved, ...]
    """What of the ranges is elsewhere in the file, in their order, until the worker is past it."""


class FindCommit(Value, frozen=True, tag="find"):
    """Answered with the newest commit, or None: at `step` alone, older than `before`."""

    step: int | None = None
    before: Commit | None = None


class Restored(Value, frozen=True, tag="restored"):
    """This worker has read the restore set with this id."""

    id: int


class Prepare(Value, frozen=True, tag="prepare"):
    """The layout is known: slots take `nbytes`. Refused when the memory is not there."""

    nbytes: int


class AwaitSlots(Value, frozen=True, tag="slots"):
    """Answered with the paths of the local rank's slots, once all of them are in memory."""

    local_rank: int


class Reserve(Value, frozen=True, tag="reserve"):
    """A slot for the next save; answered with a SlotGrant as soon as one may be overwritten.

    An `urgent` save is one that must come about: an older one on its way to the store makes room.
    """

    urgent: bool = False


class Sealing(Value, frozen=True, tag="sealing"):
    """The slot at `path` has been sealed at `step`. `due`: it is to be uploaded."""

    step: int
    path: str
    waiting: bool
    due: bool


class Urge(Value, frozen=True, tag="urge"):
    """Upload the newest save that is due, also where not every one is."""


class Await(Value, frozen=True, tag="await"):
    """Answered with the target, once it is another than `target`."""

    target: int


class Complain(Value, frozen=True, tag="complain"):
    """Something that people should know about this worker's saves."""

    message: str


class Leave(Value, frozen=True, tag="leave"):
    step: int
    clean: bool


Request = (
    Begin
    | ClaimEpoch
    | GetStatus
    | SetTarget
    | End
    | Flush
    | Hurry
    | Subscribe
    | Attach
    | Open
    | Fetch
    | FindCommit
    | Restored
    | Prepare
    | AwaitSlots
    | Reserve
    | Sealing
    | Await
    | Urge
    | Complain
    | Leave
)

# -- framing --------------------------------------------------------------------------------------

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()
_request = msgspec.msgpack.Decoder(tuple[int, Request])
_reply = msgspec.msgpack.Decoder(tuple[int, str, msgspec.Raw])
_event = msgspec.msgpack.Decoder(DaemonEvent)


def frame(*parts: object) -> bytes:
    body = _encoder.encode(parts)
    return FRAME.pack(len(body)) + body


def decode_request(body: bytes) -> tuple[int, Request]:
    return _request.decode(body)


def decode_reply(body: bytes) -> tuple[int, str, msgspec.Raw]:
    """Id, error as "Name: message" or empty, result still encoded."""
    return _reply.decode(body)


def decode_event(result: msgspec.Raw) -> DaemonEvent:
    event: DaemonEvent = _event.decode(result)
    return event


def decode_result(result: msgspec.Raw, kind: type[T]) -> T:
    return msgspec.msgpack.decode(result, type=kind)
