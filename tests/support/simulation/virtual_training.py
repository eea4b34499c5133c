"""Simulates the workers of one round, in virtual time."""

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from spotelastic_checkpoints.messages import Attached, WorkerLeft
from spotelastic_checkpoints.types import Schedule
from support.simulation.virtual_daemon import LOOK

from spotelastic.model.round import Round

if TYPE_CHECKING:
    from support.simulation.virtual_cluster import World
    from support.simulation.virtual_node import SimNode

STEP = 0.1
RESTORE = 0.3
NETWORK = 0.002
COMMIT_WITHIN = 120.0
"""Seconds that workers wait at their end for the commit of their last step."""


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
    finishing: bool = False
    committing: bool = False
    """Whether any save of this round is to be committed."""
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
            node.post(Attached(0))
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
        if self.running and self.step >= self.world.steps:
            self.finish()  # its last step was not committed before
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
        if self.finishing:
            return  # they are in no collective any more
        for other in sorted(self.here):
            self.world.after(NETWORK, partial(self._fail, other))

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
        self.world.made(self.step)
        if self.step >= self.world.steps:
            self.finish()
            return
        if falls_on(self.step, self.schedule.snapshot_every) and not self.world.plain:
            self.seal()
        self.world.after(self.world.step_time, self.advance)

    def seal(self, *, waiting: bool = False, last: bool = False) -> None:
        """Saves this step. The first save of a fresh run is committed, whenever it is."""
        every = self.schedule.checkpoint_every
        first = self.round.resume.kind == "fresh" and not self.committing and every > 0
        due = waiting or last or first or falls_on(self.step, every)
        self.committing = self.committing or due
        for name in sorted(self.here):
            node = self.world.nodes[name]
            node.seal(self.round, self.step, due=due, urgent=waiting or last, waiting=waiting)

    def finish(self) -> None:
        """The workers end once their last step is committed."""
        self.running, self.finishing = False, True
        if not self.world.plain:
            self.seal(last=True)
        for name in sorted(self.here):
            self._finish(self.world.nodes[name], self.world.now + COMMIT_WITHIN)

    def _finish(self, node: "SimNode", until: float) -> None:
        if not node.alive or node.name not in self.here or node.hangs:
            return
        committed = self.world.plain or node.processes.daemon.is_committed()
        if committed is None and self.world.now < until:
            self.world.after(LOOK, lambda: self._finish(node, until))
            return
        if not self.world.plain:
            node.post(WorkerLeft(0, 0, clean=True))
        self.world.after(self.world.ending, lambda: self._exit(node, 0 if committed else 1))

    def _exit(self, node: "SimNode", code: int) -> None:
        if node.alive and node.name in self.here:
            node.worker_exits(self.round.incarnation, code)


def falls_on(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
