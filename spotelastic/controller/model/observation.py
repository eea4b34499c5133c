"""The values that the controller decides from (an observation) and decides on (actions)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from spotelastic.aws.compute.autoscaling import GroupMember, Instance, ScalingGroup
from spotelastic.aws.compute.zone_ranking import Zone
from spotelastic.aws.messaging.eventbridge import AwsEvent, SpotWarning
from spotelastic.model.command import Answer, Command
from spotelastic.model.job import ENDED, Capacity, Ending, Job, Settings
from spotelastic.model.node import Node
from spotelastic.model.notice import Drain
from spotelastic.model.progress import Event

Fate = Literal["handled", "duplicate", "foreign", "unknown", "malformed"]

# -- what is seen --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the queue that has not been deleted."""

    receipt: str
    event: AwsEvent
    received_at: float

    @property
    def warns(self) -> str:
        """The instance that it says will be taken away; "" for none."""
        return self.event.instance if isinstance(self.event, SpotWarning) else ""


@dataclass(frozen=True, slots=True)
class PendingCommand:
    """A command that has arrived and has not been answered."""

    receipt: str
    command: Command | None
    """None: it cannot be read."""
    sent_at: float


@dataclass(frozen=True, slots=True)
class DepartedNode:
    """A node that is not registered any more, and since when."""

    incarnation: str
    at: float


@dataclass(frozen=True, slots=True)
class LaunchFailures:
    """Launches of one pool in a row that came to nothing."""

    count: int
    at: float
    """The last one's, as is why."""
    why: str = ""
    cause: str = ""
    """capacity, quota or other."""
    tries: int = 1
    """A group that misses many nodes asks for all of them at once: that is one try."""


Pool = tuple[str, str]
"""Where launches succeed or fail together: (group, zone), with "" for all of a group's zones."""


@dataclass(frozen=True, slots=True)
class Money:
    """US dollars."""

    spent: float = 0.0
    per_hour: float = 0.0
    """For all that runs now."""
    spot: float = 0.0
    """For one more spot node and an hour; 0: not known."""
    on_demand: float = 0.0
    """For one more on demand."""


@dataclass(frozen=True, slots=True)
class ControllerPolicy:
    """Seconds unless a name says otherwise."""

    boot_within: float = 900.0
    """For a new instance to register its node; after that another is tried."""
    silent_for: float = 60.0
    """A node that was registered may be away for so long while its machine runs."""
    taken_within: float = 10.0
    """After the end that a notice names, AWS has so long to take the machine."""
    strange_for: float = 60.0
    """A worker in no group may live for so long: AWS's answers are not all of one moment."""
    refused_after: int = 3
    """Failed launches in a row after which a group asks for no more than it has, for a while."""
    refused_for: float = 60.0
    """How long at first; it doubles with every further try."""
    refused_at_most: float = 300.0
    """Capacity that is back waits so long for us at worst, and asking for it is free."""
    return_after: float = 3600.0
    """Until nodes may go to a zone again that was left for want of capacity."""
    remembers_for: float = 86_400.0
    """That a zone was left, when another one is chosen."""
    boots_in: float = 120.0
    """For how long a node is likely to be paid for before it trains."""
    ends_within: float = 180.0
    """What a job that is stopped may still take, and cost."""
    capacity: Capacity = Capacity()


@dataclass(frozen=True, slots=True)
class Observation:
    """One observation."""

    desired: int
    """Worker nodes that the job should have while it runs."""
    since: float
    """When this controller began to watch: what it never saw, it cannot miss before."""
    job: Job | None = None
    ending: Ending | None = None
    """Asked for; the nodes are saving for it."""
    settings: Settings | None = None
    """As the nodes have them; None before the first node."""
    types: tuple[str, ...] = ()
    """Of the workers' instances."""
    region: str = ""
    wanted: Settings | None = None
    """As the user wants them by now."""
    group: ScalingGroup | None = None
    """Of spot instances; None where AWS knows no such group (any more)."""
    on_demand: ScalingGroup | None = None
    least: int = 1
    """Nodes without which the job does not train."""
    hopeless: bool = False
    """Boots have failed one after the other: a node that is launched now would fail, too."""
    short_since: float | None = None
    """Since when fewer than that are registered; None: there are enough."""
    failed: Mapping[Pool, LaunchFailures] = field(default_factory=dict)
    zones: tuple[Zone, ...] = ()
    """Those that the nodes may be in, where they are to be packed into one; else empty."""
    moved_at: int = 0
    """The newest commit when another zone was chosen, or when nodes last went there."""
    zones_left: Mapping[str, float] = field(default_factory=dict)
    """When each zone was left for another last."""
    money: Money = Money()
    committed: int = 0
    """The newest step in the object store."""
    given_back_at: int = 0
    """What that was when an on-demand node was given back last."""
    machines: Mapping[str, Instance] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    """Those registered now."""
    slots: Mapping[str, int] = field(default_factory=dict)
    """Of the nodes that train; a smaller round leaves out the highest."""
    left: Mapping[str, DepartedNode] = field(default_factory=dict)
    """Nodes that were registered and are not any more."""
    preparing: Mapping[str, float] = field(default_factory=dict)
    """When each node last told that it builds its environment, or sets itself up."""
    drains: Mapping[str, Drain] = field(default_factory=dict)
    told: frozenset[tuple[str, str, str]] = frozenset()
    """Events on record, each as `account` gives it."""
    messages: tuple[Message, ...] = ()
    handled: frozenset[str] = frozenset()
    """Ids of AWS's events that were dealt with before."""
    orders: tuple[PendingCommand, ...] = ()
    answered: frozenset[str] = frozenset()
    """Ids of commands that were."""

    @property
    def ended(self) -> bool:
        return self.job is not None and self.job.state in ENDED

    @property
    def groups(self) -> tuple[ScalingGroup, ...]:
        return tuple(group for group in (self.group, self.on_demand) if group is not None)

    @property
    def home(self) -> Zone | None:
        """The zone that the groups launch in; None while that is several."""
        launching = {subnet for group in self.groups for subnet in group.subnets}
        found = (zone for zone in self.zones if launching and launching <= set(zone.subnets))
        return next(found, None)

    def newly_committed(self, since: int) -> bool:
        """Whether there was a commit since the one of that step. A lower one is newer, too: of a
        run that its script has sent back."""
        return self.committed not in (0, since)

    def pool(self, group: ScalingGroup) -> Pool:
        """Which one the group launches in now."""
        return group.name, "" if self.home is None else self.home.name

    def place(self, instance: str) -> GroupMember | None:
        found = (group.place(instance) for group in self.groups)
        return next((place for place in found if place is not None), None)

    def warning(self, instance: str) -> str:
        """Id of the message that warns of it, "" for none: who ends the instance answers it."""
        found = (each.event.id for each in self.messages if each.warns == instance)
        return next(found, "")

    def restarts(self, node: str, incarnation: str) -> bool:
        """Whether it went only to come back with other code."""
        return ("restart", node, f"::{incarnation}") in self.told

    def booted_from(self, machine: Instance) -> float:
        """From when on its node is waited for: it may take long to prepare, and tells so."""
        return max(machine.launched_at, self.since, self.preparing.get(machine.id, 0.0))

    def is_there(self, place: GroupMember) -> bool:
        """Its node is registered, and stays."""
        gone = place.leaving or place.instance in self.drains
        return not gone and place.instance in self.nodes


# -- what is done --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DrainNode:
    """Make the node leave."""

    drain: Drain
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Replace:
    """End an instance of the group; the group fills the place if its size says so."""

    instance: str
    reason: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Remove:
    """End an instance of a group, which becomes smaller by it."""

    instance: str
    reason: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class CompleteDrain:
    """The group need not wait for this terminating instance (any longer)."""

    instance: str
    group: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class EndMachine:
    """End an instance that no group accounts for."""

    instance: str
    reason: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop the registration of a node whose machine is gone, before its lease runs out."""

    node: Node
    cause: str = ""


@dataclass(frozen=True, slots=True)
class SetDesired:
    group: str
    size: int
    reason: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class SetSubnets:
    """Let the group launch in these subnets; who is in others stays."""

    group: str
    subnets: tuple[str, ...]
    reason: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class ResumeLaunches:
    """Let the group launch again, which AWS has suspended."""

    group: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class AskToEnd:
    """Have the nodes save, and end the job then."""

    ending: Ending
    cause: str = ""


@dataclass(frozen=True, slots=True)
class EndJobAtOnce:
    """At once."""

    job: Job
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Revive:
    """Let a job that has ended go on, from what is committed, on new nodes."""

    job: Job
    settings: Settings
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Rescale:
    """Change the job's description as a command says."""

    command: Command
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Resettle:
    """Give the nodes other settings."""

    settings: Settings
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Tell:
    """Put an event on record."""

    event: Event
    cause: str = ""
    after: tuple["Action", ...] = ()
    """What it tells was done: it is told once that is."""


@dataclass(frozen=True, slots=True)
class Discard:
    """Delete a message, once every action that it caused is done."""

    message: Message
    fate: Fate
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer a command and delete it, once what it causes is done."""

    order: PendingCommand
    answer: Answer | None
    """None: nobody waits for one."""
    cause: str = ""


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
    """What makes two accounts of one thing the same: the id of AWS's event, where there is one.

    A node is lost once, whoever says so first.
    """
    if id := str(event.data.get("id", "")):
        return event.kind, event.node, id
    told = {**event.data, "source": ""} if event.kind == "loss" else event.data
    which = (str(told.get(name, "")) for name in ("kind", "source", "incarnation"))
    return event.kind, event.node, ":".join(which)
