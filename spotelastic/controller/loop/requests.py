"""What a turn of the leader asks for, and what it is answered: plain values (pure).

`turn.py` yields requests and receives answers; `leader_loop.py` carries them out. A turn can be
repeated from its answers alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spotelastic.cloud.model import Instance, LaunchQuotas, WorkerGroup, ZoneOffer
from spotelastic.controller.accounting.status import Account
from spotelastic.controller.accounting.usage import Bill
from spotelastic.controller.decisions import housekeeping
from spotelastic.controller.model.observation import Action, Message, PendingCommand, Records
from spotelastic.model.job import JobSpec
from spotelastic.model.progress import Event
from spotelastic.notifications.notification import Notification

AnyAction = Action | housekeeping.Action

# -- what is asked for ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Read the job, and the records of the leader before."""


@dataclass(frozen=True, slots=True)
class LookAtJob:
    """Read the job's description again."""

    types: tuple[str, ...]
    """Instance types to name quotas for, if there is no description."""
    required: bool
    """Whether the look fails if it cannot be read. Otherwise the last one counts."""


@dataclass(frozen=True, slots=True)
class LookAtGroups:
    """Read the worker groups."""


@dataclass(frozen=True, slots=True)
class LookAtInstances:
    """Read the cluster's instances, and bring the bill up to date."""

    bill: Bill
    billed_at: float
    """When the bill was brought up to date before."""
    nat_gateways: int
    paid: frozenset[str] = frozenset()
    """Reservations that are paid for anyway."""


@dataclass(frozen=True, slots=True)
class NameZones:
    """Look up the zones of these subnets."""

    subnets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OfferZones:
    """Ask for prices and placement scores of zones."""

    zones: tuple[ZoneOffer, ...]
    types: tuple[str, ...]
    nodes: int


@dataclass(frozen=True, slots=True)
class PriceNodes:
    """Look up what one more node costs: the cheapest of these types in these zones."""

    types: tuple[str, ...]
    zones: frozenset[str]


@dataclass(frozen=True, slots=True)
class Perform:
    """Perform actions."""

    actions: Sequence[AnyAction]


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish this account."""

    account: Account
    last: bool = False
    """Whether to wait for some seconds until that is done: the cluster is about to go."""


@dataclass(frozen=True, slots=True)
class Notify:
    """Send these notifications, which are on record, to the receivers of these names."""

    receivers: Mapping[str, int]
    notifications: tuple[Notification, ...]


@dataclass(frozen=True, slots=True)
class LogLine:
    """Log a line; a `failure` that lasts is not logged every time."""

    line: str
    failure: bool = False


Request = (
    TakeOver
    | LookAtJob
    | LookAtGroups
    | LookAtInstances
    | NameZones
    | OfferZones
    | PriceNodes
    | Perform
    | Publish
    | Notify
    | LogLine
)

# -- what is answered ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobRead:
    """Answers `LookAtJob`: what the bucket says of the job."""

    stopping: bool
    """Whether the cluster is to be taken down."""
    spec: JobSpec | None
    """The job's description; None if the bucket has none."""
    quotas: LaunchQuotas
    """The quotas that its nodes count against."""


@dataclass(frozen=True, slots=True)
class TakenOver:
    """Answers `TakeOver`: the job, and what the leader before had published."""

    job: JobRead
    bill: Bill
    billed_at: float
    short_since: float | None
    """Since when the leader before saw fewer nodes than the job needs."""


@dataclass(frozen=True, slots=True)
class GroupsSeen:
    """Answers `LookAtGroups`: the worker groups, by name."""

    groups: Mapping[str, WorkerGroup]


@dataclass(frozen=True, slots=True)
class InstancesSeen:
    """Answers `LookAtInstances`: the instances, by id, and the bill as of now."""

    instances: Mapping[str, Instance]
    bill: Bill
    prices_of: str
    """The date of the on-demand prices."""


@dataclass(frozen=True, slots=True)
class ZonesFound:
    """Answers `NameZones` and `OfferZones`."""

    zones: tuple[ZoneOffer, ...]


@dataclass(frozen=True, slots=True)
class NodePrices:
    """What one more node costs, in US dollars an hour; 0: not known."""

    spot: float = 0.0
    on_demand: float = 0.0


@dataclass(frozen=True, slots=True)
class Performed:
    """Answers `Perform`."""

    done: tuple[AnyAction, ...]
    """The actions that succeeded."""


@dataclass(frozen=True, slots=True)
class Published:
    """Answers `Publish`."""

    entries: tuple[Event, ...]
    """Interruptions of the newest report, and what is wrong, to be put on record."""


@dataclass(frozen=True, slots=True)
class Done:
    """Answers what needs no result, and questions that the leader can do without an answer to."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The call failed, and nothing can be decided without it."""

    error: str


Result = (
    JobRead
    | TakenOver
    | GroupsSeen
    | InstancesSeen
    | ZonesFound
    | NodePrices
    | Performed
    | Published
    | Done
    | Failed
)


@dataclass(frozen=True, slots=True)
class Inputs:
    """What has come from outside by now: etcd's records, messages, commands and the time."""

    now: float
    """Seconds since the epoch, on a clock that nothing sets back."""
    steady: float
    """Seconds of a clock for pauses."""
    chance: float
    """A random number from 0 to 1, for back-off."""
    records: Records = Records()
    messages: tuple[Message, ...] = ()
    """Messages that have not been deleted, the oldest first."""
    handled: frozenset[str] = frozenset()
    """Ids of events that were dealt with before."""
    commands: tuple[PendingCommand, ...] = ()
    answered: frozenset[str] = frozenset()
    """Ids of commands that were answered before."""
    undelivered: tuple[str, ...] = ()
    """Notifications that no receiver has taken yet: one line each."""


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """The result of a request, and what has come meanwhile."""

    result: Result
    inputs: Inputs = field(repr=False)
