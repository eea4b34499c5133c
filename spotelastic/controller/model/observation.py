"""Dataclasses of the controller: the observation that it decides from, and its possible actions."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Literal

from spotelastic.cloud.events import CloudEvent, SpotWarning
from spotelastic.cloud.model import GroupMember, Instance, LaunchQuotas, WorkerGroup, ZoneOffer
from spotelastic.controller.model.short_lives import ShortLives
from spotelastic.model.job import ENDED, Capacity, Ending, Job, Settings
from spotelastic.model.measured import Series
from spotelastic.model.node import Node
from spotelastic.model.notice import Drain, Notice
from spotelastic.model.progress import Event, Point, Progress, SlowNode
from spotelastic.model.requests.command import LIFETIME, Answer, Command
from spotelastic.model.round import Round, RoundRecord

Fate = Literal["handled", "duplicate", "foreign", "unknown", "malformed"]

# -- what is seen --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the queue that has not been deleted."""

    receipt: str
    event: CloudEvent
    received_at: float

    @property
    def warns(self) -> str:
        """The instance that it says will be taken away; empty for none."""
        return self.event.instance if isinstance(self.event, SpotWarning) else ""


@dataclass(frozen=True, slots=True)
class PendingCommand:
    """A command that has arrived and has not been answered."""

    receipt: str
    command: Command | None
    """The command; None if it cannot be read."""
    sent_at: float


@dataclass(frozen=True, slots=True)
class DepartedNode:
    """A node that is no longer registered, and since when."""

    incarnation: str
    at: float
    joined: int = 0
    """Store revision of the registration that has ended; 0: not known."""


@dataclass(frozen=True, slots=True)
class LaunchFailures:
    """Failed launches of one pool in a row."""

    count: int
    at: float
    """When the last launch failed; `why` is its reason."""
    why: str = ""
    cause: str = ""
    """A `FailureCause`."""
    tries: int = 1
    """Number of tries. A group that misses many nodes asks for all of them in one try."""


REPLACED = "replace"
"""Kind of the event that tells that a slow node is replaced."""


@dataclass(frozen=True, slots=True)
class SlowReplacement:
    """On record, before it is made: that a node is replaced because it is slow."""

    node: str
    incarnation: str
    at: float
    slot: int
    """Its group rank, which its successor has as well."""


Pool = tuple[str, str]
"""Where launches succeed or fail together: (group, zone); without a zone: in all of a group's."""


@dataclass(frozen=True, slots=True)
class Money:
    """Amounts in US dollars."""

    spent: float = 0.0
    per_hour: float = 0.0
    """What all that runs now costs an hour."""
    spot: float = 0.0
    """What one more spot node costs an hour; 0: not known."""
    on_demand: float = 0.0
    """What one more on-demand node costs an hour."""
    workers: float = 0.0
    """What the workers that run now cost an hour."""


@dataclass(frozen=True, slots=True)
class ControllerPolicy:
    """Times and limits that the controller decides by, in seconds unless a name says otherwise."""

    boot_within: float = 900.0
    """Time for a new instance to register its node, before another is tried."""
    silent_for: float = 60.0
    """Time that a registered node may be away while its instance runs."""
    taken_within: float = 10.0
    """Time that the cloud has to take an instance after the end that a notice names."""
    strange_for: float = 60.0
    """Time that a worker instance may be in no group: answers are not all of one moment."""
    refused_after: int = 3
    """Failed launches in a row after which a group asks for no more than it has, for a while."""
    refused_for: float = 60.0
    """Length of that while at first; it doubles with every further try."""
    refused_at_most: float = 300.0
    """Longest such while: capacity that is back waits no longer, and asking for it is free."""
    return_after: float = 3600.0
    """Time until nodes may return to a zone that was left for lack of capacity."""
    remembers_for: float = 86_400.0
    """Time for which a zone that was left counts when another one is chosen."""
    boots_in: float = 120.0
    """Time for which a node is likely to be paid for before it trains."""
    pauses_for: float = 10.0
    """Time for which all nodes are likely to pause for one that comes and goes again."""
    short_lives: int = 3
    """How often nodes are taken before they have paid for that, until their zone is avoided."""
    avoided_for: float = 900.0
    """Length of that while at first; it doubles with every further time."""
    avoided_at_most: float = 21_600.0
    ends_within: float = 180.0
    """Time that a job may take, and cost, after it was told to stop."""
    slow_an_hour: int = 2
    """Most nodes that are replaced within an hour because they are slow."""
    slow_again_after: float = 86_400.0
    """Time within which no second node of a group rank is replaced for that: if its successor is
    slow, too, the script gives that rank more work than others, or the data does."""
    replaces_ahead: float = 3600.0
    """Time before a scheduled end from when on its node is replaced, if nothing is missing."""
    command_lifetime: float = LIFETIME
    """Time for which a command may be carried out; its sender then says that no answer came."""
    capacity: Capacity = Capacity()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """What follows from the events on record, whoever leads (`Remembered`)."""

    told: Set[tuple[str, str, str]] = frozenset()
    """Events on record, each as `account` identifies it."""
    failed: Mapping[Pool, LaunchFailures] = field(default_factory=dict)
    """Failed launches in a row."""
    moved_at: int = 0
    """The newest commit when another zone was chosen, or when nodes last moved there."""
    zones_left: Mapping[str, float] = field(default_factory=dict)
    """When each zone was last left for another."""
    short_lives: Mapping[str, ShortLives] = field(default_factory=dict)
    """Zones in which nodes were taken soon after their launch."""
    given_back_at: int = 0
    """The newest commit when an on-demand node was last given back."""
    slow_replaced: tuple[SlowReplacement, ...] = ()
    preparing: Mapping[str, float] = field(default_factory=dict)
    """When each node last reported that it builds its environment, or sets itself up."""
    scheduled: Mapping[str, Notice] = field(default_factory=dict)
    """What was announced for each node, of several the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Records(Recalled):
    """The run's records in etcd at one moment."""

    job: Job | None = None
    ending: Ending | None = None
    """The requested end of the job, for which the nodes are saving."""
    settings: Settings | None = None
    """The settings that the nodes have; None before the first node."""
    round: Round | None = None
    leader: str = ""
    """The instance whose controller leads; empty while none does."""
    controllers: frozenset[str] = frozenset()
    nodes: Mapping[str, Node] = field(default_factory=dict)
    """The nodes that are registered now."""
    left: Mapping[str, DepartedNode] = field(default_factory=dict)
    """Nodes that were registered and no longer are."""
    lost: Mapping[str, DepartedNode] = field(default_factory=dict)
    """How nodes have left last that had no notice. They may be back, and their loss untold."""
    joined: Mapping[str, int] = field(default_factory=dict)
    """Store revision of each node's registration."""
    drains: Mapping[str, Drain] = field(default_factory=dict)
    progress: Mapping[str, Progress] = field(default_factory=dict)
    """The last report of every node, including nodes that have left."""
    history: tuple[RoundRecord, ...] = ()
    events: tuple[Event, ...] = ()
    slow: Mapping[str, SlowNode] = field(default_factory=dict)
    """Nodes that keep the others waiting."""
    points: tuple[Point, ...] = ()
    measured: Mapping[str, Series] = field(default_factory=dict)
    """What the script logs, and how busy GPUs are, over the run's time."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Keys of the run whose values this version cannot read, and why."""

    def told_of(self, kind: str) -> tuple[Event, ...]:
        """Return the events of this kind."""
        return tuple(event for event in self.events if event.kind == kind)

    @property
    def of_round(self) -> Mapping[str, Progress]:
        """What each member of the round that has started reports of it."""
        round_ = self.round
        if round_ is None or round_.phase != "started":
            return {}
        told = {each.node: self.progress.get(each.node) for each in round_.members}
        return {node: it for node, it in told.items() if it and it.round == round_.number}


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation(Records):
    """What the controller observed at one moment, and decides from."""

    desired: int
    """Number of worker nodes that the job should have while it runs."""
    since: float
    """When this controller began to watch. It cannot miss what was gone before."""
    types: tuple[str, ...] = ()
    """Instance types of the workers."""
    quotas: LaunchQuotas = LaunchQuotas()
    """The quotas that launches count against, for people."""
    control_groups: frozenset[str] = frozenset()
    """Names of the control nodes' groups."""
    wanted: Settings | None = None
    """The settings that the user wants by now."""
    group: WorkerGroup | None = None
    """The group of spot instances; None if the cloud knows no such group (any more)."""
    on_demand: WorkerGroup | None = None
    least: int = 1
    """Number of nodes without which the job does not train."""
    hopeless: bool = False
    """Whether boots have failed one after the other, so that a node launched now would fail too."""
    short_since: float | None = None
    """Since when fewer than `least` nodes are registered; None: there are enough."""
    zones: tuple[ZoneOffer, ...] = ()
    """The zones to choose from, if nodes are to be packed into one; else empty."""
    money: Money = Money()
    exchanged: float = 0.0
    """GB an hour that each node of the round sends to others; 0: not measured."""
    committed: int = 0
    """The newest step in the object store."""
    machines: Mapping[str, Instance] = field(default_factory=dict)
    slots: Mapping[str, int] = field(default_factory=dict)
    """Group ranks of the nodes that train. A smaller round leaves out the highest."""
    messages: tuple[Message, ...] = ()
    handled: frozenset[str] = frozenset()
    """Ids of the cloud's events that were dealt with before."""
    orders: tuple[PendingCommand, ...] = ()
    answered: frozenset[str] = frozenset()
    """Ids of commands that were answered before."""

    def tell_once(
        self, event: Event, after: tuple["Action", ...] = (), cause: str = ""
    ) -> tuple["Tell", ...]:
        """Return what puts an event on record; nothing if it is there."""
        return () if account(event) in self.told else (Tell(event, after, cause=cause),)

    @property
    def life(self) -> float:
        """When the present life of the job began; 0: none has."""
        return self.job.at if self.job is not None else 0.0

    @property
    def ended(self) -> bool:
        return self.job is not None and self.job.state in ENDED

    @property
    def groups(self) -> tuple[WorkerGroup, ...]:
        return tuple(group for group in (self.group, self.on_demand) if group is not None)

    @property
    def home(self) -> ZoneOffer | None:
        """The zone that the groups launch in; None while that is several."""
        launching = {subnet for group in self.groups for subnet in group.subnets}
        found = (zone for zone in self.zones if launching and launching <= set(zone.subnets))
        return next(found, None)

    def newly_committed(self, since: int) -> bool:
        """Whether there was a commit since that step's.

        A lower step is newer too, if the script sent the run back.
        """
        return self.committed not in (0, since)

    def pool(self, group: WorkerGroup) -> Pool:
        """Return the pool that the group launches in now."""
        return group.name, "" if self.home is None else self.home.name

    @property
    def members(self) -> tuple[GroupMember, ...]:
        return tuple(member for group in self.groups for member in group.members)

    @property
    def staying(self) -> list[str]:
        """The members that are not leaving."""
        return [member.instance for member in self.members if not member.leaving]

    def group_of(self, instance: str) -> WorkerGroup | None:
        return next((each for each in self.groups if each.member(instance)), None)

    def member(self, instance: str) -> GroupMember | None:
        group = self.group_of(instance)
        return None if group is None else group.member(instance)

    def warning(self, instance: str) -> str:
        """Return the id of the message that warns of the instance; empty for none.

        Ending the instance answers it.
        """
        found = (each.event.id for each in self.messages if each.warns == instance)
        return next(found, "")

    def restarts(self, node: str, incarnation: str) -> bool:
        """Whether the node left only to come back with other code."""
        return ("restart", node, f"::{incarnation}") in self.told

    def booted_from(self, machine: Instance) -> float:
        """Return from when on the instance's node is waited for.

        It may take long to prepare, and reports that.
        """
        return max(machine.launched_at, self.since, self.preparing.get(machine.id, 0.0))

    def is_there(self, member: GroupMember) -> bool:
        """Whether the member's node is registered and stays."""
        gone = member.leaving or member.instance in self.drains
        return not gone and member.instance in self.nodes


# -- what is done --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CausedAction:
    """An action."""

    cause: str = ""
    """The id of the message that caused it; empty: none did."""


@dataclass(frozen=True, slots=True)
class DrainNode(CausedAction):
    """Make the node leave."""

    drain: Drain


@dataclass(frozen=True, slots=True)
class Replace(CausedAction):
    """End an instance of a group, which replaces it if its size says so."""

    instance: str
    reason: str


@dataclass(frozen=True, slots=True)
class Remove(CausedAction):
    """End an instance of a group, and shrink the group by it."""

    instance: str
    reason: str


@dataclass(frozen=True, slots=True)
class CompleteDrain(CausedAction):
    """Tell the group not to wait for this terminating instance any longer."""

    instance: str
    group: str


@dataclass(frozen=True, slots=True)
class EndMachine(CausedAction):
    """End an instance that no group accounts for."""

    instance: str
    reason: str


@dataclass(frozen=True, slots=True)
class Forget(CausedAction):
    """Drop the registration of a node whose instance is gone, before its lease runs out."""

    node: Node


@dataclass(frozen=True, slots=True)
class SetDesired(CausedAction):
    group: str
    size: int
    reason: str


@dataclass(frozen=True, slots=True)
class SetSubnets(CausedAction):
    """Let the group launch in these subnets. Instances in others stay."""

    group: str
    subnets: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class ResumeLaunches(CausedAction):
    """Let a group that the cloud has suspended launch again."""

    group: str


@dataclass(frozen=True, slots=True)
class AskToEnd(CausedAction):
    """Have the nodes save, and end the job then."""

    ending: Ending


@dataclass(frozen=True, slots=True)
class EndJobAtOnce(CausedAction):
    """End the job at once."""

    job: Job


@dataclass(frozen=True, slots=True)
class Revive(CausedAction):
    """Let a job that has ended go on, from its newest commit, on new nodes."""

    job: Job
    settings: Settings


@dataclass(frozen=True, slots=True)
class Rescale(CausedAction):
    """Change the job's description as a command says."""

    command: Command


@dataclass(frozen=True, slots=True)
class Resettle(CausedAction):
    """Give the nodes other settings."""

    settings: Settings


@dataclass(frozen=True, slots=True)
class Tell(CausedAction):
    """Put an event on record."""

    event: Event
    after: tuple["Action", ...] = ()
    """Actions that the event reports. It is recorded once they are done."""


@dataclass(frozen=True, slots=True)
class Discard(CausedAction):
    """Delete a message, once every action that it caused is done."""

    message: Message
    fate: Fate


@dataclass(frozen=True, slots=True)
class Reply(CausedAction):
    """Answer a command and delete it, once what it causes is done."""

    order: PendingCommand
    answer: Answer | None
    """The answer; None: its sender no longer waits."""


Action = (
    DrainNode
    | Replace
    | Remove
    | CompleteDrain
    | EndMachine
    | Forget
    | SetDesired
    | SetSubnets
    | ResumeLaunches
    | AskToEnd
    | EndJobAtOnce
    | Revive
    | Rescale
    | Resettle
    | Tell
    | Discard
    | Reply
)


def account(event: Event) -> tuple[str, str, str]:
    """Return what identifies the occurrence that an event reports.

    It is the id of the cloud's event, if there is one.

    A node is lost once for each registration, whichever source reports it first. That somebody has
    ended it by hand may be known only later, and is then told as well.
    """
    if id := str(event.data.get("id", "")):
        return event.kind, event.node, id
    told = {**event.data, "source": ""} if event.kind == "loss" else event.data
    names = ("kind", "source", "incarnation", *(("joined",) if "joined" in told else ()))
    return event.kind, event.node, ":".join(str(told.get(name, "")) for name in names)
