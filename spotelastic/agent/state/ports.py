"""What actions need of a node: its processes and its lease. Simulations have simulated ones."""

from collections.abc import Collection, Sequence
from typing import Protocol

from spotelastic_checkpoints.types import DaemonStatus, Schedule, WorkerStep

from spotelastic.agent import actions
from spotelastic.agent.state.events import LocalEvent
from spotelastic.agent.state.values import NodeState, WorkerExit, Workers
from spotelastic.agent.workers.trouble import WorkerTrouble
from spotelastic.model.round import RoundEnd
from spotelastic.rendezvous.view import RunState

Events = Sequence[LocalEvent]
"""What an action did, in order."""


class Processes(Protocol):
    """The processes of a node, as the executor needs them.

    Calls raise `DaemonUnavailable` while there is no daemon, and another `CheckpointsError` where
    it refuses.
    """

    def do(self, action: actions.Action, local: NodeState, seen: RunState) -> Events:
        """Perform an action that needs no etcd."""
        ...

    def status(self) -> DaemonStatus: ...

    def set_target(
        self, round_: str, proposal: str, target: int, schedule: Schedule | None = None
    ) -> Sequence[WorkerStep]:
        """Write a target into the workers' pages, then read their steps; 0 withdraws it."""
        ...

    def round_end(self, workers: Workers) -> RoundEnd: ...

    def failure(self, workers: Workers, exit_: WorkerExit) -> WorkerTrouble: ...

    def log(self, workers: Workers, local_rank: int) -> str:
        """Return the path of a worker's log."""
        ...

    def stall(self, workers: Workers, timeout: float) -> WorkerTrouble: ...

    def standing(self, workers: Workers) -> tuple[str, str]:
        """Return where silent workers stand, as they have written it, and where more of it is."""
        ...

    def refusing(self, addresses: Collection[str]) -> frozenset[str]:
        """Return those of these addresses of daemons at which nobody listens."""
        ...

    def close(self) -> None:
        """End everything that was started."""


class LeaseSession(Protocol):
    """The lease of a node, which somebody else refreshes."""

    @property
    def lease(self) -> int: ...

    @property
    def alive(self) -> bool: ...

    def renew(self) -> int: ...
