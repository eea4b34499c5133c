"""Runs the turns of the leading controller, one after the other.

Nothing is polled quickly: an idle cluster costs a few calls of the cloud's API every `pace.idle`
seconds, and back-off reduces calls that fail. All times are of one clock that nothing can set.
"""

from threading import Event

from spotelastic.controller.loop.leader_calls import Collaborators, LeaderCalls
from spotelastic.controller.loop.leader_state import LeaderState
from spotelastic.controller.loop.turn import Turn
from spotelastic.controller.model.config import LoopPace


class LeaderLoop:
    """The loop of one controller while it leads. `state` is what it knows between its turns."""

    def __init__(
        self,
        state: LeaderState,
        calls: LeaderCalls,
        collaborators: Collaborators,
        wake: Event,
        pace: LoopPace,
    ) -> None:
        """Create the loop, which closes the collaborators at its end."""
        self.state = state
        self._calls = calls
        self._collaborators = collaborators
        self._wake = wake
        self._pace = pace

    def finish(self) -> None:
        """Publish what is known, as long as no other controller leads."""
        self._collaborators.publisher.finish()

    def close(self) -> None:
        """Stop publishing: another controller may publish now."""
        self._collaborators.close()

    def lead(self, over: Event) -> None:
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
        turn = Turn(self.state, self._calls, self._pace)
        try:
            return turn.run()
        finally:
            self.state = turn.state
