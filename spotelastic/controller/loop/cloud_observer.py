"""Observes the cloud for a leader: the job's description, worker groups, instances, costs.

Each part is read by a call of its own and kept until the next one. `observation` puts what is known
together with the run's records in etcd, for the decisions.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import msgspec

from spotelastic.clock import Clock, steady, unbroken
from spotelastic.cloud import bucket
from spotelastic.cloud.model import GONE, Instance, WorkerGroup, ZoneOffer
from spotelastic.cloud.port import Cloud
from spotelastic.controller.accounting import usage
from spotelastic.controller.accounting.usage import Usage
from spotelastic.controller.decisions.housekeeping import BOOT, ClusterState
from spotelastic.controller.decisions.urgent import acted
from spotelastic.controller.effects.optional_query import OptionalQuery
from spotelastic.controller.effects.price_cache import ASKED_AGAIN_AFTER
from spotelastic.controller.effects.publisher import Account
from spotelastic.controller.etcd.etcd_mirror import Records
from spotelastic.controller.loop.wanted_job import WantedJob
from spotelastic.controller.model.config import ControllerConfig
from spotelastic.controller.model.observation import (
    Fate,
    Message,
    Money,
    Observation,
    PendingCommand,
)
from spotelastic.model.job import ENDED, JobSpec
from spotelastic.model.progress import Point, newest_committed

logger = logging.getLogger(__name__)

WITHOUT_OFFERS = "choosing a zone without prices and placement scores"
WITHOUT_ZONES = "deciding without the zones of the subnets"
WITHOUT_JOB = "going by the job as it was read last"


@dataclass(frozen=True, slots=True)
class ReceivedMessages:
    """The messages and commands that an observation is made with."""

    messages: tuple[Message, ...] = ()
    handled: frozenset[str] = frozenset()
    """Ids of the cloud's events that were dealt with before."""
    commands: tuple[PendingCommand, ...] = ()
    answered: frozenset[str] = frozenset()
    """Ids of commands that were answered before."""


class CloudObserver:
    """Keeps what the cloud showed at the last look."""

    def __init__(
        self,
        config: ControllerConfig,
        cloud: Cloud,
        clock: Clock = unbroken,
        steady: Clock = steady,
    ) -> None:
        self.job = WantedJob.first(config, cloud.provider.names.on_demand)
        """The job's description as it was read last."""
        self.groups: Mapping[str, WorkerGroup] = {}
        """The worker groups, by name."""
        self.instances: Mapping[str, Instance] = {}
        """The cluster's instances, by id."""
        self.bill: Mapping[str, Usage] = {}
        """What each instance has cost so far."""
        self._prices = cloud.prices
        self._provider = cloud.provider
        self._objects = cloud.objects
        self._config = config
        self._clock = clock
        self._since = clock()
        self._billed_at = 0.0
        self._short_since: float | None = None
        self._description = OptionalQuery(WITHOUT_JOB, config.pace.idle, logger.warning, steady)
        self._offers = OptionalQuery(WITHOUT_OFFERS, ASKED_AGAIN_AFTER, logger.warning, steady)
        self._subnets = OptionalQuery(WITHOUT_ZONES, config.pace.busy, logger.warning, steady)

    # -- looking ---------------------------------------------------------------------------------

    def take_over(self) -> list[Point]:
        """Reads the job and the records of the leader before. Returns the loss curve so far."""
        self._read_job_again(*self._read_job())
        bill = self._objects.get(bucket.USAGE)
        if bill:
            known = msgspec.json.decode(bill, type=list[Usage])
            self.bill = {each.instance: each for each in known}
        status = self._objects.status()
        self._billed_at = 0.0 if status is None else status.at
        self._short_since = None if status is None else status.short_since
        return self._objects.curve()

    def look_at_job(self, *, required: bool) -> None:
        """Reads the job's description again. If it cannot be read, the last one counts, except
        where it is `required`: a command is not carried out on an older description, but expires.
        """
        if required:
            self._read_job_again(*self._read_job())
        elif (found := self._description.ask(self._read_job)) is not None:
            self._read_job_again(*found)

    def look_at_groups(self) -> None:
        self.groups = self._provider.groups()

    def look_at_instances(self) -> None:
        instances = _own(self._provider.instances(), self._config.spec.born_at)
        self.instances = {instance.id: instance for instance in instances}
        now = self._clock()
        network = self._prices.network(self.job.nat_gateways)
        self.bill = usage.account(self.bill, instances, self._prices, now, self._billed_at, network)
        self._billed_at = now

    def acted(self, done: Iterable[object]) -> None:
        """Changes the groups as these actions do, until the next look."""
        self.groups = acted(self.groups, done)

    def _read_job(self) -> tuple[bool, JobSpec | None]:
        """Returns whether the cluster is to be taken down, and the job's description."""
        return self._objects.has(bucket.STOPPING), self._objects.job()

    def _read_job_again(self, stopping: bool, spec: JobSpec | None) -> None:
        self.job = self.job.read(stopping, spec, self._clock())

    # -- what is known ---------------------------------------------------------------------------

    def observation(
        self,
        records: Records,
        received: ReceivedMessages,
        told: frozenset[tuple[str, str, str]],
        *,
        priced: bool = True,
    ) -> Observation:
        """Returns an observation with the cloud as of the last look. `told`: events that are on
        record; `priced`: spot prices may be asked for.
        """
        wanted, names = self.job.settings, self._provider.names
        group = self.groups.get(names.spot)
        observation = Observation(
            desired=wanted.max_nodes,
            least=wanted.min_nodes,
            settings=records.settings,
            wanted=wanted,
            types=self.job.types,
            quotas=self._provider.quotas(self.job.types),
            control_groups=names.control,
            since=self._since,
            job=records.job,
            ending=records.ending,
            group=group,
            on_demand=self.groups.get(names.on_demand),
            short_since=self.short_since(records),
            failed=records.failed,
            zones=self._zones_of(group),
            moved_at=records.moved_at,
            zones_left=records.zones_left,
            committed=newest_committed(records.progress.values()),
            given_back_at=records.given_back_at,
            machines=self.instances,
            nodes=records.nodes,
            slots={m.node: m.slot for m in records.round.members} if records.round else {},
            left=records.left,
            preparing=records.preparing,
            drains=records.drains,
            told=told,
            messages=received.messages,
            handled=received.handled,
            orders=received.commands,
            answered=received.answered,
        )
        return replace(observation, money=self._money(observation, priced=priced))

    def offered(self, observation: Observation) -> tuple[ZoneOffer, ...]:
        """Returns the zones with prices and scores, if these may be asked for; else without."""
        zones, types, nodes = observation.zones, self.job.types, observation.desired
        return self._offers.ask(lambda: self._provider.offers(zones, types, nodes)) or zones

    def short_since(self, records: Records) -> float | None:
        """Returns since when there are fewer nodes than the job needs; None if there are enough."""
        ended = records.job is not None and records.job.state in ENDED
        if ended or len(records.nodes) >= self.job.settings.min_nodes:
            self._short_since = None
        elif self._short_since is None:
            self._short_since = self._clock()
        return self._short_since

    def cluster_state(
        self, records: Records, switch_at: float, examined: Iterable[str]
    ) -> ClusterState:
        """Returns what housekeeping decides from besides the observation. `switch_at`: when the
        dead man's switch acts; `examined`: instances whose failed boot this leader has recorded.
        """
        rounds = [each.round for each in records.history]
        rounds += [records.round] if records.round is not None else []
        members = [member.node for each in rounds for member in each.members]
        settings = records.settings or self._config.spec.settings
        began = records.job.at if records.job is not None else 0.0
        boots = [event for event in records.events if event.kind == BOOT]
        return ClusterState(
            minimum=settings.min_nodes,
            switch_at=switch_at,
            stopping=self.job.stopping,
            joined=frozenset((*records.nodes, *records.left, *members)),
            boots=tuple(event for event in boots if event.at > began),
            # EC2 shows those from before a restart for an hour.
            examined=frozenset((*examined, *(event.node for event in boots))),
            asked_at=self.job.asked_at,
        )

    def account(self, records: Records, fates: Mapping[Fate, int]) -> Account:
        """Returns what is published of this moment. `fates`: how many of the cloud's messages were
        deleted, by what they were.
        """
        short = self.short_since(records)
        date = self._prices.date
        return Account(records, self.instances, self.bill, date, dict(fates), short)

    def _zones_of(self, group: WorkerGroup | None) -> tuple[ZoneOffer, ...]:
        """Returns the zones to choose from, for nodes packed into one. Empty until the cloud has
        been asked.
        """
        if group is None or self.job.policy.capacity.zones != "pack":
            return ()
        return self._subnets.ask(lambda: self._provider.zones(group.offered)) or ()

    def _money(self, observation: Observation, *, priced: bool) -> Money:
        money = usage.money(self.bill.values(), self._clock())
        capacity = self.job.policy.capacity
        if (capacity.max_price is None and capacity.max_cost is None) or not priced:
            return money
        zones = {instance.zone for instance in self.instances.values() if instance.zone}
        zones = zones if observation.home is None else {observation.home.name}
        pools = [(type, zone) for type in self.job.types for zone in zones]
        prices = [price for pool in pools if (price := self._prices.spot(*pool))]
        listed = [usd for type in self.job.types if (usd := self._prices.on_demand(type))]
        return replace(money, spot=min(prices, default=0.0), on_demand=min(listed, default=0.0))


def _own(instances: Iterable[Instance], born_at: float) -> tuple[Instance, ...]:
    """Returns the instances without those of an earlier cluster of this name, which EC2 shows for
    an hour after their end.
    """
    return tuple(i for i in instances if i.state not in GONE or i.launched_at >= born_at)
