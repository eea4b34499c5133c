"""One turn of a leading controller, without effects.

    something happened -> observe the cloud where it may have changed -> decide -> act -> publish

A turn is a generator. It yields requests, and each is answered with the result and with what has
come from outside meanwhile. So a warning that comes during a slow call is answered before the next
one. All changes are in the turn's state, which is a value: the next turn begins with it.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from spotelastic.controller.accounting import restores
from spotelastic.controller.decisions import health, housekeeping, zone_packing
from spotelastic.controller.decisions.decide import decide, ends, settled, urgent
from spotelastic.controller.decisions.housekeeping import Postpone, Teardown
from spotelastic.controller.decisions.urgent import Membership, warned
from spotelastic.controller.loop.leader_state import LeaderState
from spotelastic.controller.loop.requests import (
    AnyAction,
    Failed,
    Inputs,
    LogLine,
    LookAtGroups,
    LookAtInstances,
    LookAtJob,
    NameZones,
    NodePrices,
    Notify,
    OfferZones,
    Perform,
    Performed,
    PriceNodes,
    Publish,
    Published,
    Request,
    Result,
    StepAnswer,
    TakeOver,
    ZonesFound,
)
from spotelastic.controller.model.config import LoopPace
from spotelastic.controller.model.observation import (
    Discard,
    Message,
    Observation,
    PendingCommand,
    Records,
    Remove,
    Replace,
    Tell,
    account,
)
from spotelastic.notifications.due import TOLD, due, record, told_before

T = TypeVar("T")
Steps = Generator[Request, StepAnswer, T]


class CallFailed(Exception):
    """A call failed without which nothing can be decided. The turn ends."""


class Turn:
    """One turn. After each step, `state` is what the leader knows by then."""

    def __init__(self, state: LeaderState, inputs: Inputs, pace: LoopPace) -> None:
        self.state = state
        self._inputs = inputs
        self._pace = pace

    def run(self) -> Steps[float]:
        """Take the turn. Returns the most seconds until the next one."""
        try:
            if not self.state.taken_over:
                if (rest := self._resting(self._inputs.records)) > 0.0:
                    return rest
                yield from self._look(TakeOver())
            return (yield from self._lead())
        except CallFailed as failure:
            yield from self._ask(LogLine(str(failure), failure=True))
        if not self.state.taken_over:
            yield from self._hold_off()
        return self._pace.busy

    def _lead(self) -> Steps[float]:
        """Observe, decide, act and publish."""
        self.state = replace(self.state, warnings=self.state.warnings.turn())
        yield from self._answer_warnings()
        records = self._inputs.records
        self.state = self.state.counted(records, self._inputs.now)
        if (rest := self._resting(records)) > 0.0:
            yield from self._go_without_cloud(records)
            return max(0.0, min(rest, self.state.warnings.again_at - self._inputs.steady))
        observation, now = (yield from self._observe(records)), self._inputs.now
        job = self.state.view.job
        kept = housekeeping.upkeep(observation, self.state.cluster_state(records), now, job.upkeep)
        if any(isinstance(action, Teardown) for action in kept.actions):
            # Who watches waits for the job's end, and this process goes with the cluster.
            yield from self._publish(records, last=True)
        failed = _failed(kept.actions, (yield from self._perform(kept.actions)))
        observation = replace(observation, desired=kept.desired, hopeless=kept.hopeless)
        decision = decide(observation, now, job.policy)
        if decision.reason != self.state.reason:
            yield from self._ask(LogLine(decision.reason))
            self.state = replace(self.state, reason=decision.reason)
        done = yield from self._perform(decision.actions)
        failed += _failed(decision.actions, done)
        self._schedule_look(done, failed, idle=lambda: settled(observation, now, job.policy))
        yield from self._publish(records)
        moments = [at for at in (decision.wake_at, kept.wake_at) if at is not None]
        until_wake = min(moments, default=float("inf")) - now
        next_call = min(self.state.looks.due_at, self.state.warnings.again_at)
        return max(0.0, min(next_call - self._inputs.steady, until_wake))

    def _go_without_cloud(self, records: Records) -> Steps[None]:
        """Publish, and end a job that has reached a limit.

        Both hold without the cloud's answer.
        """
        if not self.state.looks.looked_at:  # the leader before knew more
            return
        observation = self.state.observation(self._inputs, records, ())
        policy = self.state.view.job.policy
        yield from self._perform(ends(observation, self._inputs.now, policy))
        yield from self._publish(records)

    def _hold_off(self) -> Steps[None]:
        """Postpone the dead man's switch while the job cannot be read: S3 may be away for long."""
        now, upkeep = self._inputs.now, self.state.view.job.upkeep
        cluster = self.state.cluster_state(self._inputs.records)
        if now < housekeeping.postpone_at(cluster, upkeep):
            return
        try:
            yield from self._ask(LookAtGroups())
            if self.state.view.groups:
                yield from self._perform([Postpone(now + upkeep.unattended)])
        except CallFailed as failure:
            yield from self._ask(LogLine(str(failure), failure=True))

    # -- observing -------------------------------------------------------------------------------

    def _observe(self, records: Records) -> Steps[Observation]:
        """Return the next observation.

        The cloud is asked again when it or etcd reports a change, and from time to time. What a
        message tells was so before it came; messages that come meanwhile wait for the next look.
        """
        before, membership = self._inputs, Membership.of(records)
        looks = replace(self.state.looks, received=_news(before.messages, before.commands))
        due = before.steady >= looks.due_at
        self.state = replace(self.state, looks=looks)
        if before.messages or before.commands or membership != looks.membership or due:
            # It stays due until it has come to its end.
            looks = replace(looks, membership=membership, due_at=0.0)
            self.state = replace(self.state, looks=looks)
            yield from self._look_at_all()
        yield from self._name_zones()
        # Those that were answered meanwhile are gone; a receipt may be another one by now.
        events = {message.event for message in before.messages}
        messages = tuple(each for each in self._inputs.messages if each.event in events)
        observation = self.state.observation(self._inputs, records, messages)
        observation = replace(observation, orders=before.commands)
        observation = yield from self._priced(observation)
        return (yield from self._offered(observation))

    def _look_at_all(self) -> Steps[None]:
        """Look at the cloud part by part.

        So a warning that comes meanwhile does not wait for the rest.
        """

        def instances() -> Request:
            view = self.state.view
            paid = view.job.policy.capacity.paid
            return LookAtInstances(view.bill, view.billed_at, view.job.spec.nat_gateways, paid)

        parts: tuple[Callable[[], Request], ...] = (
            # A command is not carried out on what was so before it.
            lambda: LookAtJob(self.state.view.job.spec.instance_types, required=self._is_asked()),
            LookAtGroups,
            instances,
        )
        for part in parts:
            yield from self._look(part())
            yield from self._answer_warnings()
        now = self._inputs.steady
        looks = replace(self.state.looks, looked_at=now, due_at=now + self._pace.busy)
        self.state = replace(self.state, throttle=self.state.throttle.looked(), looks=looks)

    def _look(self, request: Request) -> Steps[None]:
        """Ask what must be answered before anything can be decided, and back off if it is not."""
        try:
            yield from self._ask(request)
        except CallFailed:
            now, chance = self._inputs.steady, self._inputs.chance
            throttle = self.state.throttle.look_failed(now, chance)
            self.state = replace(self.state, throttle=throttle)
            raise

    def _name_zones(self) -> Steps[None]:
        subnets = self.state.to_name
        if subnets == self.state.view.subnets:
            return
        result = yield from self._ask(NameZones(subnets))
        if isinstance(result, ZonesFound):
            self.state = self.state.zones_named(subnets, result.zones)

    def _priced(self, observation: Observation) -> Steps[Observation]:
        """Return the observation with what one more node costs, where a limit asks for that."""
        view = self.state.view
        capacity = view.job.policy.capacity
        if capacity.max_price is None and capacity.max_cost is None:
            return observation
        zones = {instance.zone for instance in view.instances.values() if instance.zone}
        zones = zones if observation.home is None else {observation.home.name}
        result = yield from self._ask(PriceNodes(view.job.spec.instance_types, frozenset(zones)))
        if not isinstance(result, NodePrices):
            return observation
        fits = 0 < capacity.reserved == capacity.steady
        free = fits and len(capacity.paid) == len(capacity.reservations)
        on_demand = 0.0 if free else result.on_demand
        money = replace(observation.money, spot=result.spot, on_demand=on_demand)
        return replace(observation, money=money)

    def _offered(self, observation: Observation) -> Steps[Observation]:
        """Return the observation with what zones offer, where one of them is to be chosen."""
        job = self.state.view.job
        if not zone_packing.undecided(observation, self._inputs.now, job.policy):
            return observation
        result = yield from self._ask(
            OfferZones(observation.zones, observation.types, observation.desired)
        )
        return (
            replace(observation, zones=result.zones)
            if isinstance(result, ZonesFound)
            else observation
        )

    # -- what cannot wait, and what has to -------------------------------------------------------

    def _answer_warnings(self) -> Steps[None]:
        """Replace warned nodes without looking at the rest of the cloud, once a turn each."""
        while nodes := self._nodes_to_replace():
            yield from self._replace_warned(nodes)

    def _nodes_to_replace(self) -> frozenset[str]:
        """Return the nodes under notice that this turn has not tried to replace yet.

        Sick nodes are left to the look at the cloud, since not every one is replaced.
        """
        inputs, view = self._inputs, self.state.view
        drains = health.healthy(inputs.records.drains, inputs.records.drains)
        told = warned(inputs.messages, drains, view.groups.values(), view.instances)
        warnings = self.state.warnings.warned(told)
        self.state = replace(self.state, warnings=warnings)
        return warnings.due(told, inputs.steady)

    def _replace_warned(self, nodes: frozenset[str]) -> Steps[None]:
        inputs = self._inputs
        messages = tuple(message for message in inputs.messages if message.warns in nodes)
        self.state = self.state.counted(inputs.records, inputs.now)
        observation = self.state.observation(inputs, inputs.records, messages)
        actions = urgent(observation, nodes, inputs.now, self.state.view.job.policy)
        done = yield from self._perform(actions)
        failed = _failed(actions, done)
        missed = [each.instance for each in failed if isinstance(each, Replace | Remove)]
        now, chance = self._inputs.steady, self._inputs.chance
        warnings = self.state.warnings.attempted(nodes, missed, now, chance)
        self.state = replace(self.state, warnings=warnings)
        if done:
            # The cloud is looked at, to see what came of it.
            looks = replace(self.state.looks, membership=None)
            self.state = replace(self.state, looks=looks)

    def _resting(self, records: Records) -> float:
        """Return the seconds for which the cloud is not asked, because calls failed.

        With 0 or less, it is asked.
        """
        news, pressing = self._has_news(records), self._presses(records)
        return self.state.throttle.until(news=news, pressing=pressing) - self._inputs.steady

    def _has_news(self, records: Records) -> bool:
        come = _news(self._inputs.messages, self._inputs.commands)
        looks = self.state.looks
        return Membership.of(records) != looks.membership or not come <= looks.received

    def _presses(self, records: Records) -> bool:
        """Whether a command waits for its answer, or a node unknown to the cloud is warned.

        The cloud does not show that node yet.
        """
        if self._is_asked():
            return True
        told = {*records.drains, *(message.warns for message in self._inputs.messages)}
        return not (told & records.nodes.keys()) <= self.state.view.instances.keys()

    def _is_asked(self) -> bool:
        """Whether a command waits to be carried out."""
        now, lifetime = self._inputs.now, self.state.view.job.policy.command_lifetime
        return any(now - command.sent_at <= lifetime for command in self._inputs.commands)

    # -- acting and publishing -------------------------------------------------------------------

    def _perform(self, actions: Sequence[AnyAction]) -> Steps[tuple[AnyAction, ...]]:
        """Perform the actions. Returns those that succeeded."""
        if not actions:
            return ()
        result = yield from self._ask(Perform(tuple(actions)))
        return result.done if isinstance(result, Performed) else ()

    def _publish(self, records: Records, *, last: bool = False) -> Steps[None]:
        """Publish what is known, and put new interruptions of the report on record.

        The last time this waits until it is published.

        What people are told of it is on its way before: who sees the job's end may take the cluster
        down at once.
        """
        yield from self._notify(records)
        account_now = self.state.account(records, self._inputs.now, self._inputs.undelivered)
        result = yield from self._ask(Publish(account_now, last))
        if isinstance(result, Published):
            known = records.told | self.state.told
            entries = (*result.entries, *restores.entry(records, self._inputs.now))
            new = [event for event in entries if account(event) not in known]
            yield from self._perform([Tell(event) for event in new])

    def _notify(self, records: Records) -> Steps[None]:
        """Put on record what is due to be told, and have it sent.

        Must never happen: that something is sent which is not on record, since the next leader
        would send it again.
        """
        spec, now = self.state.view.job.spec, self._inputs.now
        if not spec.notify:
            return
        before = told_before(records.events) | {
            id: now for kind, _, id in self.state.told if kind == TOLD
        }
        facts = self.state.notification_facts(records, now)
        new = [(Tell(record(each, now)), each) for each in due(facts, before, now)]
        done = yield from self._perform([tell for tell, _ in new])
        recorded = tuple(each for tell, each in new if tell in done)
        if recorded:
            yield from self._ask(Notify(spec.notify, recorded))

    def _schedule_look(
        self, done: Iterable[object], failed: Sequence[object], idle: Callable[[], bool]
    ) -> None:
        """Decide when the cloud is looked at next, after the actions of a turn."""
        looks, throttle, now = self.state.looks, self.state.throttle, self._inputs.steady
        if any(not isinstance(action, Tell | Discard) for action in done):
            # The next decision must see what these did.
            looks = replace(looks, due_at=now + self._pace.soon, membership=None)
        elif failed:
            throttle = throttle.action_failed(now, self._inputs.chance)
            looks = replace(looks, due_at=0.0)  # due once that is over
        elif idle():
            looks = replace(looks, due_at=max(looks.due_at, looks.looked_at + self._pace.idle))
        if not failed:
            throttle = throttle.acted()
        self.state = replace(self.state, looks=looks, throttle=throttle)

    def _ask(self, request: Request) -> Steps[Result]:
        """Yield the request, and take in its answer. Raises `CallFailed`."""
        answer = yield request
        self._inputs = answer.inputs
        if isinstance(answer.result, Failed):
            raise CallFailed(answer.result.error)
        self.state = self.state.answered(answer.result, answer.inputs.now)
        return answer.result


def _failed(actions: Iterable[AnyAction], done: Sequence[AnyAction]) -> list[AnyAction]:
    """Return what the cloud or etcd was asked for in vain."""
    return [each for each in actions if each not in done and not isinstance(each, Tell)]


def _news(messages: Iterable[Message], commands: Iterable[PendingCommand]) -> frozenset[object]:
    """Return what identifies messages and commands.

    Receipts do not: a message delivered again is no news.
    """
    return frozenset((*(each.event for each in messages), *(each.command for each in commands)))
