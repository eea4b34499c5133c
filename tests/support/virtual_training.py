"""Simulates the workers of one round, in virtual time."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spotelastic_checkpoints.types import Commit, Schedule

from spotelastic.agent.state.events import (
    CommitSeen,
    EpochSuperseded,
    LeftCheckpointer,
    WorkerAttached,
)
from spotelastic.model.round import Round

if TYPE_CHECKING:
    from support.virtual import World
    from support.virtual_node import SimNode

STEP = 0.1
RESTORE = 0.3
NETWORK = 0.002


@dataclass
class Training:
    """The workers of one round: they step only while all of its nodes run theirs."""

    world: "World"
    round: Round
    here: set[str] = field(default_factory=set)
    step: int = 0
    target: dict[str, int] = field(default_factory=dict)
    running: bool = False
    stepped: bool = False
    broken: bool = False
    first_at: float = 0.0
    last_at: float = 0.0

    schedules: dict[str, Schedule] = field(default_factory=dict)
    """By node, where others hold than at the beginning."""

    def __post_init__(self) -> None:
        self.step = self.round.resume.step
        self.first = self.round.schedule

    def join(self, node: "SimNode") -> None:
        self.here.add(node.name)
        if not self.world.plain:
            node.post(WorkerAttached())
        if self.here == {m.node for m in self.round.members} and not self.broken:
            self.world.after(RESTORE, self._run)

    @property
    def schedule(self) -> Schedule:
        """All ranks have one, or they would save at different steps."""
        held = {self.schedules.get(name, self.first) for name in self.here}
        assert len(held) == 1, f"at step {self.step}: {held}"
        return held.pop()

    def _run(self) -> None:
        self.running = not self.broken
        if self.world.sent_back is not None and not self.stepped:
            self.step = self.world.sent_back
        self.advance()

    @property
    def published(self) -> int:
        """What the pages say: nothing, until the workers have restored."""
        return self.step if self.running or self.stepped else 0

    def leave(self, name: str) -> None:
        """Workers of one node are gone: the others' collective fails."""
        if name not in self.here:
            return
        self.here.discard(name)
        self.running, self.broken = False, True
        for other in sorted(self.here):
            self.world.after(NETWORK, lambda other=other: self._fail(other))

    def _fail(self, name: str) -> None:
        node = self.world.nodes.get(name)
        if node is not None and name in self.here:
            node.worker_exits(self.round.incarnation, 1)

    def advance(self) -> None:
        if not self.running:
            return
        if self.step > 0 and self.step in self.target.values():
            # Some wait at the agreed step.
            self.world.after(self.world.step_time / 10, self.advance)
            if all(self.target.get(name) == self.step for name in self.here):
                self.seal(waiting=True)
            return
        self.step += 1
        self.stepped = True
        self.first_at = self.first_at or self.world.now
        self.last_at = self.world.now
        if self.step >= self.world.steps:
            self.finish()
            return
        if falls_on(self.step, self.schedule.snapshot_every) and not self.world.plain:
            self.seal(waiting=False)
        self.world.after(self.world.step_time, self.advance)

    def seal(self, waiting: bool) -> None:
        for name in sorted(self.here):
            self.world.nodes[name].sealed(self.round, self.step, waiting)
        if waiting or falls_on(self.step, self.schedule.checkpoint_every):
            self._upload(self.step)

    def _upload(self, step: int) -> None:
        epoch = self.round.epoch
        parts = [self.world.nodes[name] for name in self.here]
        if not epoch:
            return

        def committed() -> None:
            if not all(node.alive for node in parts):
                return
            if epoch == self.world.epoch:
                self.world.commit = commit = Commit(epoch, step)
                for name in sorted(self.here):
                    node = self.world.nodes[name]
                    node.post(CommitSeen(commit, node.now))
                return
            for name in sorted(self.here):  # a later claim has fenced it
                self.world.nodes[name].post(EpochSuperseded(epoch))

        self.world.after(self.world.upload, committed)

    def finish(self) -> None:
        self.running = False
        self.world.commit = Commit(self.round.epoch, self.step)
        for name in sorted(self.here):
            node = self.world.nodes[name]
            if node.hangs:
                continue
            node.post(LeftCheckpointer())
            node.worker_exits(self.round.incarnation, 0)


def falls_on(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
