"""What a leading controller knows and remembers between its turns, as one value (pure).

`turn.py` alone changes it, by what its calls return.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from statistics import mean

from spotelastic.cloud.model import (
    ALIVE,
    GroupNames,
    Instance,
    LaunchQuotas,
    WorkerGroup,
    ZoneOffer,
)
from spotelastic.controller.accounting import rehearsals, training_pace, troubles, usage
from spotelastic.controller.accounting.status import Account, reached, run_total
from spotelastic.controller.accounting.usage import Bill
from spotelastic.controller.decisions import capacity, housekeeping, short_lives
from spotelastic.controller.decisions.housekeeping import BOOT, ClusterState, Examine, Postpone
from spotelastic.controller.decisions.throttle import CloudThrottle, WarningRetry
from spotelastic.controller.decisions.urgent import Membership, acted
from spotelastic.controller.loop.wanted_job import WantedJob
from spotelastic.controller.model.config import ControllerConfig
from spotelastic.controller.model.observation import (
    Action,
    Discard,
    Fate,
    Message,
    Observation,
    PendingCommand,
    Records,
    Remove,
    Replace,
    Tell,
    account,
)
from spotelastic.model.counting import HOUR
from spotelastic.model.job import ENDED, JobSpec
from spotelastic.model.progress import LEDGER, newest_committed
from spotelastic.notifications.due import NotificationFacts

SHOWN_WITHIN = 60.0
"""Seconds after its launch within which an instance may be left out of an answer."""
_LAST: Mapping[str, int] = {"shutting-down": 1, "terminated": 2}
"""States that an instance never leaves for one before."""

AnyAction = Action | housekeeping.Action
Ended = Mapping[str, Replace | Remove]
"""What the groups were told to end, by instance."""


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
    commands: tuple[PendingCommand, ...] = ()
    answered: frozenset[str] = frozenset()
    undelivered: tuple[str, ...] = ()
    """Notifications that no receiver has taken yet: one line each."""


@dataclass(frozen=True, slots=True)
class JobRead:
    """What the bucket says of the job."""

    stopping: bool
    """Whether the cluster is to be taken down."""
    spec: JobSpec | None
    quotas: LaunchQuotas
    """The quotas that its nodes count against."""


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The job, and what the leader before had published."""

    job: JobRead
    bill: Bill
    billed_at: float
    short_since: float | None
    """Since when the leader before saw fewer nodes than the job needs."""


def groups_now(groups: Mapping[str, WorkerGroup], ended: Ended) -> dict[str, WorkerGroup]:
    """Return the groups as they are by now.

    An instance that was told to end does not stay, and where it does, the answer is from before,
    with the size of then.

    An answer of a cloud may be some seconds old, and older than the one before. Deciding from it
    as it is would do things twice: end an instance again, and shrink its group by two.
    """
    return acted(groups, ended.values())


def instances_now(
    before: Mapping[str, Instance], found: Mapping[str, Instance], now: float
) -> dict[str, Instance]:
    """Return the instances as they are by now.

    One that has ended stays ended, and one that was just launched is not forgotten.
    """
    missing = {
        name: each
        for name, each in before.items()
        if name not in found and each.state in ALIVE and now - each.launched_at < SHOWN_WITHIN
    }
    return missing | {name: _later(before.get(name), each) for name, each in found.items()}


def _later(before: Instance | None, found: Instance) -> Instance:
    if before is not None and _LAST.get(before.state, 0) > _LAST.get(found.state, 0):
        return before
    return found


@dataclass(frozen=True, slots=True)
class CloudView:
    """What the cloud and the bucket showed at the last look."""

    job: WantedJob
    quotas: LaunchQuotas = LaunchQuotas()
    groups: Mapping[str, WorkerGroup] = field(default_factory=dict)
    instances: Mapping[str, Instance] = field(default_factory=dict)
    bill: Bill = field(default_factory=dict)
    """What each instance has cost so far."""
    billed_at: float = 0.0
    prices_of: str = ""
    subnets: tuple[str, ...] = ()
    """The subnets whose zones were looked up."""
    zones: tuple[ZoneOffer, ...] = ()
    """Their zones, without price and score."""


@dataclass(frozen=True, slots=True)
class LookSchedule:
    """When the cloud is looked at. Times are of the clock for pauses."""

    looked_at: float = 0.0
    """When it was looked at last; 0: not by this leader."""
    due_at: float = 0.0
    membership: Membership | None = None
    """The run's keys at the last look; None: the next decision must see what actions did."""
    received: frozenset[object] = frozenset()
    """Messages and commands that had come by the last decision."""


@dataclass(frozen=True, slots=True)
class LeaderState:
    """One leader's state between two turns."""

    since: float
    """When this leader began. It cannot miss what was gone before."""
    names: GroupNames
    view: CloudView
    throttle: CloudThrottle
    warnings: WarningRetry
    looks: LookSchedule = LookSchedule()
    taken_over: bool = False
    short_since: float | None = None
    """Since when there are fewer nodes than the job needs; None if there are enough."""
    total: int = 0
    """The step that the run ends with, as nodes told last; 0: the script does not say."""
    switch_at: float = 0.0
    """When the dead man's switch acts, as this leader has set it; 0: not set yet."""
    examined: frozenset[str] = frozenset()
    """Instances whose failed boot this leader has recorded."""
    told: frozenset[tuple[str, str, str]] = frozenset()
    """Events that this leader has recorded."""
    ended: Ended = field(default_factory=dict)
    """What this leader has told the groups to end, which the cloud may show only later."""
    fates: Mapping[Fate, int] = field(default_factory=dict)
    """Number of deleted messages, by what was done about them."""
    reason: str = ""

    @classmethod
    def first(cls, config: ControllerConfig, names: GroupNames, now: float) -> "LeaderState":
        """Return the state of a leader that has seen nothing yet."""
        pace = config.pace
        return cls(
            since=now,
            names=names,
            view=CloudView(WantedJob.first(config, names.on_demand)),
            throttle=CloudThrottle.first(pace.busy, pace.idle),
            warnings=WarningRetry.first(pace.busy),
        )

    # -- what changes it -------------------------------------------------------------------------

    def took_over(self, found: TakenOver, now: float) -> "LeaderState":
        known = self.job_read(found.job, now)
        view = replace(known.view, bill=found.bill, billed_at=found.billed_at)
        return replace(known, view=view, taken_over=True, short_since=found.short_since)

    def job_read(self, read: JobRead, now: float) -> "LeaderState":
        wanted = self.view.job.read(read.stopping, read.spec, now)
        return replace(self, view=replace(self.view, job=wanted, quotas=read.quotas))

    def groups_seen(self, groups: Mapping[str, WorkerGroup]) -> "LeaderState":
        return replace(self, view=replace(self.view, groups=groups_now(groups, self.ended)))

    def instances_seen(
        self, found: Mapping[str, Instance], bill: Bill, prices_of: str, now: float
    ) -> "LeaderState":
        there = instances_now(self.view.instances, found, now)
        view = replace(self.view, instances=there, bill=bill, billed_at=now, prices_of=prices_of)
        return replace(self, view=view)

    def performed(self, done: Sequence[AnyAction]) -> "LeaderState":
        told = {account(action.event) for action in done if isinstance(action, Tell)}
        examined = {action.machine.id for action in done if isinstance(action, Examine)}
        postponed = [action.until for action in done if isinstance(action, Postpone)]
        ended = {each.instance: each for each in done if isinstance(each, Replace | Remove)}
        fates = Counter(self.fates)
        fates.update(action.fate for action in done if isinstance(action, Discard))
        return replace(
            self,
            view=replace(self.view, groups=acted(self.view.groups, done)),
            told=self.told | told,
            ended={**self.ended, **ended},
            examined=self.examined | examined,
            switch_at=postponed[-1] if postponed else self.switch_at,
            fates=dict(fates),
        )

    def counted(self, records: Records, now: float) -> "LeaderState":
        """Return the state after the nodes have been counted, and what they have sent."""
        view, told = self.view, records.progress.values()
        training = records.of_round.keys() & records.nodes.keys()
        bill = usage.with_traffic(view.bill, told, training)
        total = run_total(records, self.total)
        known = replace(self, view=replace(view, bill=bill), total=total)
        ended = records.job is not None and records.job.state in ENDED
        if ended or len(records.nodes) >= self.view.job.settings.min_nodes:
            return replace(known, short_since=None)
        return replace(known, short_since=now) if self.short_since is None else known

    # -- what follows from it --------------------------------------------------------------------

    def observation(
        self, inputs: Inputs, records: Records, messages: tuple[Message, ...]
    ) -> Observation:
        """Return the observation to decide from, with the cloud as of the last look.

        It has no commands and no prices of further nodes.
        """
        job, view = self.view.job, self.view
        group = view.groups.get(self.names.spot)
        begun = bool(records.nodes or records.left or records.round)
        waits = capacity.held_back(job.settings, begun=begun)
        known = {each.name: getattr(records, each.name) for each in fields(records)}
        return Observation(
            **(known | {"told": records.told | self.told}),
            desired=1 if waits else job.settings.max_nodes,
            least=1 if waits else job.settings.min_nodes,
            wanted=job.settings,
            types=job.spec.instance_types,
            quotas=view.quotas,
            control_groups=self.names.control,
            since=self.since,
            group=group,
            on_demand=view.groups.get(self.names.on_demand),
            short_since=self.short_since,
            zones=view.zones if view.subnets and view.subnets == self.to_name else (),
            committed=newest_committed(records.progress.values()),
            machines=view.instances,
            slots={m.node: m.slot for m in records.round.members} if records.round else {},
            messages=messages,
            handled=inputs.handled,
            answered=inputs.answered,
            money=usage.money(view.bill.values(), inputs.now),
            exchanged=_exchanged(records),
        )

    @property
    def to_name(self) -> tuple[str, ...]:
        """The subnets whose zones have to be known, where nodes are packed into one of them."""
        group = self.view.groups.get(self.names.spot)
        packs = self.view.job.policy.capacity.zones == "pack"
        return group.offered if group is not None and packs else ()

    def cluster_state(self, records: Records) -> ClusterState:
        """Return what housekeeping decides from besides the observation."""
        rounds = [each.round for each in records.history]
        rounds += [records.round] if records.round is not None else []
        members = [member.node for each in rounds for member in each.members]
        settings = records.settings or self.view.job.settings
        began = records.job.at if records.job is not None else 0.0
        boots = records.told_of(BOOT)
        return ClusterState(
            minimum=settings.min_nodes,
            switch_at=self.switch_at,
            stopping=self.view.job.stopping,
            joined=frozenset((*records.nodes, *records.left, *members)),
            boots=tuple(event for event in boots if event.at > began),
            # The cloud shows those from before a restart for an hour.
            examined=frozenset((*self.examined, *(event.node for event in boots))),
            asked_at=self.view.job.asked_at,
        )

    def notification_facts(self, records: Records, now: float) -> NotificationFacts:
        """Return what notifications are made of."""
        job, round_ = self.view.job, records.round
        money = usage.money(self.view.bill.values(), now)
        return NotificationFacts(
            cluster=job.spec.cluster,
            job=records.job,
            round=round_,
            trained=round_ is not None and round_.phase == "started",
            step=reached(records),
            total=self.total,
            nodes=len(records.nodes),
            least=job.settings.min_nodes,
            short_since=self.short_since,
            spent=money.spent,
            per_hour=money.per_hour,
            capacity=job.policy.capacity,
            rehearsal=rehearsals.telling(records.events),
            proof=rehearsals.proof(records.events),
            validity=job.spec.validity,
            troubles=troubles.lasting(records.events),
            linger=job.upkeep.linger,
            digest=job.spec.digest,
            pace=training_pace.pace(records.points),
            ledger=records.told_of(LEDGER),
        )

    def account(self, records: Records, now: float, undelivered: tuple[str, ...] = ()) -> Account:
        """Return what is published of this moment."""
        view = self.view
        avoided = short_lives.lines(records.short_lives, now, view.job.policy)
        return Account(
            records,
            view.instances,
            view.bill,
            view.prices_of,
            dict(self.fates),
            self.short_since,
            (
                *(line for group in view.groups.values() for line in group.held),
                *(avoided if view.job.policy.capacity.zones == "pack" else ()),
                *undelivered,
            ),
            view.job.spec,
            self.total,
        )


def _exchanged(records: Records) -> float:
    """Return the GB an hour that each node sends to others, also while they pause.

    0: it is not measured.
    """
    told = (records.progress.get(node) for node in records.nodes)
    measured = [each.sending for each in told if each is not None and each.sending]
    return mean(measured or [0]) * HOUR / usage.GB
