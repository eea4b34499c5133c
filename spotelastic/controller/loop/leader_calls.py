"""What a leading controller calls: it reads its cloud and its bucket, acts, publishes, notifies.

Nothing is remembered here but pauses after questions that were not answered.
"""

import logging
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from spotelastic_checkpoints import log_records
from spotelastic_checkpoints.backoff import Draw
from spotelastic_checkpoints.decoders import from_json

from spotelastic.clock import Clock, steady, unbroken
from spotelastic.cloud import bucket
from spotelastic.cloud.events import CloudEvent
from spotelastic.cloud.model import GONE, Instance, WorkerGroup, ZoneOffer
from spotelastic.cloud.port import Cloud
from spotelastic.controller.accounting import usage
from spotelastic.controller.accounting.status import Account
from spotelastic.controller.accounting.usage import Bill, Usage
from spotelastic.controller.effects.complaint import Complaint
from spotelastic.controller.effects.executor import ControllerExecutor
from spotelastic.controller.effects.inbox import Inbox
from spotelastic.controller.effects.optional_query import OptionalQuery
from spotelastic.controller.effects.price_cache import ASKED_AGAIN_AFTER
from spotelastic.controller.effects.publisher import Publisher
from spotelastic.controller.etcd.etcd_mirror import Mirror
from spotelastic.controller.etcd.snapshots import Snapshots
from spotelastic.controller.loop.leader_state import (
    AnyAction,
    CloudView,
    Inputs,
    JobRead,
    TakenOver,
)
from spotelastic.controller.model.config import ControllerConfig
from spotelastic.controller.model.observation import Message, PendingCommand
from spotelastic.model.progress import Event
from spotelastic.model.requests.command import Command
from spotelastic.notifications.notification import Notification
from spotelastic.notifications.notifier import Notifier

logger = logging.getLogger(__name__)

WITHOUT_OFFERS = "choosing a zone without prices and placement scores"
WITHOUT_ZONES = "deciding without the zones of the subnets"
WITHOUT_JOB = "going by the job as it was read last"


@dataclass(frozen=True, slots=True)
class Collaborators:
    """The parts with effects that one leader uses, and closes at its end."""

    executor: ControllerExecutor
    events: Inbox[CloudEvent, Message]
    commands: Inbox[Command | None, PendingCommand]
    publisher: Publisher
    snapshots: Snapshots
    notifier: Notifier
    """Outlives the leader: what it has put on record is sent by nobody else."""

    def close(self) -> None:
        for part in (self.events, self.commands, self.snapshots, self.publisher):
            part.close()


class LeaderCalls:
    """Makes the calls of a leader's turns.

    Those without which nothing can be decided raise `Unavailable` or `EnvironmentFailure`; others
    return None then.
    """

    def __init__(
        self,
        config: ControllerConfig,
        cloud: Cloud,
        mirror: Mirror,
        collaborators: Collaborators,
        clock: Clock = unbroken,
        steady: Clock = steady,
        draw: Draw = random.uniform,
    ) -> None:
        """`draw` returns a random number between two, for back-off."""
        self._spec = config.spec
        self._cloud = cloud
        self._mirror = mirror
        self._with = collaborators
        self._clock = clock
        self._steady = steady
        self._draw = draw
        self.complain = Complaint(logger.warning, steady)
        self._description = OptionalQuery(WITHOUT_JOB, config.pace.idle, logger.warning, steady)
        self._offers = OptionalQuery(WITHOUT_OFFERS, ASKED_AGAIN_AFTER, logger.warning, steady)
        self._subnets = OptionalQuery(WITHOUT_ZONES, config.pace.busy, logger.warning, steady)

    def inputs(self) -> Inputs:
        """Return what has come from outside by now."""
        records = self._mirror.records()
        if records.round is not None:
            log_records.entered(records.round.number, records.round.cause)
        events, commands = self._with.events, self._with.commands
        return Inputs(
            now=self._clock(),
            steady=self._steady(),
            chance=self._draw(0.0, 1.0),
            records=records,
            messages=events.messages,
            handled=events.handled,
            commands=commands.messages,
            answered=commands.handled,
            undelivered=self._with.notifier.undelivered,
        )

    # -- reading ---------------------------------------------------------------------------------

    def take_over(self) -> TakenOver:
        """Read the job, and the records of the leader before."""
        job, objects = self._read_job(self._spec.instance_types), self._cloud.objects
        usage_so_far = from_json(objects.get(bucket.USAGE) or b"[]", list[Usage])
        status = objects.status()
        self._mirror.remember(objects.curve(), objects.measured())
        return TakenOver(
            job,
            {each.instance: each for each in usage_so_far},
            0.0 if status is None else status.at,
            None if status is None else status.short_since,
        )

    def job(self, types: tuple[str, ...], *, required: bool) -> JobRead | None:
        """Read the job's description; `types` are those to name quotas for if there is none.

        A command is not carried out on an older one, but expires: then it is required.
        """
        if required:
            return self._read_job(types)
        return self._description.ask(lambda: self._read_job(types))

    def groups(self) -> Mapping[str, WorkerGroup]:
        """Return the worker groups, by name."""
        return self._cloud.provider.groups()

    def instances(self, view: CloudView) -> tuple[Mapping[str, Instance], Bill, str]:
        """Return the instances, by id, the bill up to now, and the date of on-demand prices."""
        prices, spec = self._cloud.prices, view.job.spec
        found = _own(self._cloud.provider.instances(), self._spec.born_at)
        bill = usage.account(
            view.bill,
            found,
            prices,
            self._clock(),
            view.billed_at,
            prices.network(spec.nat_gateways),
            spec.capacity.paid,
        )
        return {instance.id: instance for instance in found}, bill, prices.date

    def zones(self, subnets: tuple[str, ...]) -> tuple[ZoneOffer, ...] | None:
        """Look up the zones of these subnets."""
        return self._subnets.ask(lambda: self._cloud.provider.zones(subnets))

    def offers(
        self, zones: tuple[ZoneOffer, ...], types: tuple[str, ...], nodes: int
    ) -> tuple[ZoneOffer, ...] | None:
        """Ask for prices and placement scores of zones."""
        return self._offers.ask(lambda: self._cloud.provider.offers(zones, types, nodes))

    def prices(self, types: tuple[str, ...], zones: Iterable[str]) -> tuple[float, float]:
        """Return what one more node costs an hour, on spot and on demand; 0: not known.

        That is the cheapest of these types in these zones.
        """
        prices = self._cloud.prices
        pools = [(type, zone) for type in types for zone in zones]
        spot = [usd for pool in pools if (usd := prices.spot(*pool))]
        listed = [usd for type in types if (usd := prices.on_demand(type))]
        return min(spot, default=0.0), min(listed, default=0.0)

    def _read_job(self, types: tuple[str, ...]) -> JobRead:
        objects = self._cloud.objects
        stopping, spec = objects.has(bucket.STOPPING), objects.job()
        if spec is not None and spec.regions is not None and objects.has(bucket.MOVING):
            # It has ended in this region alone, and its cluster sleeps when it is elsewhere.
            spec = replace(spec, linger=None)
        quotas = self._cloud.provider.quotas(spec.instance_types if spec else types)
        return JobRead(stopping, spec, quotas)

    # -- acting ----------------------------------------------------------------------------------

    def perform(self, actions: Sequence[AnyAction]) -> tuple[AnyAction, ...]:
        """Perform actions, and return those that succeeded."""
        done = self._with.executor.perform(actions)
        self._with.events.settle(done)
        self._with.commands.settle(done)
        return done

    def publish(self, account: Account, *, last: bool) -> tuple[Event, ...]:
        """Publish an account, and return what has to be put on record of the newest one.

        The `last` one is waited for, for some seconds: the cluster is about to go.
        """
        self._with.publisher.offer(account)
        if last:
            self._with.publisher.settle()
        return self._with.publisher.entries

    def notify(self, receivers: Mapping[str, int], told: Sequence[Notification]) -> None:
        """Send these notifications, which are on record, to the receivers of these names."""
        self._with.notifier.offer(receivers, told)

    def log(self, line: str) -> None:
        logger.info(line)


def _own(instances: Iterable[Instance], born_at: float) -> tuple[Instance, ...]:
    """Return the instances without those of an earlier cluster of this name.

    EC2 shows the earlier ones for an hour after their end.
    """
    return tuple(i for i in instances if i.state not in GONE or i.launched_at >= born_at)
