"""Moves a job between regions by itself. It runs on the control nodes, beside the controllers.

    python -m spotelastic.client.moving.keeper CLUSTER REGION BUCKET INSTANCE MEMBER

The keeper on the node whose controller leads looks at the regions, decides
(`controller/decisions/regions.py`), and carries moves out as `spotelastic move` does. It remembers
nothing but what lies in the bucket, so that the next one goes on where it ended.

Must never happen:

- it goes on with a move that somebody undoes, or moves a job that somebody has stopped: it touches
  nothing but jobs that run, and moves of its own;
- the cluster of a region that the job has left goes on costing money: the keeper of the region that
  the job is in puts it to sleep, if the one before could not.
"""

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import msgspec
from spotelastic_checkpoints import log_records
from spotelastic_checkpoints.commit.latest import ForwardPointer
from spotelastic_checkpoints.decoders import from_json
from spotelastic_checkpoints.log_records import LogStyle

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.clusters import asleep
from spotelastic.aws.compute.prices import PriceList
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.client.moving import two_regions as both
from spotelastic.client.moving.carry_out import TRANSFER, MovePolicy, Mover
from spotelastic.client.moving.move import BYTES_PER_SECOND, carry_on, nbytes_of
from spotelastic.client.moving.move_decision import is_closed
from spotelastic.client.moving.region_offers import RegionMarket, given
from spotelastic.client.targets.cloud_target import CloudTarget
from spotelastic.client.targets.find import in_region
from spotelastic.clock import wall
from spotelastic.cloud.bucket import REGIONS, STOPPING
from spotelastic.controller.decisions import regions
from spotelastic.controller.model.regions import (
    RegionHistory,
    RegionPolicy,
    RegionsRecord,
)
from spotelastic.errors import EnvironmentFailure, SpotelasticError, UsageError, told
from spotelastic.model.job import ENDED, JobSpec, Regions
from spotelastic.model.progress import Status

logger = logging.getLogger(__name__)

WAKES_WITHIN = 120.0
"""Seconds until a cluster that was asleep trains, roughly."""
LOOKS_WITHIN_PATIENCE = 4
NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Place:
    """The control node that a keeper runs on."""

    cluster: str
    region: str
    bucket: str
    instance: str
    member: str


class RegionKeeper:
    """Looks at the regions of one job, as often as `look` says."""

    def __init__(
        self,
        place: Place,
        of: Callable[[str], CloudTarget] = in_region,
        policy: MovePolicy | None = None,
    ) -> None:
        self._place, self._of = place, cache(of)
        self._objects = BucketObjects(self._aws(place.region), place.bucket, place.cluster)
        self._market = RegionMarket(self._aws, place.region)
        self._prices = PriceList(self._aws(place.region))
        self._policy = policy or MovePolicy(led=True, own=place.member)
        self._nbytes: int | None = None
        """Size of a commit, as it was once."""

    def look(self, now: float) -> float:
        """Look once, and do what is to be done. Returns the seconds until the next look."""
        objects = self._objects
        spec, status = objects.job(), objects.status()
        if spec is None or spec.regions is None:
            return RegionPolicy(1, 1).look_every
        policy = self._region_policy(spec, spec.regions)
        if status is None or status.leader != self._place.instance or objects.has(STOPPING):
            return policy.look_every
        moving = objects.moving()
        if moving is not None:
            if moving.reason:
                self._go_on(moving.region)
        elif status.state not in ENDED:
            self._put_the_others_to_sleep(spec, spec.regions)
            self._decide(spec, spec.regions, status, now, policy)
        return policy.look_every

    # -- deciding --------------------------------------------------------------------------------

    def _decide(
        self, spec: JobSpec, its: Regions, status: Status, now: float, policy: RegionPolicy
    ) -> None:
        history = self._history(now, policy)
        nbytes = self._size(spec)
        seen = self._market.offers(
            spec,
            its.names,
            given(status),
            WAKES_WITHIN + nbytes / BYTES_PER_SECOND,
            nbytes / 1e9 * TRANSFER,
        )
        history = regions.look(history, seen, now, policy)
        decision = regions.decide(history, seen, now, policy)
        logger.info(decision.reason)
        self._save(RegionsRecord(history=history, reason=decision.reason, at=now))
        if decision.to:
            self._move(decision.to, decision.reason)

    def _region_policy(self, spec: JobSpec, its: Regions) -> RegionPolicy:
        patience = NEVER if its.patience is None else its.patience
        usual = RegionPolicy(1, 1).look_every
        return RegionPolicy(
            min_nodes=spec.settings.min_nodes,
            max_nodes=spec.settings.max_nodes,
            patience=patience,
            prefer_capacity=its.prefer_capacity,
            moves_per_day=its.moves_per_day,
            node_value=self._node_value(spec),
            look_every=min(usual, max(1.0, patience / LOOKS_WITHIN_PATIENCE)),
        )

    def _node_value(self, spec: JobSpec) -> float:
        return self._prices.on_demand(spec.instance_types[0]) or RegionPolicy(1, 1).node_value

    def _history(self, now: float, policy: RegionPolicy) -> RegionHistory:
        """Return what is known so far, of a job that has just come here as well."""
        here, data = self._place.region, self._objects.get(REGIONS)
        if data is None:
            return RegionHistory(here, since=now, looked_at=now)
        history = from_json(data, RegionsRecord).history
        if history.home == here:
            return history
        return regions.arrive(history, here, history.looked_at, now, policy)

    def _save(self, record: RegionsRecord) -> None:
        self._objects.put(REGIONS, msgspec.json.encode(record))

    def _size(self, spec: JobSpec) -> int:
        """Return the bytes of a commit. They are asked for until there is one."""
        if not self._nbytes:
            target = self._of(self._place.region)
            its = both.MoveRegions(spec, target, target, self._place.bucket)
            self._nbytes = nbytes_of(its)
        return self._nbytes

    # -- moving ----------------------------------------------------------------------------------

    def _move(self, region: str, reason: str) -> None:
        Mover(self._its(region), logger.info, self._policy).note(reason)
        self._go_on(region)

    def _its(self, region: str) -> both.MoveRegions:
        return both.find(self._of(self._place.region), self._place.cluster, region, logger.info)

    def _is_own(self) -> bool:
        """Whether the move is still this keeper's: somebody who undoes it notes it as his."""
        moving = self._objects.moving()
        return moving is not None and bool(moving.reason)

    def _go_on(self, region: str) -> None:
        """Go on with a move that is noted. Where nobody leads there in time, the job stays here."""
        its = self._its(region)
        mover = Mover(its, logger.info, self._policy)
        try:
            carry_on(its, mover, led=True, goes_on=self._is_own)
        except UsageError as error:  # there is nothing to move any more
            logger.warning(f"does not move to {region}: {error}")
            if not is_closed(its.look()):
                mover.forget()
                self._be_cautious(region)
        except EnvironmentFailure as error:
            logger.warning(f"moves back from {region}: {error}")
            carry_on(its, mover, back=True, goes_on=self._is_own)
            if self._is_own():
                mover.forget()
                self._be_cautious(region)

    def _be_cautious(self, region: str) -> None:
        """Remember that a region could not be moved to: it is left alone for longer."""
        data = self._objects.get(REGIONS)
        if data is None:
            return
        record, usual = from_json(data, RegionsRecord), RegionPolicy(1, 1)
        before = record.history.caution.get(region, 1)
        caution = {**record.history.caution, region: min(usual.most_caution, 2 * before)}
        moves = (*record.history.moves, wall())
        history = replace(record.history, caution=caution, moves=moves, short_since=None)
        self._save(replace(record, history=history))

    def _put_the_others_to_sleep(self, spec: JobSpec, its: Regions) -> None:
        """End what the keeper of the region before could not: it ends with its own node."""
        place = self._place
        others = [self._aws(region) for region in its.names if region != place.region]
        awake = [aws for aws in others if asleep.is_awake(aws, place.cluster)]
        run = BucketObjects(self._aws(place.region), place.bucket, spec.run)
        if not awake or isinstance(both.latest_of(run), ForwardPointer):
            return
        for aws in awake:
            logger.info(f"puts {place.cluster} to sleep in {aws.region}")
            asleep.put_to_sleep(aws, place.cluster)

    def _aws(self, region: str) -> Aws:
        return self._of(region).aws


def main(arguments: list[str]) -> None:
    """Look at the regions for as long as this process lives."""
    place = Place(*arguments)
    log_records.start("keeper: ", LogStyle.of())
    log_records.node(place.instance)
    keeper = RegionKeeper(place)
    while True:
        rest = RegionPolicy(1, 1).look_every
        try:
            rest = keeper.look(wall())
        except SpotelasticError as error:
            logger.warning(told(error))
        time.sleep(rest)


if __name__ == "__main__":
    main(sys.argv[1:])
