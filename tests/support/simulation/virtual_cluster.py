"""Simulates whole clusters in virtual time: real decisions of agents and holder on a store in
memory.

Workers, daemons and clouds are simulated. Nothing here sleeps or starts a thread. Workers step as
one, or each has its own state and can rest (`in_place=True`).

Simulated: a zygote that takes `WARM` seconds; workers that restore, step in lockstep once all of a
round run, seal at scheduled and agreed steps, and fail when one of them vanishes; daemons that hold
what is sealed and upload it in a while; agents that hardly get to run (`SimNode.lag`). Real: the
agent's core with its executor (`agent.core`), `rendezvous.*`, `support.store.memory_store`, and the
commit protocol, on an object store in memory.
"""

import heapq
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from spotelastic_checkpoints.types import Commit
from support.simulation.virtual_bucket import VirtualBucket
from support.simulation.virtual_node import SimNode
from support.simulation.virtual_ranks import FORK, Group, Rank, Saves
from support.simulation.virtual_training import STEP, Training
from support.store.memory_store import MemoryStore
from support.store.run_history import Recorder, violations

from spotelastic.model.job import Job, Settings
from spotelastic.model.progress import Point
from spotelastic.model.round import Round
from spotelastic.rendezvous.view import RunState, fold
from spotelastic.store.codec import decode
from spotelastic.store.keys import Keys
from spotelastic.store.port import WatchItem


class World:
    """The clock, what is due, the store, the object store, and everything that ever happened."""

    def __init__(
        self,
        settings: Settings,
        steps: int,
        seed: int = 0,
        *,
        plain: bool = False,
        sharded: bool = False,
        gpus: bool = False,
        in_place: bool = False,
    ) -> None:
        self.now = 1e6
        self.settings = settings
        self.steps = steps
        self.random = random.Random(seed)
        self.keys = Keys("sim")
        self.store = MemoryStore(lambda: self.now)
        self.bucket = VirtualBucket()
        self.sent_back: int | None = None
        """The committed step that the scripts restore instead of the newest one."""
        self.nodes: dict[str, SimNode] = {}
        self.ranks: dict[str, int | None] = {}
        self.on_demand: set[str] = set()
        self.trainings: dict[str, Training | Group] = {}
        self.rounds: list[Round] = []
        self.hurried: dict[str, float] = {}
        """By name of a node: when its daemon knows that it will be gone."""
        self.delivered = 0
        """Changes that the watches of all nodes brought, together."""
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._ids = itertools.count()
        self.step_time = STEP
        self.starting = FORK
        """Seconds until a new worker that can rest comes to its Checkpointer."""
        self.ending = 0.0
        """Seconds that a script goes on for after its Checkpointer."""
        self.stall, self.upload = 0.001, 1.5
        """Seconds that a save into memory takes, and until it is committed."""
        self.own: dict[str, float] = {}
        """Seconds of a step in which these nodes' workers work; others do for half of it."""
        self.plain, self.sharded, self.gpus = plain, sharded, gpus
        """The script has no Checkpointer; every node's slots are needed for a whole state; nodes
        have GPUs, which they look at."""
        self.in_place = in_place
        """Workers have states of their own (`virtual_ranks`), and can rest."""
        self.refuses = bool(seed % 2)
        """Whether machines refuse connections to nodes that are gone, in place of no answer."""
        self.saves = Saves(self)
        self.at_word: Callable[[Rank], None] | None = None
        """Told whenever a worker that can rest comes to another point."""
        self.points: list[Point] = []
        """The steps that were made, in order."""
        self.history = Recorder()
        self.said: list[tuple[str, str]] = []
        """What nodes told people, with the node's name."""
        self.store.watch(self.keys.root, self.history)
        self.store.watch(self.keys.all, self._record)

    def comes_to(self, rank: Rank) -> None:
        if self.at_word is not None:
            self.at_word(rank)

    def made(self, step: int) -> None:
        self.points.append(Point(step, None, self.now))

    def new_id(self) -> str:
        return f"id{next(self._ids)}"

    def after(self, seconds: float, effect: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._count), effect))

    def run(self, until: Callable[[], bool], limit: float) -> None:
        """Let time pass until the condition holds; fails when `limit` seconds were not enough."""
        end = self.now + limit
        while not until():
            assert self._due, "nothing will ever happen again"
            self.now, _, effect = heapq.heappop(self._due)
            assert self.now <= end, f"not within {limit:g} s: {self.story()}"
            effect()

    def passes(self, seconds: float) -> None:
        """Let so much time pass, or less if the job is over before."""
        end = self.now + seconds
        self.after(seconds, lambda: None)
        self.run(lambda: self.now >= end or self.done, seconds + 1)

    def begins(self, rounds: int, limit: float) -> None:
        """Let time pass until so many rounds have started; fails as `run` does."""
        self.run(lambda: len(self.started) == rounds, limit)

    def add(
        self,
        name: str,
        zone: str = "a",
        rank: int | None = None,
        clock: float = 0.0,
        version: Callable[[MemoryStore], Any] = lambda client: client,
        *,
        spot: bool = True,
    ) -> SimNode:
        """`clock`: seconds that its clock is ahead of the world's; `version`: its client of the
        store, as a node of another version has it."""
        node = SimNode(self, name, zone, rank, clock, version, spot=spot)
        if not spot:
            self.on_demand.add(name)
        self.ranks[name] = rank
        self.nodes[name] = node
        node.start()
        return node

    @property
    def commit(self) -> Commit | None:
        """The newest one."""
        return self.bucket.latest

    @property
    def round(self) -> Round | None:
        return self.rounds[-1] if self.rounds else None

    @property
    def started(self) -> list[Round]:
        """Each started round once, as it is now."""
        rounds = {r.incarnation: r for r in self.rounds if r.phase == "started"}
        return list(rounds.values())

    @property
    def starts(self) -> list[Round]:
        """Each started round once, as it started."""
        rounds = {r.incarnation: r for r in reversed(self.rounds) if r.phase == "started"}
        return list(reversed(rounds.values()))

    @property
    def holder(self) -> str:
        """The node that decides for all; empty while there is none."""
        held = self.store.get(self.keys.holder)
        return held.data.decode() if held is not None else ""

    @property
    def done(self) -> bool:
        return self.store.get(self.keys.job) is not None

    def step(self) -> int:
        round_ = self.round
        training = self.trainings.get(round_.incarnation) if round_ else None
        return training.step if training is not None and training.running else 0

    def trains(self, *names: str) -> bool:
        """A started round of exactly these nodes executes steps."""
        round_ = self.round
        if round_ is None or round_.phase != "started":
            return False
        training = self.trainings.get(round_.incarnation)
        members = {m.node for m in round_.members}
        return training is not None and training.stepped and members == set(names)

    def trains_now(self) -> bool:
        """Whether the newest round has started, and made a step."""
        round_ = self.round
        return round_ is not None and self.trains(*(m.node for m in round_.members))

    def lost_steps(self, before: Round, after: Round) -> int:
        """That the one had made, and the other makes again."""
        return self.trainings[before.incarnation].step - after.resume.step

    def story(self) -> str:
        return "; ".join(f"{r.number} {r.phase} {r.reason} @{r.resume.step}" for r in self.rounds)

    @property
    def job(self) -> Job:
        value = self.store.get(self.keys.job)
        assert value is not None
        return decode(value.data, Job)

    def violations(self) -> list[str]:
        told = violations(self.history.entries, self.keys.run, sharded=self.sharded)
        told += self.bucket.auditor.broken
        for before, after in itertools.pairwise(self.starts):
            if after.parent == before.incarnation:
                told += self._lost_saves(before, after)
                told += self._foreign_saves(before, after)
        return told

    def _lost_saves(self, before: Round, after: Round) -> Iterator[str]:
        """No save of its history that was complete when the round claimed the storage is lost,
        recorded or not. A node that was not in the round before knows no history: it looks at the
        last epoch in which anything was saved.
        """
        claim = self.bucket.claims.get(after.epoch)
        if claim is None:
            return
        epochs = {r.epoch: r.incarnation for r in self.rounds if r.phase == "started"}
        bounds = {branch.incarnation: branch.step for branch in before.lineage}
        bounds[before.incarnation] = self.steps
        knows = before.member(after.members[0].node) is not None
        for save in claim.complete:
            counts = knows or save.epoch == claim.last_epoch
            bound = bounds.get(epochs.get(save.epoch, ""), -1)
            if counts and after.resume.step < save.step <= bound:
                yield f"round {after.number}: resumes at {after.resume.step}, but {save} was there"

    def _foreign_saves(self, before: Round, after: Round) -> Iterator[str]:
        """A round does not resume later than the one before it has come, but for one reason: a save
        of an earlier round was completed late, and nothing was saved since, or an earlier round has
        gone on from it. Workers that keep their state may have the gradients of one step more.
        """
        resume, reached = after.resume, self.trainings[before.incarnation].step
        save = Commit(resume.epoch, resume.step)
        found = [c for c in self.bucket.claims.values() if save in c.complete]
        late = resume.kind == "store" and (
            any(c.last_epoch == save.epoch for c in found) or self._is_history(save, after)
        )
        reached += after.in_place == "keep"
        if resume.step > reached and not late:
            yield f"round {after.number}: resumes at {resume.step}, but {reached} was reached"

    def _is_history(self, save: Commit, after: Round) -> bool:
        """Whether a round before has gone on from this save, or a later step of the same round."""
        epochs = {r.epoch: r.incarnation for r in self.rounds if r.phase == "started"}
        ancestors = [
            branch
            for round_ in self.starts
            if round_.number < after.number
            for branch in round_.lineage
        ]
        incarnation = epochs.get(save.epoch)
        return any(b.incarnation == incarnation and save.step <= b.step for b in ancestors)

    def _record(self, items: Iterable[WatchItem]) -> None:
        seen = fold(RunState(), items, self.keys, self.now, "")
        if seen.round is not None:
            self.rounds.append(seen.round)
