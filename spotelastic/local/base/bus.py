"""The event bus: it delivers each event once and at once, unless it was told to do worse."""

from collections.abc import Callable
from functools import partial

from spotelastic.clock import wall
from spotelastic.local.base.agenda import Agenda
from spotelastic.local.base.eventbridge_messages import CloudEvent

Put = Callable[[CloudEvent, float], None]


class Bus:
    """Under the cloud's lock, as all of its parts."""

    def __init__(self, put: Put, agenda: Agenda) -> None:
        """`put` takes an event and its time, in seconds since the epoch."""
        self._put = put
        self._agenda = agenda
        self.delays: tuple[float, ...] = (0.0,)
        """Of the copies of an event: seconds until they are delivered."""

    def emit(self, event: CloudEvent) -> None:
        now = wall()
        for delay in self.delays:
            deliver = partial(self._put, event, now)
            if delay:
                self._agenda.at(now + delay, deliver)
            else:
                deliver()
