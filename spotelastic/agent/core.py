"""The part of an agent that does not wait: it folds what happened, decides, and has actions done.

The agent's loop (`agent_loop.py`), the nodes of simulations and the light agents of benchmarks all
use it. The events of an action are folded before the next action is performed, and each in the
order in which it came.
"""

import logging
from collections.abc import Callable

from spotelastic.agent.actions import Exit
from spotelastic.agent.decide import AgentDecision, decide
from spotelastic.agent.executor import AgentExecutor
from spotelastic.agent.observe import observe
from spotelastic.agent.state import events
from spotelastic.agent.state.values import NEW
from spotelastic.agent.watches import StoreChanged, Watches
from spotelastic.clock import Clock, unbroken
from spotelastic.model.ids import new_id
from spotelastic.rendezvous.duties import holding
from spotelastic.rendezvous.view import RunState, fold, has_gone_back

logger = logging.getLogger(__name__)


class AgentCore:
    """What one agent knows, and what it does next. Used by one thread at a time."""

    def __init__(
        self,
        executor: AgentExecutor,
        *,
        stays: bool = False,
        checks: bool = False,
        clock: Clock = unbroken,
        new_id: Callable[[], str] = new_id,
    ) -> None:
        self._executor = executor
        self._clock = clock
        self._new_id = new_id
        self.local = NEW
        self.seen = RunState()
        """The run, as etcd shows it."""
        self.fold(events.AgentStarted(stays, checks))

    @property
    def gathers(self) -> float:
        """Seconds after an event in which further ones are awaited before the next decision."""
        leads = self.local.membership.leadership is not None
        return holding.gathers(self.seen) if leads else 0.0

    def fold(self, event: events.LocalEvent | StoreChanged) -> None:
        """Take in what happened."""
        now = self._clock()
        if isinstance(event, StoreChanged):
            self._read(event, now)
            return
        self._observe(event, now)
        if not isinstance(event, events.AgentEvent):
            self._executor.tell(event)

    def _read(self, event: StoreChanged, now: float) -> None:
        keys, before = self._executor.keys, self.seen
        self.seen = fold(before, event.items, keys, now, event.prefix)
        if has_gone_back(before, self.seen):
            logger.warning("etcd has lost its data: this node joins again")
            self._observe(events.StoreWentBack(), now)
        if event.prefix == keys.nodes and not self.local.membership.nodes_seen:
            self._observe(events.NodesRead(), now)

    def _observe(self, event: events.LocalEvent, now: float) -> None:
        self.local = observe(self.local, event, now)

    def turn(self, watches: Watches) -> tuple[AgentDecision, Exit | None]:
        """Decides once and performs the actions, up to one that ends the agent: that is returned.

        The caller turns again at once if there were actions, else at the decision's time.
        """
        now = self._clock()
        decision = decide(self.local, self.seen, now, self._new_id)
        for action in decision.actions:
            if isinstance(action, Exit):
                return decision, action
            logger.debug("%s", type(action).__name__)
            for event in self._executor.perform(self.local, self.seen, action):
                self.fold(event)
        leads = self.local.membership.leadership is not None
        self.seen = watches.follow(self.seen, holds=leads)
        return decision, None

    def close(self) -> None:
        self._executor.close()
