"""Delivers the local cloud's events, once and at once unless a test asks for delays, copies or
losses, or the conditions do."""

from collections.abc import Callable
from functools import partial

from spotelastic.clock import wall
from spotelastic.local.base.agenda import Agenda
from spotelastic.local.base.conditions import ConditionsInForce
from spotelastic.local.base.eventbridge_messages import BusEvent

Put = Callable[[BusEvent, float], None]


class Bus:
    """The event bus. Used under the cloud's lock, as all parts."""

    def __init__(self, put: Put, agenda: Agenda, conditions: ConditionsInForce) -> None:
        """`put` delivers an event with its time, in epoch seconds."""
        self._put = put
        self._agenda = agenda
        self._conditions = conditions
        self.delays: tuple[float, ...] | None = None
        """Seconds until each copy of an event is delivered; None: as the conditions say."""

    def emit(self, event: BusEvent) -> None:
        """Deliver an event."""
        now = wall()
        for delay in self._conditions.deliveries() if self.delays is None else self.delays:
            deliver = partial(self._put, event, now)
            if delay:
                self._agenda.at(now + delay, deliver)
            else:
                deliver()
