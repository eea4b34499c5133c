"""Defines the messages between the checkpoint daemon of a node and its agent and workers.

A client sends `(id, request)` and gets one `(id, error, result)`. The daemon pushes events to
subscribers with id 0. Messages between daemons of different nodes are in `peers/messages.py`.
"""

from functools import reduce
from operator import or_
from typing import Any

import msgspec

from spotelastic_checkpoints.decoders import from_msgpack
from spotelastic_checkpoints.protocol_version import ProtocolVersion
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

# -- the first message ----------------------------------------------------------------------------


class Greeting(Value, frozen=True, tag="hello"):
    """The first message of each client, sent with the first request; not answered.

    All versions read it, and answer requests with the refusal of another major.
    """

    protocol: ProtocolVersion


class Request(Value, frozen=True):
    """What a client asks the daemon for; each kind of request is a subclass."""


class DaemonEvent(Value, frozen=True):
    """What the daemon tells its subscribers; each kind of event is a subclass."""


# -- events ---------------------------------------------------------------------------------------


class Attached(DaemonEvent, frozen=True, tag="attached"):
    """A worker has opened its Checkpointer; its page is in use."""

    rank: int


class Sealed(DaemonEvent, frozen=True, tag="sealed"):
    """All workers of this node have sealed `step`."""

    step: int
    ranks: tuple[int, ...]
    """Global ranks of the workers."""
    waiting: bool
    """Whether they have reached the target and wait there."""


class Points(DaemonEvent, frozen=True, tag="points"):
    """Steps that this node's first worker has finished since the last such event."""

    points: tuple[StepPoint, ...]


class Committed(DaemonEvent, frozen=True, tag="committed"):
    """A step was committed by this daemon."""

    epoch: int
    step: int
    at: float
    """When it was committed (epoch seconds)."""


class WorkerLeft(DaemonEvent, frozen=True, tag="left"):
    """A worker has closed its Checkpointer."""

    rank: int
    step: int
    """The last step that it finished."""
    clean: bool
    """Whether it left without an exception."""


class SaveFailed(DaemonEvent, frozen=True, tag="failed"):
    """Saving, uploading or collecting has a problem; training goes on."""

    message: str
    """The problem, in one line for people."""


HELD = "held"
"""Kind of a `Rehearse` that tells nobody but the daemon: up to this step an audit has found all
right.
"""


class Rehearsed(DaemonEvent, frozen=True, tag="rehearsed"):
    """Something was found of a step, as by making it again."""

    step: int
    world_size: int
    outcome: str
    """equal, noise or different; of a step that was skipped, skipped or back."""
    message: str
    kind: str = "rehearsed"
    """What was done: `rehearsed`; `proven` of the first commit, which was read back; `skipped` of a
    step whose loss or gradients could not be right; `audited` where ranks had other results; or
    `fingerprint`, whose outcome is that of all that was trained.
    """


class FilesTold(DaemonEvent, frozen=True, tag="files"):
    """Something about the files of the script that people should know."""

    message: str


class Superseded(DaemonEvent, frozen=True, tag="superseded"):
    """A later claim of the same run has fenced this round's epoch, so nothing can be committed."""

    epoch: int


class Closed(DaemonEvent, frozen=True, tag="closed"):
    """The connection to the daemon was lost. The client makes this event; it is never sent."""


# -- requests: from the agent ---------------------------------------------------------------------


class Begin(Request, frozen=True, tag="begin"):
    """A round starts on this node. Sent before its workers are started."""

    round: RoundInfo


class ClaimEpoch(Request, frozen=True, tag="claim"):
    """Claim the next epoch of the storage; answered with an `EpochClaim`."""

    owner: str
    """Name of the run."""
    timeout: float
    """Seconds for which a storage that does not answer is asked again."""
    take_over: bool = False
    """Claim the storage even if it belongs to another run."""
    rounds: tuple[str, ...] = ()
    """Incarnations of the round that claims and of the one before it. Where the daemon's own round
    is one of them, complete steps of its history are recorded, too.
    """
    run_id: str = ""
    """The id for experiment trackers that a storage gets which has none."""


class GetStatus(Request, frozen=True, tag="status"):
    """Answered with a `DaemonStatus`."""


class SetTarget(Request, frozen=True, tag="target"):
    """Set the step at which all workers seal a save and wait; answered with their steps."""

    round: str
    """Incarnation of the round."""
    proposal: str
    target: int
    """The step; 0 withdraws the target."""
    schedule: Schedule | None = None
    """Schedule of the round from now on, given while all of its workers wait at a target."""


class End(Request, frozen=True, tag="end"):
    """The workers of the round are dead."""


class Flush(Request, frozen=True, tag="flush"):
    """Wait until everything that is due is committed; answered with whether it is."""

    timeout: float
    """Seconds to wait at most."""


class FlushFiles(Request, frozen=True, tag="flush-files"):
    """Keep what the script has written last; answered with whether that is done.

    Nobody writes any more.
    """

    timeout: float
    """Seconds that it may take."""


class SetDeadline(Request, frozen=True, tag="deadline"):
    """Tells that this node will be gone at `deadline` (epoch seconds)."""

    deadline: float


class Subscribe(Request, frozen=True, tag="subscribe"):
    """Send events on this connection from now on."""


# -- requests: from workers -----------------------------------------------------------------------


class Attach(Request, frozen=True, tag="attach"):
    """A worker has started; answered with the path of its page."""

    round: str
    rank: int
    local_rank: int


class PutBack(Request, frozen=True, tag="put-back"):
    """Put back the files that the script has kept; answered when the script may start."""

    rank: int
    """Group rank of the node."""


class OpenRestoreSet(Request, frozen=True, tag="open"):
    """Look what the source holds that `resume` names; answered with a `RestoreSet`."""

    resume: Resume


class Fetch(Request, frozen=True, tag="fetch"):
    """Fetch ranges of the restore set's file; answered with `Fetched` once they are verified.

    What several workers need is fetched once.
    """

    id: int
    ranges: tuple[Range, ...]
    ahead: tuple[Range, ...] = ()
    """Ranges that will be asked for next, which begin to be fetched."""
    passed: int | None = None
    """Offset before which the worker needs nothing any more. The ranges asked for stay available
    until it has passed them. None: the ranges stay in their places until the worker has restored
    everything.
    """


class Fetched(Value, frozen=True):
    """The ranges are available."""

    moved: tuple[Moved, ...]
    """Those that lie elsewhere in the file until the worker has passed them, in the order of the
    request.
    """


class FindCommit(Request, frozen=True, tag="find"):
    """Answered with the newest commit, or None."""

    step: int | None = None
    """Only a commit of this step counts."""
    before: Commit | None = None
    """Only a commit older than this one counts."""


class Restored(Request, frozen=True, tag="restored"):
    """Tells that this worker has read the restore set with this id."""

    id: int


class Prepare(Request, frozen=True, tag="prepare"):
    """The layout is known: slots take `nbytes`. Refused when there is not enough memory."""

    nbytes: int


class AwaitSlots(Request, frozen=True, tag="slots"):
    """Answered with the paths of the local rank's slots, once all of them are in memory."""

    local_rank: int


class Reserve(Request, frozen=True, tag="reserve"):
    """Ask for a slot for the next save; answered with a `SlotGrant` once one is free."""

    urgent: bool = False
    """Whether the save must not be left out. An older save that is being uploaded makes room for
    it.
    """


class Sealing(Request, frozen=True, tag="sealing"):
    """The slot at `path` has been sealed at `step`."""

    step: int
    path: str
    waiting: bool
    """Whether the worker has reached the target and waits there."""
    due: bool
    """Whether the save is to be uploaded."""


class Urge(Request, frozen=True, tag="urge"):
    """Upload the newest save that is due, even where uploads are too slow for every one."""


class Await(Request, frozen=True, tag="await"):
    """Answered with the target, once it is another than `target`."""

    target: int


class Complain(Request, frozen=True, tag="complain"):
    """Report a problem of this worker's saves to people."""

    message: str


class Rehearse(Request, frozen=True, tag="rehearse"):
    """Report what was found of a step, or what was trained."""

    step: int
    world_size: int
    outcome: str
    message: str
    kind: str = "rehearsed"
    """As in `Rehearsed`."""


class Leave(Request, frozen=True, tag="leave"):
    """The worker closes its Checkpointer, having finished `step`."""

    step: int
    clean: bool
    """Whether it leaves without an exception."""


_REQUEST: Any = tuple[int, reduce(or_, Request.__subclasses__())]  # type: ignore[misc]
_EVENT: Any = reduce(or_, DaemonEvent.__subclasses__())


def decode_greeting(body: bytes) -> Greeting:
    return from_msgpack(body, tuple[int, Greeting])[1]


def request_id(body: bytes) -> int:
    """Return the id of a request that need not be one of this version's."""
    return from_msgpack(body, tuple[int, msgspec.Raw])[0]


def decode_request(body: bytes) -> tuple[int, Request]:
    """Decode a request and its id."""
    request: tuple[int, Request] = from_msgpack(body, _REQUEST)
    return request


def decode_event(result: msgspec.Raw) -> DaemonEvent:
    """Decode a pushed event."""
    event: DaemonEvent = from_msgpack(result, _EVENT)
    return event
