"""A job's pods as the drill sees and interrupts them: nodes whose run is followed in its own etcd.

The pods on this machine have loopback addresses, so that this process reaches the members of etcd
that they run, by the addresses that the pods have now.
"""

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spotelastic_checkpoints.addresses import join, split
from support.emulated_kubernetes.cluster import RunningCluster

from spotelastic.clock import wall
from spotelastic.errors import Unavailable, UsageError
from spotelastic.local.base import processes
from spotelastic.model.progress import NodeStatus, Status
from spotelastic.model.round import Round, RoundRecord
from spotelastic.rendezvous.view import RunState, fold
from spotelastic.store.codec import decode
from spotelastic.store.etcd import EtcdStore
from spotelastic.store.etcd_server.process import find_leader
from spotelastic.store.keys import Keys
from spotelastic.store.port import Sink, WatchItem

if TYPE_CHECKING:
    from lightkube.resources.core_v1 import Pod

FindPods = Callable[[], Sequence["Pod"]]
"""Returns the job's pods that run."""


@dataclass(frozen=True, slots=True)
class RoundStory:
    """A round, and what of its steps was executed again after it."""

    round: Round
    repeated: int = 0
    """Steps of the round before it that this one executes again."""


@dataclass(slots=True)
class PodRunView:
    """What the members of etcd tell of a run. Watches fill it on threads of their own."""

    store: EtcdStore
    keys: Keys
    endpoints: Sequence[str]
    seen: RunState = field(default_factory=RunState)
    rounds: dict[int, Round] = field(default_factory=dict)
    """All rounds that have started, by number."""

    def follow(self) -> None:
        """Begin to watch."""
        for prefix in (self.keys.all, self.keys.nodes):
            self.store.watch(prefix, self._sink(prefix))

    def status(self) -> Status:
        """Return how the run stands, as far as a drill asks."""
        seen, round_ = self.seen, self.seen.round
        if round_ is None or round_.phase != "started":
            return Status(self.keys.run, "starting", wall())
        own = [each for each in seen.progress.values() if each.round == round_.number]
        state = "running" if own else "starting"
        if seen.job is not None and seen.job.state != "running":
            state = str(seen.job.state)
        # A pod that has taken another's place has an address of its own.
        _, port = split(self.endpoints[0])
        members = (join(each.address, port) for each in round_.members)
        leader = find_leader([*members, *self.endpoints])
        address = split(leader)[0] if leader else ""
        nodes = tuple(
            NodeStatus(each.node, "worker", "training", each.zone, each.address, round_.ranks(each))
            for each in round_.members
            if each.node not in seen.drains
        )
        leads = next((node.id for node in nodes if node.address == address), "")
        return Status(
            self.keys.run,
            state,
            wall(),
            round=round_.number,
            step=max((round_.resume.step, *(each.step for each in own))),
            step_time=max((each.step_time for each in own), default=0.0),
            world_size=round_.world_size,
            etcd_leader=leads,
            nodes=nodes,
        )

    def story(self) -> list[RoundStory]:
        """Return all rounds so far; what was repeated is known once the next one has begun."""
        told = []
        for number, round_ in sorted(self.rounds.items()):
            record = self._record(number - 1)
            last = round_.resume.step if record is None else record.last_step
            told.append(RoundStory(round_, max(0, last - round_.resume.step)))
        return told

    def _record(self, number: int) -> RoundRecord | None:
        try:
            found = self.store.get(self.keys.history(number)) if number else None
        except Unavailable:  # the pods with the etcd have ended
            return None
        return None if found is None else decode(found.data, RoundRecord)

    def _sink(self, prefix: str) -> Sink:
        def deliver(items: Sequence[WatchItem]) -> None:
            self.seen = fold(self.seen, items, self.keys, wall(), prefix)
            round_ = self.seen.round
            if round_ is not None and round_.phase == "started":
                self.rounds[round_.number] = round_

        return deliver


@dataclass(frozen=True, slots=True)
class PodFaults:
    """Interrupts pods by the names of their nodes, which begin with the pods' host names."""

    cluster: RunningCluster
    pods: FindPods

    def interrupt(self, node: str, seconds: float) -> None:
        """Take away the machine of a node, which is told so many seconds ahead."""
        self.cluster.cause("reclaim-node", node=self._machine(node), seconds=seconds)

    def kill(self, node: str) -> None:
        """Take away the machine of a node at once."""
        self.cluster.cause("lose-node", node=self._machine(node))

    def kill_process(self, node: str, role: str) -> None:
        """Kill a process of a node by the beginning of its name."""
        metadata = self._pod(node).metadata
        uid = str(metadata.uid) if metadata is not None else ""
        found = processes.marked(self.cluster.id, uid)
        victims = [each.pid for each in found if each.role.startswith(role)]
        if not victims:
            raise UsageError(f"{node} has no process {role}")
        os.kill(victims[0], signal.SIGKILL)

    def _machine(self, node: str) -> str:
        spec = self._pod(node).spec
        return str(spec.nodeName) if spec is not None else ""

    def _pod(self, node: str) -> "Pod":
        for pod in self.pods():
            if pod.spec is not None and node.startswith(f"{pod.spec.hostname}-"):
                return pod
        raise UsageError(f"no pod runs {node}")
