"""A round, which is one incarnation of the worker group, and what members say about it.

"Rounds" in the architecture page explains the idea.
"""

from dataclasses import dataclass
from typing import Literal

from spotelastic_checkpoints.types import Ancestry, Branch, Commit, Resume, Schedule, Snapshot

from spotelastic.model.in_place import Standing
from spotelastic.model.protocol import Word

Phase = Literal["proposed", "started", "over"]
"""A round that is "over" has no members: its job was restarted, and another one follows."""
Cause = Word[
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
InPlace = Word["", "keep", "restore", "prepare"]
CAUSES: frozenset[str] = frozenset(
    ("start", "arrival", "drain", "loss", "worker", "stall", "store", "settings", "commit")
)
"""The causes that this version knows. A newer node may have written another one."""


LARGE = 64
"""Members above which answers are spread over more time, so that etcd is not asked at once."""


@dataclass(frozen=True, slots=True)
class Member:
    """A node that belongs to a round."""

    node: str
    incarnation: str
    slot: int
    """The node's group rank, from 0 to number of members - 1."""
    address: str
    zone: str
    workers: int
    efa: bool | None = None
    """As its node has it."""


@dataclass(frozen=True, slots=True)
class Partner:
    """A node that keeps a replica of the shards that only another node holds."""

    node: str
    of: str
    """The other node."""
    daemon: str
    """host:port of the other node's checkpoint daemon."""


@dataclass(frozen=True, slots=True)
class Past:
    """How often a run was set back to a save before a round began.

    A node that leaves after a notice is no setback.
    """

    node_seconds: float = 0.0
    """Training time of all nodes, summed, in seconds."""
    losses: int = 0
    """Nodes that were lost."""
    failures: int = 0
    """Failures of workers, or of a round's store."""


@dataclass(frozen=True, slots=True)
class Streak:
    """Failures of the script in a row, each soon after its start and before a new save."""

    failures: int = 0
    alike: int = 0
    """How many of the last failures were the same."""
    failure: str = ""
    """The last failure; empty if nothing is known of it."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A node that did not answer a proposal in time, and therefore counts as lost."""

    node: str
    joined: int
    """Store revision of its registration, which changes if the node has really been gone."""


@dataclass(frozen=True, slots=True)
class Round:
    """The current round, stored in one key: proposed first, started once all members are ready."""

    number: int
    incarnation: str
    phase: Phase
    members: tuple[Member, ...]
    cause: Cause
    reason: str
    """One line for people."""
    nodes: tuple[str, ...] = ()
    """The nodes that caused the round: drained, lost, arrived or failed ones."""
    proposed_at: float = 0.0
    started_at: float = 0.0
    parent: str = ""
    lineage: tuple[Branch, ...] = ()
    """Ancestors, oldest first, bounded in number. The last entry is the parent."""
    known: Commit | None = None
    """The newest commit when the round started; while it is proposed, when its parent started."""
    resume: Resume = Resume()
    store: str = ""
    """host:port of the round's TCPStore; empty until started."""
    epoch: int = 0
    """The storage epoch claimed for this round; 0 where none could be claimed."""
    schedule: Schedule = Schedule()
    past: Past = Past()
    code: str = ""
    """Hash of the code that the members run (`Settings.code`)."""
    charged: tuple[float, ...] = ()
    """Times of the failures that were charged to --max-restarts so far."""
    streak: Streak = Streak()
    pause: float = 0.0
    """Seconds that the round waits before it starts, because the script failed repeatedly."""
    missed: tuple[str, ...] = ()
    """Node incarnations that did not answer a proposal, and must register anew."""
    late: int = 0
    """Number of proposals that live members answered too late."""
    suspects: tuple[Suspect, ...] = ()
    """Members that count as lost although that is not certain yet."""
    excused: tuple[float, ...] = ()
    """Failures that were taken from `charged` because the suspects seem to be lost."""
    plain: int = 0
    """Number of the round since which the script is known to have no Checkpointer, so that planned
    changes do not wait for one; 0: it has one, or nothing is known."""
    in_place: InPlace = ""
    """What workers that have rested do: keep their state, which is that of `resume.step`; or
    restore, as all do; empty: their processes are replaced. New workers are told the same, and
    "prepare" where they come to the beginning of their training beside a round."""
    rests: bool = False
    """Whether its workers can outlive it. Nodes that come prepare theirs before they count."""
    parent_from_memory: bool = False
    """Whether the round before it resumed from what nodes had in memory."""
    fruitless: int = 0
    """Rounds in a row, up to this one, that workers entered in place without a new step between."""
    partners: tuple[Partner, ...] = ()
    """Who keeps whose replica; while it is proposed, as in the round before."""
    run_id: str = ""
    """The run's id for trackers: as the storage says, or the job's first incarnation."""
    trained: bool = False
    """Whether this version of the script is known to have made a step in a round before it."""

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones that its members are in, each once; those of unknown nodes are left out."""
        return tuple(sorted({member.zone for member in self.members} - {""}))

    @property
    def world_size(self) -> int:
        return sum(member.workers for member in self.members)

    def member(self, node: str) -> Member | None:
        if len(self.members) > LARGE:
            return _by_node(self.members).get(node)
        return next((m for m in self.members if m.node == node), None)

    def first_rank(self, slot: int) -> int:
        """Return the global rank of the first worker of the node in `slot`."""
        return sum(m.workers for m in self.members if m.slot < slot)

    def ranks(self, member: Member) -> tuple[int, ...]:
        """Return the global ranks of the member's workers."""
        first = self.first_rank(member.slot)
        return tuple(range(first, first + member.workers))


@dataclass(frozen=True, slots=True)
class RoundEnd:
    """What one node saw of a round that ended. Times are in seconds since the epoch, 0 if none."""

    incarnation: str
    first_step_at: float = 0.0
    last_step: int = 0
    last_step_at: float = 0.0


@dataclass(frozen=True, slots=True)
class SlotOffer:
    """Snapshots that a node outside a proposed round still holds, and serves while it lives."""

    round: str
    """The proposed round's incarnation."""
    daemon: str
    snapshots: tuple[Snapshot, ...]


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A member's answer to a proposed round; one leased key per node."""

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
    """What the member saw of the round before."""
    rested: str = ""
    """The round before, if its workers were in it, or could have entered it, and rest."""
    standings: tuple[Standing, ...] = ()
    """Where these workers rest, by local rank."""
    run_id: str = ""
    """The run's id as the storage says, from the node in slot 0 that has claimed it."""
    ancestry: Ancestry | None = None
    """Of the round that the node was in last, unless that is the parent of this one."""


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """A round that ended, kept as history under its number. Times in seconds since the epoch."""

    round: Round
    first_step_at: float
    last_step: int
    last_step_at: float
    ended_at: float


_indexed: list[tuple[tuple[Member, ...], dict[str, Member]]] = []
"""The last members that were looked up, with their index. A decision asks for many of one round."""


def _by_node(members: tuple[Member, ...]) -> dict[str, Member]:
    for known, index in _indexed:
        if known is members:
            return index
    index = {member.node: member for member in reversed(members)}
    _indexed[:] = [(members, index), *_indexed[:3]]
    return index
