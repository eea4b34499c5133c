"""A round: one incarnation of the worker group (see docs/architecture.md, Rounds)."""

from dataclasses import dataclass
from typing import Literal

from spotelastic_checkpoints.types import Branch, Commit, Resume, Schedule, Snapshot

Phase = Literal["proposed", "started", "over"]
"""over: its job has ended, and goes on with a round that begins anew; it has no members."""
Cause = Literal[
    "start",  # the first round of the job
    "arrival",  # nodes joined
    "drain",  # a node leaves with notice
    "loss",  # a node vanished
    "worker",  # a worker failed
    "stall",  # the workers executed no step any more
    "store",  # the round's store died
    "settings",  # min, max, schedule or code changed
    "commit",  # the object store, which was away, has a later step
]


@dataclass(frozen=True, slots=True)
class Member:
    """A node's place in a round. `slot` is its group rank: 0 to number of members - 1."""

    node: str
    incarnation: str
    slot: int
    address: str
    zone: str
    workers: int


@dataclass(frozen=True, slots=True)
class Past:
    """What a run has been through before a round: how often it is set back to a save.

    A node that goes with notice sets nobody back.
    """

    node_seconds: float = 0.0
    """Time of all nodes that trained, together."""
    losses: int = 0
    """Nodes that vanished."""
    failures: int = 0
    """Of workers, or of a round's store."""


@dataclass(frozen=True, slots=True)
class Streak:
    """Failures of the script in a row that came at once, before anything new was saved."""

    failures: int = 0
    alike: int = 0
    """How many of them, up to the last, were the same."""
    failure: str = ""
    """What the last one was; empty where nothing is known of it."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A node that did not answer a proposal in time, and therefore counts as lost. `joined` is the
    store revision of its registration, which is another once the node has really been gone."""

    node: str
    joined: int


@dataclass(frozen=True, slots=True)
class Round:
    """The current round, in one key. Proposed, then started once all members are ready."""

    number: int
    incarnation: str
    phase: Phase
    members: tuple[Member, ...]
    cause: Cause
    reason: str
    """One line for people."""
    nodes: tuple[str, ...] = ()
    """The nodes that the cause is about (the drained, lost, arrived, or failed ones)."""
    proposed_at: float = 0.0
    started_at: float = 0.0
    parent: str = ""
    lineage: tuple[Branch, ...] = ()
    """Ancestors, oldest first, bounded; the branch step of the parent is the last entry's step."""
    known: Commit | None = None
    """The newest commit that there was when it started; while proposed, when its parent did."""
    resume: Resume = Resume()
    store: str = ""
    """host:port of the round's TCPStore; empty until started."""
    epoch: int = 0
    """The storage epoch claimed for this round; 0 where none could be claimed."""
    schedule: Schedule = Schedule()
    past: Past = Past()
    code: str = ""
    """What its members run (`Settings.code`)."""
    charged: tuple[float, ...] = ()
    """When user-code failures were charged to --max-restarts, so far."""
    streak: Streak = Streak()
    pause: float = 0.0
    """Seconds that it waits before it starts, because the script failed again and again."""
    missed: tuple[str, ...] = ()
    """Node incarnations that did not answer a proposal; they must register anew."""
    late: int = 0
    """Proposals that members answered too late, who turned out to live."""
    suspects: tuple[Suspect, ...] = ()
    """Of these it is not known yet whether they are lost,"""
    excused: tuple[float, ...] = ()
    """and these failures were taken from `charged` because they seem to be."""
    plain: int = 0
    """Number of the round since which the script is known to have no Checkpointer; 0: it has one,
    or nothing is known. Planned changes do not wait for it."""

    @property
    def world_size(self) -> int:
        return sum(member.workers for member in self.members)

    def member(self, node: str) -> Member | None:
        return next((m for m in self.members if m.node == node), None)

    def first_rank(self, slot: int) -> int:
        """The global rank of the first worker of the node in `slot`."""
        return sum(m.workers for m in self.members if m.slot < slot)

    def ranks(self, member: Member) -> tuple[int, ...]:
        """The global ranks of its workers."""
        first = self.first_rank(member.slot)
        return tuple(range(first, first + member.workers))


@dataclass(frozen=True, slots=True)
class RoundEnd:
    """What one node saw of a round that ended: times in seconds since the epoch, 0 if none."""

    incarnation: str
    first_step_at: float = 0.0
    last_step: int = 0
    last_step_at: float = 0.0


@dataclass(frozen=True, slots=True)
class SlotOffer:
    """What a node that a round was proposed without still holds, and serves while it lives."""

    round: str
    """The proposed round's incarnation."""
    daemon: str
    snapshots: tuple[Snapshot, ...]


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A member's answer to a proposed round, one leased key per node."""

    node: str
    incarnation: str
    """The node's incarnation."""
    round: str
    """The round's incarnation."""
    phase: Literal["seen", "ready"]
    daemon: str = ""
    snapshots: tuple[Snapshot, ...] = ()
    commit: Commit | None = None
    """The newest commit that this node's daemon knows of."""
    store: str = ""
    """host:port of the store, from the node in slot 0 when ready."""
    epoch: int = 0
    """The storage epoch that the node in slot 0 claimed for this round, or 0."""
    end: RoundEnd | None = None
    """What it saw of the round before."""


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """A round that ended, kept as history under its number."""

    round: Round
    first_step_at: float
    last_step: int
    last_step_at: float
    ended_at: float
