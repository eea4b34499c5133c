"""The loop of the leading controller:

    something happened (a message from AWS, a key in etcd, a time that was waited for)
      -> observe AWS where it may have changed -> decide -> act -> publish

Nothing is polled quickly: an idle cluster costs a few calls of AWS's API every `IDLE` seconds, and
back-off reduces calls that fail. All times are of one clock that nothing can set.
"""

import logging
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import msgspec
from spotelastic_checkpoints import log_records
from spotelastic_checkpoints.backoff import Draw

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.names import Names
from spotelastic.aws.compute import autoscaling
from spotelastic.aws.compute.autoscaling import GONE, Instance, ScalingGroup
from spotelastic.aws.compute.estimate import gateways
from spotelastic.aws.compute.zone_ranking import Zone, Zones
from spotelastic.aws.messaging import bucket as messaging_bucket
from spotelastic.aws.messaging import command_queue
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.clock import steady, unbroken
from spotelastic.controller.accounting import usage
from spotelastic.controller.accounting.usage import Usage
from spotelastic.controller.decisions import housekeeping, zone_packing
from spotelastic.controller.decisions.decide import decide, ends, settled, urgent
from spotelastic.controller.decisions.housekeeping import ClusterState, Examine, Postpone
from spotelastic.controller.decisions.urgent import Membership, acted, warned
from spotelastic.controller.effects import inbox
from spotelastic.controller.effects.complaint import Complaint
from spotelastic.controller.effects.executor import ControllerExecutor
from spotelastic.controller.effects.inbox import Inbox
from spotelastic.controller.effects.optional_query import OptionalQuery
from spotelastic.controller.effects.price_cache import ASKED_AGAIN_AFTER, PriceCache
from spotelastic.controller.effects.publisher import Account, Publisher
from spotelastic.controller.effects.throttle import AwsThrottle, WarningRetry
from spotelastic.controller.etcd.etcd_leader import EtcdLeader
from spotelastic.controller.etcd.etcd_mirror import Mirror, Records
from spotelastic.controller.etcd.snapshots import Snapshots
from spotelastic.controller.model.config import ControllerConfig
from spotelastic.controller.model.observation import (
    Action,
    ControllerPolicy,
    Discard,
    Message,
    Money,
    Observation,
    PendingCommand,
    Remove,
    Replace,
    Tell,
    account,
)
from spotelastic.errors import EnvironmentFailure, Unavailable
from spotelastic.model.job import ENDED, JobSpec
from spotelastic.model.progress import newest_committed
from spotelastic.store.election import Leadership
from spotelastic.store.port import Store

logger = logging.getLogger(__name__)

IDLE = 20.0
"""Seconds between two looks at AWS while nothing changes."""
BUSY = 1.0
"""Seconds between two looks at AWS while instances come and go."""
SOON = 0.25
"""Seconds after an action until AWS is asked for its result."""
TURN = 0.05
"""Least seconds between two decisions, so that a burst of changes is looked at once."""
WITHOUT_OFFERS = "choosing a zone without prices and placement scores"
WITHOUT_ZONES = "deciding without the zones of the subnets"


class LeaderLoop:
    """The loop of one controller while it leads."""

    def __init__(
        self,
        config: ControllerConfig,
        aws: Aws,
        store: Store,
        bucket: BucketObjects,
        mirror: Mirror,
        leadership: Leadership,
        wake: threading.Event,
        prices: PriceCache,
        alive: Callable[[], bool],
        draw: Draw = random.uniform,
    ) -> None:
        """Creates the loop. `alive` tells whether the leadership's lease is still held; `draw`
        returns a random number between two, for back-off.
        """
        spec = config.spec
        self._config = config
        self._aws = aws
        self._objects = bucket
        self._mirror = mirror
        self._wake = wake
        self._since = unbroken()
        self._policy = _policy(config.policy, spec)
        self._prices = prices
        self._zones = Zones(aws)
        self._offers = OptionalQuery(WITHOUT_OFFERS, ASKED_AGAIN_AFTER, logger.warning)
        self._subnets = OptionalQuery(WITHOUT_ZONES, BUSY, logger.warning)
        self._bill: dict[str, Usage] = {}
        self._gateways = gateways(spec.nat_gateways)
        """US dollars an hour."""
        self._groups: dict[str, ScalingGroup] = {}
        self._machines: dict[str, Instance] = {}
        self._description = OptionalQuery(
            "going by the job as it was read last", IDLE, logger.warning
        )
        self._wanted = spec.settings
        self._types = spec.instance_types
        self._job_of = spec.created_at
        self._asked_at = 0.0
        self._looked_at = 0.0
        self._billed_at = 0.0
        self._look_at = 0.0
        self._membership: Membership | None = None
        self._rest = AwsThrottle(BUSY, IDLE, draw)
        self._answers = WarningRetry(BUSY, draw)
        self._received: frozenset[object] = frozenset()
        """What had come when it was decided last."""
        self._complain = Complaint(logger.warning)
        self._told: set[tuple[str, str, str]] = set()
        self._short_since: float | None = None
        self._reason = ""
        self._switch_at = 0.0
        self._stopping = False
        self._examined: set[str] = set()
        self._upkeep_policy = housekeeping.HousekeepingPolicy(
            boot_within=config.policy.boot_within, linger=spec.linger
        )
        queues = (spec.queue, Names(spec.cluster).commands)
        queue, orders = (command_queue.queue_url(aws, name) for name in queues)
        self._actor = ControllerExecutor(
            aws, store, leadership, spec, config.bucket, queue, orders, alive
        )
        etcd_leader = EtcdLeader(spec.etcd, spec.etcd_members, config.tls)
        self._publisher = Publisher(bucket, etcd_leader, alive)
        self._inbox = Inbox(aws, queue, inbox.message, wake.set)
        soon = command_queue.LIFETIME / 2  # or commands would be void
        self._orders = Inbox(aws, orders, inbox.order, wake.set, retry_at_most=soon, draw=draw)
        self._snapshots = Snapshots(bucket, spec.etcd, config.tls)

    def finish(self) -> None:
        """Publishes what is known, as long as no other controller leads."""
        self._publisher.finish()

    def close(self) -> None:
        """Stops publishing: another controller may publish now."""
        self._inbox.close()
        self._orders.close()
        self._snapshots.close()
        self._publisher.close()

    def lead(self, over: threading.Event) -> None:
        """Leads until `over` is set. Raises `LeaseLost` when a write shows that another controller
        leads.
        """
        taken_over = False
        rest = 0.0
        while not over.wait(TURN):
            self._wake.wait(rest)
            self._wake.clear()
            if over.is_set():
                return
            try:
                if not taken_over:
                    if (rest := self._resting(self._mirror.records())) > 0.0:
                        continue
                    with self._resting_on_failure():
                        self._take_over()
                    taken_over = True
                rest = self._turn()
            except (Unavailable, EnvironmentFailure) as error:
                self._complain(str(error))
                rest = BUSY
                if not taken_over:
                    self._hold_off()

    def _hold_off(self) -> None:
        """Postpones the dead man's switch while the job cannot be read: S3 may be away for long."""
        now = unbroken()
        if now < housekeeping.postpone_at(
            self._standing(self._mirror.records()), self._upkeep_policy
        ):
            return
        try:
            self._look_at_groups()
            if self._groups:
                self._perform([Postpone(now + self._upkeep_policy.unattended)])
        except (Unavailable, EnvironmentFailure) as error:
            self._complain(str(error))

    def _take_over(self) -> None:
        """Reads the job, and the former leader's records."""
        self._go_by(*self._read_job())
        bill = self._objects.get(messaging_bucket.USAGE)
        if bill:
            known = msgspec.json.decode(bill, type=list[Usage])
            self._bill = {each.instance: each for each in known}
        status = self._objects.status()
        self._billed_at = 0.0 if status is None else status.at
        self._short_since = None if status is None else status.short_since
        self._mirror.remember(self._objects.curve())

    def _turn(self) -> float:
        """Observes, decides, acts and publishes once. Returns the most seconds until the next
        turn.
        """
        self._answers.turn()
        self._answer_warnings()
        records = self._mirror.records()
        if records.round is not None:
            log_records.entered(records.round.number, records.round.cause)
        if (rest := self._resting(records)) > 0.0:
            if self._looked_at:  # else the leader before knew more
                # A limit holds while AWS does not answer as well.
                seen = self._seen(records, (), priced=False)
                self._perform(ends(seen, unbroken(), self._policy))
                self._publish(records)
            return max(0.0, min(rest, self._answers.again_at - steady()))
        seen = self._observe(records)
        now = unbroken()
        kept = housekeeping.upkeep(seen, self._standing(records), now, self._upkeep_policy)
        failed = _failed(kept.actions, self._perform(kept.actions))
        seen = replace(seen, desired=kept.desired, hopeless=kept.hopeless)
        decision = decide(seen, now, self._policy)
        if decision.reason != self._reason:
            logger.info(decision.reason)
            self._reason = decision.reason
        done = self._perform(decision.actions)
        failed += _failed(decision.actions, done)
        if any(not isinstance(action, Tell | Discard) for action in done):
            self._look_at = steady() + SOON
            self._membership = None  # What is decided next must see what these did.
        elif failed:
            self._rest.action_failed(steady())
            self._look_at = 0.0  # due once that is over
        elif settled(seen, now, self._policy):
            self._look_at = max(self._look_at, self._looked_at + IDLE)
        if not failed:
            self._rest.acted()
        self._publish(records)
        moments = [at for at in (decision.wake_at, kept.wake_at) if at is not None]
        until_wake = min(moments, default=float("inf")) - now
        until_look = min(self._look_at, self._answers.again_at) - steady()
        return max(0.0, min(until_look, until_wake))

    def _publish(self, records: Records) -> None:
        bill, fates = dict(self._bill), dict(self._actor.fates)
        short = self._short(records)
        told = Account(records, self._machines, bill, self._prices.date, fates, short)
        self._publisher.offer(told)
        known = records.told | self._told
        new = [event for event in self._publisher.entries if account(event) not in known]
        self._perform([Tell(event) for event in new])

    def _resting(self, records: Records) -> float:
        """Returns the seconds for which AWS is not asked, because calls failed; 0 or less: none."""
        news, pressing = self._has_news(records), self._presses(records)
        return self._rest.until(news=news, pressing=pressing) - steady()

    @contextmanager
    def _resting_on_failure(self) -> Iterator[None]:
        """Backs off when a call fails that AWS must answer before anything can be decided."""
        try:
            yield
        except (Unavailable, EnvironmentFailure):
            self._rest.look_failed(steady())
            raise

    def _has_news(self, records: Records) -> bool:
        come = _news(self._inbox.messages, self._orders.messages)
        return Membership.of(records) != self._membership or not come <= self._received

    def _presses(self, records: Records) -> bool:
        """Whether a command waits for its answer, or a node is warned that AWS does not show
        yet.
        """
        if self._asked():
            return True
        told = {*records.drains, *(message.warns for message in self._inbox.messages)}
        return not (told & records.nodes.keys()) <= self._machines.keys()

    def _asked(self) -> bool:
        """Whether a command waits to be carried out."""
        now = unbroken()
        return any(now - order.sent_at <= command_queue.LIFETIME for order in self._orders.messages)

    def _answer_warnings(self) -> None:
        """Replaces warned nodes without looking at the rest of AWS, once a turn each."""
        messages, drains = self._inbox.messages, self._mirror.drains
        told = warned(messages, drains, self._groups.values(), self._machines)
        nodes = self._answers.due(told, steady())
        if not nodes:
            return
        warnings = tuple(message for message in messages if message.warns in nodes)
        seen = self._seen(self._mirror.records(), warnings)
        actions = urgent(seen, nodes, unbroken(), self._policy)
        done = self._perform(actions)
        failed = _failed(actions, done)
        missed = [each.instance for each in failed if isinstance(each, Replace | Remove)]
        self._answers.tried(nodes, missed, steady())
        if done:
            self._membership = None  # so that AWS is looked at

    def _observe(self, records: Records) -> Observation:
        """Returns the next observation.

        AWS is asked again when it or etcd reports a change, and from time to time. What a message
        tells was so before it came; messages that come meanwhile wait for the next look.
        """
        messages, orders = self._inbox.messages, self._orders.messages
        self._received = _news(messages, orders)
        membership = Membership.of(records)
        if messages or orders or membership != self._membership or steady() >= self._look_at:
            self._membership, self._look_at = membership, 0.0  # due until it has come to its end
            self._look()
        # Those that were answered meanwhile are gone; a receipt may be another one by now.
        before = {message.event for message in messages}
        messages = tuple(each for each in self._inbox.messages if each.event in before)
        seen = replace(self._seen(records, messages), orders=orders)
        if zone_packing.undecided(seen, unbroken(), self._policy):
            seen = replace(seen, zones=self._offered(seen))
        return seen

    def _offered(self, seen: Observation) -> tuple[Zone, ...]:
        """Returns the zones with prices and scores, where these may be asked for; else without."""
        zones, types = seen.zones, self._types
        return self._offers.ask(lambda: self._zones.offers(zones, types, seen.desired)) or zones

    def _seen(
        self, records: Records, messages: tuple[Message, ...], *, priced: bool = True
    ) -> Observation:
        """Returns an observation with AWS as of the last look. `priced`: spot prices may be asked
        for.
        """
        wanted = self._wanted
        names, now = Names(self._config.spec.cluster), unbroken()
        group = self._groups.get(names.workers)
        seen = Observation(
            desired=wanted.max_nodes,
            least=wanted.min_nodes,
            settings=records.settings,
            wanted=wanted,
            types=self._types,
            region=self._config.region,
            since=self._since,
            job=records.job,
            ending=records.ending,
            group=group,
            on_demand=self._groups.get(names.on_demand),
            short_since=self._short(records),
            failed=records.failed,
            zones=self._zones_of(group),
            moved_at=records.moved_at,
            zones_left=records.zones_left,
            committed=newest_committed(records.progress.values()),
            given_back_at=records.given_back_at,
            machines=self._machines,
            nodes=records.nodes,
            slots={m.node: m.slot for m in records.round.members} if records.round else {},
            left=records.left,
            preparing=records.preparing,
            drains=records.drains,
            told=records.told | self._told,
            messages=messages,
            handled=self._inbox.handled,
            answered=self._orders.handled,
        )
        return replace(seen, money=self._money(seen, now, priced=priced))

    def _short(self, records: Records) -> float | None:
        """Returns since when there are fewer nodes than the job needs."""
        ended = records.job is not None and records.job.state in ENDED
        if ended or len(records.nodes) >= self._wanted.min_nodes:
            self._short_since = None
        elif self._short_since is None:
            self._short_since = unbroken()
        return self._short_since

    def _zones_of(self, group: ScalingGroup | None) -> tuple[Zone, ...]:
        """Returns the zones to choose from, for nodes packed into one. Empty until AWS has been
        asked.
        """
        if group is None or self._policy.capacity.zones != "pack":
            return ()
        return self._subnets.ask(lambda: self._zones.of(group.offered)) or ()

    def _standing(self, records: Records) -> ClusterState:
        rounds = [each.round for each in records.history]
        rounds += [records.round] if records.round is not None else []
        members = [member.node for each in rounds for member in each.members]
        settings = records.settings or self._config.spec.settings
        began = records.job.at if records.job is not None else 0.0
        return ClusterState(
            minimum=settings.min_nodes,
            switch_at=self._switch_at,
            stopping=self._stopping,
            joined=frozenset((*records.nodes, *records.left, *members)),
            boots=tuple(
                event
                for event in records.events
                if event.kind == housekeeping.BOOT and event.at > began
            ),
            # Of those from before a restart EC2 knows for an hour.
            examined=frozenset(
                (*self._examined, *(e.node for e in records.events if e.kind == housekeeping.BOOT))
            ),
            asked_at=self._asked_at,
        )

    def _perform(
        self, actions: Sequence[Action | housekeeping.Action]
    ) -> tuple[Action | housekeeping.Action, ...]:
        """Performs the actions, and returns those that succeeded."""
        done = self._actor.perform(actions)
        for received in (self._inbox, self._orders):
            received.settle(done)
        self._told |= {account(action.event) for action in done if isinstance(action, Tell)}
        self._groups = acted(self._groups, done)
        for action in done:
            if isinstance(action, Postpone):
                self._switch_at = action.until
            elif isinstance(action, Examine):
                self._examined.add(action.machine.id)
        return done

    def _money(self, seen: Observation, now: float, *, priced: bool) -> Money:
        money, capacity = usage.money(self._bill.values(), now), self._policy.capacity
        if (capacity.max_price is None and capacity.max_cost is None) or not priced:
            return money
        zones = {machine.zone for machine in self._machines.values() if machine.zone}
        zones = zones if seen.home is None else {seen.home.name}
        pools = [(type, zone) for type in self._types for zone in zones]
        prices = [price for pool in pools if (price := self._prices.spot(*pool))]
        listed = [usd for type in self._types if (usd := self._prices.on_demand(type))]
        return replace(money, spot=min(prices, default=0.0), on_demand=min(listed, default=0.0))

    def _look(self) -> None:
        """Looks at AWS part by part, so that a warning which comes meanwhile does not wait for the
        rest.
        """
        for part in (self._look_at_job, self._look_at_groups, self._look_at_machines):
            with self._resting_on_failure():
                part()
            self._answer_warnings()
        self._rest.looked()
        self._looked_at = steady()
        self._look_at = self._looked_at + BUSY

    def _look_at_job(self) -> None:
        """Reads the job again. While S3 is away too, this controller holds off the dead man's
        switch.
        """
        if self._asked():  # an order is not carried out on what was so before: it expires
            self._go_by(*self._read_job())
        elif (found := self._description.ask(self._read_job)) is not None:
            self._go_by(*found)

    def _read_job(self) -> tuple[bool, JobSpec | None]:
        """Returns whether the cluster is to be taken down, and the job's description."""
        return self._objects.has(messaging_bucket.STOPPING), self._objects.job()

    def _go_by(self, stopping: bool, job: JobSpec | None) -> None:
        self._stopping = stopping
        if job is not None:  # `up` may have been run again
            self._wanted, self._types = job.settings, job.instance_types
            if job.created_at != self._job_of:  # that is by the clock of a laptop
                self._asked_at, self._job_of = unbroken(), job.created_at
            self._policy = _policy(self._config.policy, job)
            self._upkeep_policy = replace(self._upkeep_policy, linger=job.linger)
            self._gateways = gateways(job.nat_gateways)

    def _look_at_groups(self) -> None:
        names = Names(self._config.spec.cluster)
        self._groups = autoscaling.groups(self._aws, (names.workers, names.on_demand))

    def _look_at_machines(self) -> None:
        spec = self._config.spec
        machines = _own(autoscaling.machines(self._aws, spec.cluster), spec.born_at)
        self._machines = {machine.id: machine for machine in machines}
        now = unbroken()
        self._bill = usage.account(
            self._bill, machines, self._prices, now, self._billed_at, self._gateways
        )
        self._billed_at = now


def _failed(
    actions: Iterable[Action | housekeeping.Action], done: Sequence[Action | housekeeping.Action]
) -> list[Action | housekeeping.Action]:
    """Returns what AWS or etcd was asked for in vain."""
    return [each for each in actions if each not in done and not isinstance(each, Tell)]


def _news(messages: Iterable[Message], orders: Iterable[PendingCommand]) -> frozenset[object]:
    """Returns what identifies messages and commands. Receipts do not: a message delivered again is
    no news.
    """
    return frozenset((*(each.event for each in messages), *(each.command for each in orders)))


def _own(machines: Iterable[Instance], born_at: float) -> tuple[Instance, ...]:
    """Returns the instances without those of an earlier cluster of this name, which EC2 shows for
    an hour after their end.
    """
    return tuple(m for m in machines if m.state not in GONE or m.launched_at >= born_at)


def _policy(policy: ControllerPolicy, spec: JobSpec) -> ControllerPolicy:
    """Returns the policy for this job. A cluster of on-demand workers has all of its nodes as a
    base.
    """
    capacity = spec.capacity
    if spec.worker_group == Names(spec.cluster).on_demand:
        capacity = replace(capacity, base=sys.maxsize)
    return replace(policy, capacity=capacity)
