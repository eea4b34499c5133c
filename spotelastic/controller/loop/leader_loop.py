"""Carries out the turns of the leading controller: what `turn.py` asks for, this does.

Nothing is polled quickly: an idle cluster costs a few calls of the cloud's API every `pace.idle`
seconds, and back-off reduces calls that fail. All times are of one clock that nothing can set.
"""

import logging
import random
from typing import Protocol, assert_never

from spotelastic_checkpoints import log_records
from spotelastic_checkpoints.backoff import Draw

from spotelastic.clock import Clock, steady, unbroken
from spotelastic.controller.effects.complaint import Complaint
from spotelastic.controller.etcd.etcd_mirror import Mirror
from spotelastic.controller.loop.cloud_reader import CloudReader
from spotelastic.controller.loop.collaborators import Collaborators
from spotelastic.controller.loop.leader_state import LeaderState
from spotelastic.controller.loop.requests import (
    Done,
    Failed,
    Inputs,
    LogLine,
    LookAtGroups,
    LookAtInstances,
    LookAtJob,
    NameZones,
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
    TakenOver,
    TakeOver,
)
from spotelastic.controller.loop.turn import Turn
from spotelastic.controller.model.config import LoopPace
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
    """The loop of one controller while it leads. `state` is what it knows between its turns."""

    def __init__(
        self,
        state: LeaderState,
        mirror: Mirror,
        reader: CloudReader,
        collaborators: Collaborators,
        wake: Wakes,
        pace: LoopPace,
        clock: Clock = unbroken,
        steady: Clock = steady,
        draw: Draw = random.uniform,
    ) -> None:
        """Create the loop, which closes the collaborators at its end.

        `draw` returns a random number between two, for back-off.
        """
        self.state = state
        self._mirror = mirror
        self._reader = reader
        self._collaborators = collaborators
        self._wake = wake
        self._pace = pace
        self._clock = clock
        self._steady = steady
        self._draw = draw
        self._complain = Complaint(logger.warning, steady)

    def finish(self) -> None:
        """Publish what is known, as long as no other controller leads."""
        self._collaborators.publisher.finish()

    def close(self) -> None:
        """Stop publishing: another controller may publish now."""
        self._collaborators.close()

    def lead(self, over: Ends) -> None:
        """Leads until `over` is set.

        Raises `LeaseLost` when a write shows that another controller leads.
        """
        rest = 0.0
        while not over.wait(self._pace.turn):
            self._wake.wait(rest)
            self._wake.clear()
            if over.is_set():
                return
            rest = self.turn()

    def turn(self) -> float:
        """Take one turn. Returns the most seconds until the next one."""
        turn = Turn(self.state, self._inputs(), self._pace)
        steps = turn.run()
        try:
            request = next(steps)
            while True:
                request = steps.send(StepAnswer(self._answer(request), self._inputs()))
        except StopIteration as end:
            return float(end.value)
        finally:
            self.state = turn.state

    def _inputs(self) -> Inputs:
        records = self._mirror.records()
        if records.round is not None:
            log_records.entered(records.round.number, records.round.cause)
        events, commands = self._collaborators.events, self._collaborators.commands
        return Inputs(
            now=self._clock(),
            steady=self._steady(),
            chance=self._draw(0.0, 1.0),
            records=records,
            messages=events.messages,
            handled=events.handled,
            commands=commands.messages,
            answered=commands.handled,
            undelivered=self._collaborators.notifier.undelivered,
        )

    def _answer(self, request: Request) -> Result:
        try:
            return self._carry_out(request)
        except (Unavailable, EnvironmentFailure) as error:
            return Failed(str(error))

    def _carry_out(self, request: Request) -> Result:
        match request:
            case TakeOver():
                return self._take_over()
            case LookAtJob():
                return self._reader.job(request)
            case LookAtGroups():
                return self._reader.groups()
            case LookAtInstances():
                return self._reader.instances(request)
            case NameZones():
                return self._reader.zones(request)
            case OfferZones():
                return self._reader.offers(request)
            case PriceNodes():
                return self._reader.prices(request)
            case Perform():
                return self._perform(request)
            case Publish():
                return self._publish(request)
            case Notify(receivers, notifications):
                self._collaborators.notifier.offer(receivers, notifications)
                return Done()
            case LogLine(line, failure):
                (self._complain if failure else logger.info)(line)
                return Done()
            case _:
                assert_never(request)

    def _take_over(self) -> TakenOver:
        found = self._reader.take_over()
        self._mirror.remember(found.curve, found.measured)
        return found.known

    def _publish(self, request: Publish) -> Published:
        publisher = self._collaborators.publisher
        publisher.offer(request.account)
        if request.last:
            publisher.settle()
        return Published(publisher.entries)

    def _perform(self, request: Perform) -> Performed:
        collaborators = self._collaborators
        done = collaborators.executor.perform(request.actions)
        collaborators.events.settle(done)
        collaborators.commands.settle(done)
        return Performed(done)
