"""Reads for a leader what its cloud and its bucket show: the job, worker groups, instances, costs.

Nothing is remembered here but pauses after questions that were not answered.
"""

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from spotelastic_checkpoints.decoders import from_json

from spotelastic.clock import Clock, steady, unbroken
from spotelastic.cloud import bucket
from spotelastic.cloud.model import GONE, Instance
from spotelastic.cloud.port import Cloud
from spotelastic.controller.accounting import usage
from spotelastic.controller.accounting.usage import Usage
from spotelastic.controller.effects.optional_query import OptionalQuery
from spotelastic.controller.effects.price_cache import ASKED_AGAIN_AFTER
from spotelastic.controller.loop.requests import (
    Done,
    GroupsSeen,
    InstancesSeen,
    JobRead,
    LookAtInstances,
    LookAtJob,
    NameZones,
    NodePrices,
    OfferZones,
    PriceNodes,
    TakenOver,
    ZonesFound,
)
from spotelastic.controller.model.config import ControllerConfig
from spotelastic.model.measured import Series
from spotelastic.model.progress import Point

logger = logging.getLogger(__name__)

WITHOUT_OFFERS = "choosing a zone without prices and placement scores"
WITHOUT_ZONES = "deciding without the zones of the subnets"
WITHOUT_JOB = "going by the job as it was read last"


class Inherited(NamedTuple):
    """What a leader finds."""

    known: TakenOver
    curve: list[Point]
    """The loss curve so far."""
    measured: dict[str, Series]
    """What was logged and measured so far."""


class CloudReader:
    """Answers a leader's questions.

    Those without which nothing can be decided raise `Unavailable` or `EnvironmentFailure`; to the
    others `Done` is the answer then.
    """

    def __init__(
        self,
        config: ControllerConfig,
        cloud: Cloud,
        clock: Clock = unbroken,
        steady: Clock = steady,
    ) -> None:
        self._spec = config.spec
        self._cloud = cloud
        self._clock = clock
        self._description = OptionalQuery(WITHOUT_JOB, config.pace.idle, logger.warning, steady)
        self._offers = OptionalQuery(WITHOUT_OFFERS, ASKED_AGAIN_AFTER, logger.warning, steady)
        self._subnets = OptionalQuery(WITHOUT_ZONES, config.pace.busy, logger.warning, steady)

    def take_over(self) -> Inherited:
        """Read the job, and the records of the leader before."""
        job, objects = self._read_job(self._spec.instance_types), self._cloud.objects
        usage_so_far = from_json(objects.get(bucket.USAGE) or b"[]", list[Usage])
        status = objects.status()
        known = TakenOver(
            job,
            {each.instance: each for each in usage_so_far},
            0.0 if status is None else status.at,
            None if status is None else status.short_since,
        )
        return Inherited(known, objects.curve(), objects.measured())

    def job(self, request: LookAtJob) -> JobRead | Done:
        """Read the job's description.

        A command is not carried out on an older one, but expires: then it is required.
        """
        if request.required:
            return self._read_job(request.types)
        return self._description.ask(lambda: self._read_job(request.types)) or Done()

    def groups(self) -> GroupsSeen:
        return GroupsSeen(self._cloud.provider.groups())

    def instances(self, request: LookAtInstances) -> InstancesSeen:
        prices = self._cloud.prices
        found = _own(self._cloud.provider.instances(), self._spec.born_at)
        network = prices.network(request.nat_gateways)
        bill = usage.account(
            request.bill,
            found,
            prices,
            self._clock(),
            request.billed_at,
            network,
            paid=request.paid,
        )
        return InstancesSeen({instance.id: instance for instance in found}, bill, prices.date)

    def zones(self, request: NameZones) -> ZonesFound | Done:
        found = self._subnets.ask(lambda: self._cloud.provider.zones(request.subnets))
        return Done() if found is None else ZonesFound(found)

    def offers(self, request: OfferZones) -> ZonesFound | Done:
        found = self._offers.ask(
            lambda: self._cloud.provider.offers(request.zones, request.types, request.nodes)
        )
        return ZonesFound(found) if found else Done()

    def prices(self, request: PriceNodes) -> NodePrices:
        prices = self._cloud.prices
        pools = [(type, zone) for type in request.types for zone in request.zones]
        spot = [usd for pool in pools if (usd := prices.spot(*pool))]
        listed = [usd for type in request.types if (usd := prices.on_demand(type))]
        return NodePrices(min(spot, default=0.0), min(listed, default=0.0))

    def _read_job(self, types: tuple[str, ...]) -> JobRead:
        objects = self._cloud.objects
        stopping, spec = objects.has(bucket.STOPPING), objects.job()
        if spec is not None and spec.regions is not None and objects.has(bucket.MOVING):
            # It has ended in this region alone, and its cluster sleeps when it is elsewhere.
            spec = replace(spec, linger=None)
        quotas = self._cloud.provider.quotas(spec.instance_types if spec else types)
        return JobRead(stopping, spec, quotas)


def _own(instances: Iterable[Instance], born_at: float) -> tuple[Instance, ...]:
    """Return the instances without those of an earlier cluster of this name.

    EC2 shows the earlier ones for an hour after their end.
    """
    return tuple(i for i in instances if i.state not in GONE or i.launched_at >= born_at)
