"""Simulates a node in virtual time: its agent as it is, with simulated processes, lease and clock.

Only input and output are simulated. What actions do to the node's state, and in which order, is the
agent's own (`agent.core`, `agent.executor`, `agent.observe`).
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spotelastic_checkpoints.messages import Sealed
from support.simulation.virtual_processes import VirtualProcesses
from support.simulation.virtual_ranks import Rank
from support.simulation.virtual_training import NETWORK
from support.store.memory_store import MemoryStore

from spotelastic.agent import actions as do
from spotelastic.agent.config import AgentConfig
from spotelastic.agent.core import AgentCore
from spotelastic.agent.executor import AgentExecutor
from spotelastic.agent.state.events import (
    Exited,
    LocalEvent,
    Noticed,
    SessionLost,
    Signalled,
    WorkerFailing,
    XidSeen,
)
from spotelastic.agent.state.ports import Events
from spotelastic.agent.state.values import NodeState
from spotelastic.agent.watches import StoreChanged, Watches
from spotelastic.errors import Unavailable
from spotelastic.model.gpu import GpuFault
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.notice import Notice
from spotelastic.model.round import Round
from spotelastic.rendezvous.view import RunState
from spotelastic.store.port import Change

if TYPE_CHECKING:
    from support.simulation.virtual_cluster import World


class VirtualSession:
    """Implements `executor.LeaseSession`: a lease that is refreshed in virtual time."""

    def __init__(self, node: "SimNode") -> None:
        self._node, self.lease = node, 0

    @property
    def alive(self) -> bool:
        return self.lease != 0

    def renew(self) -> int:
        world, node = self._node.world, self._node
        self.lease = lease = node.client.grant(world.settings.lease)
        world.after(world.settings.lease / 3, lambda: self._refresh(lease))
        return lease

    def _refresh(self, lease: int) -> None:
        world, node = self._node.world, self._node
        if not node.alive or node.exit_code is not None or lease != self.lease:
            return
        if node.frozen:
            world.after(world.settings.lease / 3, lambda: self._refresh(lease))
            return
        try:
            left = node.client.refresh(lease)
        except Unavailable:
            left = world.settings.lease  # tried again, until the store says that it is gone
        if left <= 0:
            self.lease = 0
            node.post(SessionLost("expired"))
            return
        world.after(world.settings.lease / 3, lambda: self._refresh(lease))


class _Executor(AgentExecutor):
    """Notes what people are told."""

    def __init__(self, node: "SimNode", config: AgentConfig) -> None:
        super().__init__(
            config,
            node.client,
            node.session,
            node.processes,
            lambda: node.now,
            node.world.new_id,
        )
        self._node = node

    def perform(self, local: NodeState, seen: RunState, action: do.Action) -> Events:
        told = super().perform(local, seen, action)
        if isinstance(action, do.Say | do.TellVersions):
            self._node.world.said.append((self._node.name, action.line))
        return told


class SimNode:
    """One node: its agent's loop, with simulated input and output."""

    def __init__(
        self,
        world: "World",
        name: str,
        zone: str,
        rank: int | None,
        clock: float,
        version: Callable[[MemoryStore], Any],
        *,
        spot: bool,
    ) -> None:
        self.world, self.name, self.zone, self.rank = world, name, zone, rank
        self.spot = spot
        self._clock = clock
        self.client = version(world.store.client())
        self.alive = True
        self.lag = NETWORK
        """Seconds until its agent takes notice of anything."""
        self.slowness = 1.0
        """How many times as long as others it takes to upload its part of a save."""
        self.message = "x"
        """Of its failures."""
        self.can_rest = True
        """Whether its worker can, in a world where workers do."""
        self.frozen = False
        """The machine does nothing, and all its connections stay."""
        self.hangs = False
        """Its workers never end by themselves."""
        self.finalizes = 0.0
        """Seconds from the report of a failure to the end of the worker that has failed."""
        self.exit_code: int | None = None
        self.session, self.processes = VirtualSession(self), VirtualProcesses(self)
        executor = _Executor(self, self._config())
        self.gpu_fault: GpuFault | None = None
        """What a look at its GPU finds."""
        self._core = AgentCore(
            executor, clock=lambda: self.now, new_id=world.new_id, checks=world.gpus
        )
        self._inbox: list[LocalEvent | StoreChanged] = []
        self._stirred = False

    def _config(self) -> AgentConfig:
        nowhere = Path("/nonexistent")
        return AgentConfig(
            run=self.world.keys.run,
            endpoints=(),
            node=self.name,
            address="10.0.0.1",
            zone=self.zone,
            settings=self.world.settings,
            command=(),
            workdir=nowhere,
            state=nowhere,
            shm=nowhere,
            storage="",
            spot=self.spot,
            node_rank=self.rank,
        )

    @property
    def now(self) -> float:
        """As this node's own clock tells it."""
        return self.world.now + self._clock

    @property
    def lease(self) -> int:
        return self.session.lease

    @property
    def local(self) -> NodeState:
        return self._core.local

    @property
    def seen(self) -> RunState:
        return self._core.seen

    # -- the cloud's side -----------------------------------------------------------------------

    def start(self) -> None:
        self._watches = Watches(self.client, self.world.keys, self._delivered)
        self.stir()

    def kill(self) -> None:
        """The machine vanishes: nothing of it says goodbye."""
        self.alive = False
        self.processes.close()
        self._watches.close()
        self.processes.vanish()
        for training in self.world.trainings.values():
            training.leave(self.name)
        self.world.nodes.pop(self.name, None)

    def freeze(self, seconds: float) -> None:
        """The whole machine does nothing for a while."""
        self.frozen = True
        for rank in self.processes.ranks:
            rank.freeze()
        self.world.after(seconds, self._thaw)

    def _thaw(self) -> None:
        self.frozen = False
        for rank in self.processes.ranks:
            rank.thaw()
        self.stir()

    def notice(self, seconds: float) -> None:
        now = self.now
        self.post(
            Noticed(
                Notice(
                    InterruptionKind.SPOT_INTERRUPTION, self.name, "imds", now, now, now + seconds
                )
            )
        )
        self.world.after(seconds, self.kill)

    def rebalance(self) -> None:
        """AWS recommends to replace it."""
        self.post(
            Noticed(Notice(InterruptionKind.REBALANCE, self.name, "imds", self.now, self.now))
        )

    def fall_ill(self, fault: GpuFault) -> None:
        """The kernel tells that its GPU is sick."""
        self.gpu_fault = fault
        self.post(XidSeen(fault, "sick"))

    def leave(self) -> None:
        """Asked to end, as by SIGTERM."""
        self.post(Signalled(15))

    def worker_exits(self, round_: str, code: int) -> None:
        """A worker of this node ends by itself."""
        if self.processes.ranks:
            for rank in self.processes.ranks[:1]:
                rank.exits(code)
            return
        training = self.world.trainings.get(round_)
        if training is not None and code != 0:
            training.leave(self.name)
        self.ends(f"{round_}/0", code)

    def ends(self, worker: str, code: int, rank: Rank | None = None) -> None:
        """Tells the agent of the end of a worker."""
        if code > 0 and self.finalizes:
            self.post(WorkerFailing(worker, code))
            self.world.after(self.finalizes, lambda: self._finalized(rank, worker, code))
        else:
            self.post(Exited(worker, code))

    def _finalized(self, rank: Rank | None, worker: str, code: int) -> None:
        if rank is None or not rank.killed:
            self.post(Exited(worker, code))

    def seal(self, round_: Round, step: int, *, due: bool, urgent: bool, waiting: bool) -> None:
        if self.processes.seal(round_, step, due=due, urgent=urgent):
            self.post(Sealed(step, (), waiting))

    # -- the agent's loop ------------------------------------------------------------------------

    def _delivered(self, event: StoreChanged) -> None:
        self.world.delivered += sum(isinstance(item, Change) for item in event.items)
        self.post(event)

    def post(self, event: LocalEvent | StoreChanged) -> None:
        self._inbox.append(event)
        self.stir()

    def stir(self) -> None:
        if not self._stirred:
            self._stirred = True
            self.world.after(self.lag, self._turn)

    def _turn(self) -> None:
        self._stirred = False
        if not self.alive or self.frozen or self.exit_code is not None:
            return
        inbox, self._inbox = self._inbox, []
        for item in inbox:
            self._core.fold(item)
        for _ in range(100):
            decision, exit_ = self._core.turn(self._watches)
            if exit_ is not None:
                self._exit(exit_.code)
                return
            if not decision.actions:
                break
        else:
            raise AssertionError(f"{self.name} never comes to rest: {decision.actions}")
        if decision.wake_at < float("inf"):
            self.world.after(max(decision.wake_at - self.now, 0.01), self._turn)

    def _exit(self, code: int) -> None:
        self.exit_code = code
        self.processes.vanish()
        if self.world.nodes.get(self.name) is self and not self.world.done:
            del self.world.nodes[self.name]
        self.processes.close()
        self._watches.close()
        with contextlib.suppress(Unavailable):
            self.client.revoke(self.lease)
