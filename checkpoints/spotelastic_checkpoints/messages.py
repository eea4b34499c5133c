"""What agents, daemons and workers on one node say to each other.

A client sends `(id, request)` and gets one `(id, error, result)`; the daemon pushes events to
subscribers with id 0. What daemons of different nodes say to each other is in `peers/messages.py`.
"""

import msgspec

from spotelastic_checkpoints.types import (
    Commit,
    Moved,
    Range,
    Resume,
    RoundInfo,
    Schedule,
    StepPoint,
    Value,
)

# -- events ---------------------------------------------------------------------------------------


class Attached(Value, frozen=True, tag="attached"):
    """A worker has entered its Checkpointer: its page is live."""

    rank: int


class Sealed(Value, frozen=True, tag="sealed"):
    """All workers of this node have sealed `step`; `waiting`: at the target, and wait there."""

    step: int
    ranks: tuple[int, ...]
    waiting: bool


class Points(Value, frozen=True, tag="points"):
    """Steps finished by this node's first worker since the last such event."""

    points: tuple[StepPoint, ...]


class Committed(Value, frozen=True, tag="committed"):
    epoch: int
    step: int
    at: float


class WorkerLeft(Value, frozen=True, tag="left"):
    """A worker has left its Checkpointer; `step` is its last."""

    rank: int
    step: int
    clean: bool
    """Without an exception."""


class SaveFailed(Value, frozen=True, tag="failed"):
    """Saving or uploading did not get on; training does. One line."""

    message: str


class Superseded(Value, frozen=True, tag="outrun"):
    """A later claim of the same run has fenced this epoch of the round: nothing is committed."""

    epoch: int


class Closed(Value, frozen=True, tag="closed"):
    """The connection to the daemon was lost (made by the client, never sent)."""


DaemonEvent = Attached | Sealed | Points | Committed | WorkerLeft | SaveFailed | Superseded | Closed

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


class SetDeadline(Value, frozen=True, tag="hurry"):
    deadline: float


class Subscribe(Value, frozen=True, tag="subscribe"):
    pass


# -- requests: from workers -----------------------------------------------------------------------


class Attach(Value, frozen=True, tag="attach"):
    """A worker has come; the answer is the path of its page."""

    round: str
    rank: int
    local_rank: int


class OpenRestoreSet(Value, frozen=True, tag="open"):
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
    | SetDeadline
    | Subscribe
    | Attach
    | OpenRestoreSet
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

_request = msgspec.msgpack.Decoder(tuple[int, Request])
_event = msgspec.msgpack.Decoder(DaemonEvent)


def decode_request(body: bytes) -> tuple[int, Request]:
    return _request.decode(body)


def decode_event(result: msgspec.Raw) -> DaemonEvent:
    event: DaemonEvent = _event.decode(result)
    return event
