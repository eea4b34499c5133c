"""One turn of a leading controller. What it does to the outside, `leader_calls.py` does.

    something happened -> observe the cloud where it may have changed -> decide -> act -> publish

After each call it is seen what has come from outside meanwhile. So a warning that comes during a
slow call is answered before the next one. All changes are in the turn's state, which is a value:
the next turn begins with it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import ParamSpec, TypeVar

from spotelastic.controller.accounting import restores
from spotelastic.controller.decisions import health, housekeeping, zone_packing
from spotelastic.controller.decisions.decide import decide, ends, settled, urgent
from spotelastic.controller.decisions.housekeeping import Postpone, Teardown
from spotelastic.controller.decisions.urgent import membership, warned
from spotelastic.controller.loop.leader_calls import LeaderCalls
from spotelastic.controller.loop.leader_state import AnyAction, LeaderState
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
from spotelastic.errors import EnvironmentFailure, Unavailable
from spotelastic.notifications.due import TOLD, due, record, told_before

P = ParamSpec("P")
T = TypeVar("T")
FAILED = Unavailable, EnvironmentFailure


class Turn:
    """One turn. After each step, `state` is what the leader knows by then."""

    def __init__(self, state: LeaderState, calls: LeaderCalls, pace: LoopPace) -> None:
        self.state = state
        self._calls = calls
        self._inputs = calls.inputs()
        self._pace = pace

    def run(self) -> float:
        """Take the turn. Returns the most seconds until the next one."""
        try:
            if not self.state.taken_over:
                if (rest := self._resting(self._inputs.records)) > 0.0:
                    return rest
                self._look(self._take_over)
            return self._lead()
        except FAILED as failure:
            self._calls.complain(str(failure))
        if not self.state.taken_over:
            self._hold_off()
        return self._pace.busy

    def _lead(self) -> float:
        """Observe, decide, act and publish."""
        self.state = replace(self.state, warnings=self.state.warnings.turn())
        self._answer_warnings()
        records = self._inputs.records
        self.state = self.state.counted(records, self._inputs.now)
        if (rest := self._resting(records)) > 0.0:
            self._go_without_cloud(records)
            return max(0.0, min(rest, self.state.warnings.again_at - self._inputs.steady))
        observation, now = self._observe(records), self._inputs.now
        job = self.state.view.job
        kept = housekeeping.upkeep(observation, self.state.cluster_state(records), now, job.upkeep)
        if any(isinstance(action, Teardown) for action in kept.actions):
            # Who watches waits for the job's end, and this process goes with the cluster.
            self._publish(records, last=True)
        failed = _failed(kept.actions, self._perform(kept.actions))
        observation = replace(observation, desired=kept.desired, hopeless=kept.hopeless)
        decision = decide(observation, now, job.policy)
        if decision.reason != self.state.reason:
            self._calls.log(decision.reason)
            self.state = replace(self.state, reason=decision.reason)
        done = self._perform(decision.actions)
        failed += _failed(decision.actions, done)
        self._schedule_look(done, failed, idle=lambda: settled(observation, now, job.policy))
        self._publish(records)
        moments = [at for at in (decision.wake_at, kept.wake_at) if at is not None]
        until_wake = min(moments, default=float("inf")) - now
        next_call = min(self.state.looks.due_at, self.state.warnings.again_at)
        return max(0.0, min(next_call - self._inputs.steady, until_wake))

    def _go_without_cloud(self, records: Records) -> None:
        """Publish, and end a job that has reached a limit.

        Both hold without the cloud's answer.
        """
        if not self.state.looks.looked_at:  # the leader before knew more
            return
        observation = self.state.observation(self._inputs, records, ())
        policy = self.state.view.job.policy
        self._perform(ends(observation, self._inputs.now, policy))
        self._publish(records)

    def _hold_off(self) -> None:
        """Postpone the dead man's switch while the job cannot be read: S3 may be away for long."""
        now, upkeep = self._inputs.now, self.state.view.job.upkeep
        cluster = self.state.cluster_state(self._inputs.records)
        if now < housekeeping.postpone_at(cluster, upkeep):
            return
        try:
            self._look_at_groups()
            if self.state.view.groups:
                self._perform([Postpone(now + upkeep.unattended)])
        except FAILED as failure:
            self._calls.complain(str(failure))

    # -- observing -------------------------------------------------------------------------------

    def _observe(self, records: Records) -> Observation:
        """Return the next observation.

        The cloud is asked again when it or etcd reports a change, and from time to time. What a
        message tells was so before it came; messages that come meanwhile wait for the next look.
        """
        before, known = self._inputs, membership(records)
        looks = replace(self.state.looks, received=_news(before.messages, before.commands))
        due = before.steady >= looks.due_at
        self.state = replace(self.state, looks=looks)
        if before.messages or before.commands or known != looks.membership or due:
            # It stays due until it has come to its end.
            looks = replace(looks, membership=known, due_at=0.0)
            self.state = replace(self.state, looks=looks)
            self._look_at_all()
        self._name_zones()
        # Those that were answered meanwhile are gone; a receipt may be another one by now.
        events = {message.event for message in before.messages}
        messages = tuple(each for each in self._inputs.messages if each.event in events)
        observation = self.state.observation(self._inputs, records, messages)
        observation = replace(observation, orders=before.commands)
        observation = self._priced(observation)
        return self._offered(observation)

    def _look_at_all(self) -> None:
        """Look at the cloud part by part.

        So a warning that comes meanwhile does not wait for the rest.
        """
        for part in (self._look_at_job, self._look_at_groups, self._look_at_instances):
            self._look(part)
            self._answer_warnings()
        now = self._inputs.steady
        looks = replace(self.state.looks, looked_at=now, due_at=now + self._pace.busy)
        self.state = replace(self.state, throttle=self.state.throttle.looked(), looks=looks)

    def _look(self, look: Callable[[], None]) -> None:
        """Ask what must be answered before anything can be decided, and back off if it is not."""
        try:
            look()
        except FAILED:
            throttle = self.state.throttle.look_failed(self._inputs.steady, self._inputs.chance)
            self.state = replace(self.state, throttle=throttle)
            raise

    def _take_over(self) -> None:
        found = self._call(self._calls.take_over)
        self.state = self.state.took_over(found, self._inputs.now)

    def _look_at_job(self) -> None:
        types = self.state.view.job.spec.instance_types
        # A command is not carried out on what was so before it.
        read = self._call(self._calls.job, types, required=self._is_asked())
        if read is not None:
            self.state = self.state.job_read(read, self._inputs.now)

    def _look_at_groups(self) -> None:
        self.state = self.state.groups_seen(self._call(self._calls.groups))

    def _look_at_instances(self) -> None:
        found = self._call(self._calls.instances, self.state.view)
        self.state = self.state.instances_seen(*found, self._inputs.now)

    def _name_zones(self) -> None:
        subnets = self.state.to_name
        if subnets == self.state.view.subnets:
            return
        zones = self._call(self._calls.zones, subnets)
        if zones is not None:
            view = replace(self.state.view, subnets=subnets, zones=zones)
            self.state = replace(self.state, view=view)

    def _priced(self, observation: Observation) -> Observation:
        """Return the observation with what one more node costs, where a limit asks for that."""
        view = self.state.view
        capacity = view.job.policy.capacity
        if capacity.max_price is None and capacity.max_cost is None:
            return observation
        zones = {instance.zone for instance in view.instances.values() if instance.zone}
        zones = zones if observation.home is None else {observation.home.name}
        spot, on_demand = self._call(self._calls.prices, observation.types, zones)
        fits = 0 < capacity.reserved == capacity.steady
        free = fits and len(capacity.paid) == len(capacity.reservations)
        money = replace(observation.money, spot=spot, on_demand=0.0 if free else on_demand)
        return replace(observation, money=money)

    def _offered(self, seen: Observation) -> Observation:
        """Return the observation with what zones offer, where one of them is to be chosen."""
        if not zone_packing.undecided(seen, self._inputs.now, self.state.view.job.policy):
            return seen
        offers = self._call(self._calls.offers, seen.zones, seen.types, seen.desired)
        return replace(seen, zones=offers or seen.zones)

    # -- what cannot wait, and what has to -------------------------------------------------------

    def _answer_warnings(self) -> None:
        """Replace warned nodes without looking at the rest of the cloud, once a turn each."""
        while nodes := self._nodes_to_replace():
            self._replace_warned(nodes)

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

    def _replace_warned(self, nodes: frozenset[str]) -> None:
        inputs = self._inputs
        messages = tuple(message for message in inputs.messages if message.warns in nodes)
        self.state = self.state.counted(inputs.records, inputs.now)
        observation = self.state.observation(inputs, inputs.records, messages)
        actions = urgent(observation, nodes, inputs.now, self.state.view.job.policy)
        done = self._perform(actions)
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
        return membership(records) != looks.membership or not come <= looks.received

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

    def _perform(self, actions: Sequence[AnyAction]) -> tuple[AnyAction, ...]:
        """Perform the actions. Returns those that succeeded."""
        if not actions:
            return ()
        done = self._call(self._calls.perform, actions)
        self.state = self.state.performed(done)
        return done

    def _publish(self, records: Records, *, last: bool = False) -> None:
        """Publish what is known, and put new interruptions of the report on record.

        The last time this waits until it is published.

        What people are told of it is on its way before: who sees the job's end may take the cluster
        down at once.
        """
        self._notify(records)
        account_now = self.state.account(records, self._inputs.now, self._inputs.undelivered)
        entries = self._call(self._calls.publish, account_now, last=last)
        known = records.told | self.state.told
        entries = (*entries, *restores.entry(records, self._inputs.now))
        self._perform([Tell(event) for event in entries if account(event) not in known])

    def _notify(self, records: Records) -> None:
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
        done = self._perform([tell for tell, _ in new])
        recorded = tuple(each for tell, each in new if tell in done)
        if recorded:
            self._call(self._calls.notify, spec.notify, recorded)

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

    def _call(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Make a call, and see what has come meanwhile."""
        try:
            return call(*args, **kwargs)
        finally:
            self._inputs = self._calls.inputs()


def _failed(actions: Iterable[AnyAction], done: Sequence[AnyAction]) -> list[AnyAction]:
    """Return what the cloud or etcd was asked for in vain."""
    return [each for each in actions if each not in done and not isinstance(each, Tell)]


def _news(messages: Iterable[Message], commands: Iterable[PendingCommand]) -> frozenset[object]:
    """Return what identifies messages and commands.

    Receipts do not: a message delivered again is no news.
    """
    return frozenset((*(each.event for each in messages), *(each.command for each in commands)))
