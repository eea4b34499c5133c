"""The loop of the leading controller:

    something happened (a message from AWS, a key in etcd, a time that was waited for)
      -> observe AWS where it may have changed -> decide -> act -> publish

Nothing is polled quickly: an idle cluster costs a few calls of AWS's API every `pace.idle` seconds,
and back-off reduces calls that fail. All times are of one clock that nothing can set.
"""

import logging
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from spotelastic_checkpoints import log_records
from spotelastic_checkpoints.backoff import Draw

from spotelastic.clock import Clock, steady, unbroken
from spotelastic.controller.decisions import housekeeping, zone_packing
from spotelastic.controller.decisions.decide import decide, ends, settled, urgent
from spotelastic.controller.decisions.housekeeping import Examine, Postpone
from spotelastic.controller.decisions.urgent import Membership, warned
from spotelastic.controller.effects.complaint import Complaint
from spotelastic.controller.effects.throttle import AwsThrottle, WarningRetry
from spotelastic.controller.etcd.etcd_mirror import Mirror, Records
from spotelastic.controller.loop.cloud_observer import CloudObserver, ReceivedMessages
from spotelastic.controller.loop.collaborators import Collaborators
from spotelastic.controller.model.config import LoopPace
from spotelastic.controller.model.observation import (
    Action,
    Discard,
    Message,
    Observation,
    PendingCommand,
    Remove,
    Replace,
    Tell,
    account,
)
from spotelastic.errors import EnvironmentFailure, Unavailable

logger = logging.getLogger(__name__)


class Wakes(Protocol):
    """Wakes the loop when something has happened, as `threading.Event`."""

    def wait(self, timeout: float | None = None) -> bool: ...

    def clear(self) -> None: ...


class Ends(Protocol):
    """Tells the loop that its leadership is over, as `threading.Event`."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class LeaderLoop:
    """The loop of one controller while it leads."""

    def __init__(
        self,
        mirror: Mirror,
        observer: CloudObserver,
        collaborators: Collaborators,
        wake: Wakes,
        pace: LoopPace,
        clock: Clock = unbroken,
        steady: Clock = steady,
        draw: Draw = random.uniform,
    ) -> None:
        """Creates the loop, which closes the collaborators at its end. `draw` returns a random
        number between two, for back-off.
        """
        self._mirror = mirror
        self._observer = observer
        self._executor = collaborators.executor
        self._events = collaborators.events
        self._commands = collaborators.commands
        self._publisher = collaborators.publisher
        self._collaborators = collaborators
        self._wake = wake
        self._pace = pace
        self._clock = clock
        self._steady = steady
        self._looked_at = 0.0
        self._look_at = 0.0
        self._membership: Membership | None = None
        self._throttle = AwsThrottle(pace.busy, pace.idle, draw)
        self._warnings = WarningRetry(pace.busy, draw)
        self._received: frozenset[object] = frozenset()
        """What had come at the last decision."""
        self._complain = Complaint(logger.warning, steady)
        self._told: set[tuple[str, str, str]] = set()
        self._reason = ""
        self._switch_at = 0.0
        self._examined: set[str] = set()

    def finish(self) -> None:
        """Publishes what is known, as long as no other controller leads."""
        self._publisher.finish()

    def close(self) -> None:
        """Stops publishing: another controller may publish now."""
        self._collaborators.close()

    def lead(self, over: Ends) -> None:
        """Leads until `over` is set. Raises `LeaseLost` when a write shows that another controller
        leads.
        """
        taken_over = False
        rest = 0.0
        while not over.wait(self._pace.turn):
            self._wake.wait(rest)
            self._wake.clear()
            if over.is_set():
                return
            try:
                if not taken_over:
                    if (rest := self._resting(self._mirror.records())) > 0.0:
                        continue
                    self.take_over()
                    taken_over = True
                rest = self.turn()
            except (Unavailable, EnvironmentFailure) as error:
                self._complain(str(error))
                rest = self._pace.busy
                if not taken_over:
                    self._hold_off()

    def take_over(self) -> None:
        """Reads the job, and the former leader's records."""
        with self._resting_on_failure():
            self._mirror.remember(self._observer.take_over())

    def turn(self) -> float:
        """Observes, decides, acts and publishes once, after `take_over`. Returns the most seconds
        until the next turn.
        """
        self._warnings.turn()
        self._answer_warnings()
        records = self._mirror.records()
        if records.round is not None:
            log_records.entered(records.round.number, records.round.cause)
        if (rest := self._resting(records)) > 0.0:
            self._turn_without_aws(records)
            return max(0.0, min(rest, self._warnings.again_at - self._steady()))
        observation, now = self._observe(records), self._clock()
        job = self._observer.job
        state = self._observer.cluster_state(records, self._switch_at, self._examined)
        kept = housekeeping.upkeep(observation, state, now, job.upkeep)
        failed = _failed(kept.actions, self._perform(kept.actions))
        observation = replace(observation, desired=kept.desired, hopeless=kept.hopeless)
        decision = decide(observation, now, job.policy)
        if decision.reason != self._reason:
            logger.info(decision.reason)
            self._reason = decision.reason
        done = self._perform(decision.actions)
        failed += _failed(decision.actions, done)
        self._schedule_look(done, failed, idle=lambda: settled(observation, now, job.policy))
        self._publish(records)
        moments = [at for at in (decision.wake_at, kept.wake_at) if at is not None]
        until_wake = min(moments, default=float("inf")) - now
        until_look = min(self._look_at, self._warnings.again_at) - self._steady()
        return max(0.0, min(until_look, until_wake))

    def _turn_without_aws(self, records: Records) -> None:
        """Publishes, and ends a job that has reached a limit: these hold without AWS's answer."""
        if not self._looked_at:  # the leader before knew more
            return
        observation = self._observation(records, (), priced=False)
        self._perform(ends(observation, self._clock(), self._observer.job.policy))
        self._publish(records)

    def _schedule_look(
        self, done: Iterable[object], failed: Sequence[object], idle: Callable[[], bool]
    ) -> None:
        """Decides when AWS is looked at next, after the actions of a turn."""
        if any(not isinstance(action, Tell | Discard) for action in done):
            self._look_at = self._steady() + self._pace.soon
            self._membership = None  # The next decision must see what these did.
        elif failed:
            self._throttle.action_failed(self._steady())
            self._look_at = 0.0  # due once that is over
        elif idle():
            self._look_at = max(self._look_at, self._looked_at + self._pace.idle)
        if not failed:
            self._throttle.acted()

    def _hold_off(self) -> None:
        """Postpones the dead man's switch while the job cannot be read: S3 may be away for long."""
        now, upkeep = self._clock(), self._observer.job.upkeep
        state = self._observer.cluster_state(
            self._mirror.records(), self._switch_at, self._examined
        )
        if now < housekeeping.postpone_at(state, upkeep):
            return
        try:
            self._observer.look_at_groups()
            if self._observer.groups:
                self._perform([Postpone(now + upkeep.unattended)])
        except (Unavailable, EnvironmentFailure) as error:
            self._complain(str(error))

    # -- observing -------------------------------------------------------------------------------

    def _observe(self, records: Records) -> Observation:
        """Returns the next observation.

        AWS is asked again when it or etcd reports a change, and from time to time. What a message
        tells was so before it came; messages that come meanwhile wait for the next look.
        """
        messages, commands = self._events.messages, self._commands.messages
        self._received = _news(messages, commands)
        membership = Membership.of(records)
        due = self._steady() >= self._look_at
        if messages or commands or membership != self._membership or due:
            self._membership, self._look_at = membership, 0.0  # due until it has come to its end
            self._look()
        # Those that were answered meanwhile are gone; a receipt may be another one by now.
        before = {message.event for message in messages}
        messages = tuple(each for each in self._events.messages if each.event in before)
        observation = replace(self._observation(records, messages), orders=commands)
        if zone_packing.undecided(observation, self._clock(), self._observer.job.policy):
            observation = replace(observation, zones=self._observer.offered(observation))
        return observation

    def _look(self) -> None:
        """Looks at AWS part by part, so that a warning which comes meanwhile does not wait for the
        rest.
        """
        observer = self._observer
        parts: tuple[Callable[[], None], ...] = (
            # A command is not carried out on what was so before it.
            lambda: observer.look_at_job(required=self._is_asked()),
            observer.look_at_groups,
            observer.look_at_instances,
        )
        for part in parts:
            with self._resting_on_failure():
                part()
            self._answer_warnings()
        self._throttle.looked()
        self._looked_at = self._steady()
        self._look_at = self._looked_at + self._pace.busy

    def _observation(
        self, records: Records, messages: tuple[Message, ...], *, priced: bool = True
    ) -> Observation:
        """Returns an observation with AWS as of the last look."""
        received = ReceivedMessages(messages, self._events.handled, answered=self._commands.handled)
        told = records.told | self._told
        return self._observer.observation(records, received, told, priced=priced)

    # -- what cannot wait, and what has to -------------------------------------------------------

    def _answer_warnings(self) -> None:
        """Replaces warned nodes without looking at the rest of AWS, once a turn each."""
        messages, drains = self._events.messages, self._mirror.drains
        groups, instances = self._observer.groups, self._observer.instances
        told = warned(messages, drains, groups.values(), instances)
        nodes = self._warnings.due(told, self._steady())
        if not nodes:
            return
        warnings = tuple(message for message in messages if message.warns in nodes)
        observation = self._observation(self._mirror.records(), warnings)
        actions = urgent(observation, nodes, self._clock(), self._observer.job.policy)
        done = self._perform(actions)
        failed = _failed(actions, done)
        missed = [each.instance for each in failed if isinstance(each, Replace | Remove)]
        self._warnings.tried(nodes, missed, self._steady())
        if done:
            self._membership = None  # so that AWS is looked at

    def _resting(self, records: Records) -> float:
        """Returns the seconds for which AWS is not asked, because calls failed; 0 or less: none."""
        news, pressing = self._has_news(records), self._presses(records)
        return self._throttle.until(news=news, pressing=pressing) - self._steady()

    @contextmanager
    def _resting_on_failure(self) -> Iterator[None]:
        """Backs off when a call fails that AWS must answer before anything can be decided."""
        try:
            yield
        except (Unavailable, EnvironmentFailure):
            self._throttle.look_failed(self._steady())
            raise

    def _has_news(self, records: Records) -> bool:
        come = _news(self._events.messages, self._commands.messages)
        return Membership.of(records) != self._membership or not come <= self._received

    def _presses(self, records: Records) -> bool:
        """Whether a command waits for its answer, or a node is warned that AWS does not show
        yet.
        """
        if self._is_asked():
            return True
        told = {*records.drains, *(message.warns for message in self._events.messages)}
        return not (told & records.nodes.keys()) <= self._observer.instances.keys()

    def _is_asked(self) -> bool:
        """Whether a command waits to be carried out."""
        now, lifetime = self._clock(), self._observer.job.policy.command_lifetime
        return any(now - command.sent_at <= lifetime for command in self._commands.messages)

    # -- acting and publishing -------------------------------------------------------------------

    def _perform(
        self, actions: Sequence[Action | housekeeping.Action]
    ) -> tuple[Action | housekeeping.Action, ...]:
        """Performs the actions, and returns those that succeeded."""
        done = self._executor.perform(actions)
        self._events.settle(done)
        self._commands.settle(done)
        self._observer.acted(done)
        self._told |= {account(action.event) for action in done if isinstance(action, Tell)}
        for action in done:
            if isinstance(action, Postpone):
                self._switch_at = action.until
            elif isinstance(action, Examine):
                self._examined.add(action.machine.id)
        return done

    def _publish(self, records: Records) -> None:
        self._publisher.offer(self._observer.account(records, self._executor.fates))
        known = records.told | self._told
        new = [event for event in self._publisher.entries if account(event) not in known]
        self._perform([Tell(event) for event in new])


def _failed(
    actions: Iterable[Action | housekeeping.Action], done: Sequence[Action | housekeeping.Action]
) -> list[Action | housekeeping.Action]:
    """Returns what AWS or etcd was asked for in vain."""
    return [each for each in actions if each not in done and not isinstance(each, Tell)]


def _news(messages: Iterable[Message], commands: Iterable[PendingCommand]) -> frozenset[object]:
    """Returns what identifies messages and commands. Receipts do not: a message delivered again is
    no news.
    """
    return frozenset((*(each.event for each in messages), *(each.command for each in commands)))
