"""Simulates workers that can rest, in virtual time: each has a state and a standing of its own.

In place of `virtual_training.Training`, whose workers step as one. A step has words: computing,
reducing (until all ranks have given their gradients), voting, stepping. Whoever vanishes, or leaves
its group, has the collectives of its peers fail a moment later; who has passed one already goes on.

Checked in every run (an `AssertionError` otherwise): ranks of one round are bit-equal whenever they
make a step; no step is skipped, or made twice, by a state; who keeps its state can reach the step
that the round goes on from, and is not dirty; a node has one worker at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spotelastic_checkpoints.messages import Attached, WorkerLeft
from spotelastic_checkpoints.types import Commit, Resume, Schedule
from support.simulation.virtual_daemon import LOOK
from support.simulation.virtual_training import COMMIT_WITHIN, NETWORK, RESTORE, falls_on

from spotelastic.agent.state import events
from spotelastic.model.in_place import Change, Standing
from spotelastic.model.round import Round

if TYPE_CHECKING:
    from support.simulation.virtual_cluster import World
    from support.simulation.virtual_node import SimNode

FORK = 0.05
PREPARE = 1.0
OPTIMIZER = 0.002
"""Seconds between the vote and the end of the step."""
ENTER = 0.005
LEAVE = 0.03
MEETING = 60.0
"""Seconds after which a collective fails whose other ranks are frozen, whatever became of them."""
COLLECTIVES = ("meeting", "reducing", "voting", "leaving")
BLOCKED = (*COLLECTIVES, "waiting", "entering", "restoring")
"""Where a worker that was asked to rest does so at once."""
WORDS = ("preparing", "starting", "computing", "stepping", *BLOCKED, "resting")

Key = tuple[str, int]
"""Of a rank: its node, and its number there."""
Gradients = tuple[str, int]
"""Of which round, and of which step: two ranks have the same ones if both are equal."""


@dataclass(frozen=True)
class State:
    """What a rank has trained, down to the bit."""

    step: int = 0
    digest: int = 0

    def after(self, gradients: Gradients) -> "State":
        assert gradients[1] == self.step + 1, f"step {self.step} is followed by {gradients}"
        return State(self.step + 1, hash((self.digest, gradients)))


class Group:
    """The workers of one round."""

    def __init__(self, world: "World", round_: Round) -> None:
        self.world, self.round = world, round_
        self.members = {
            (member.node, local) for member in round_.members for local in range(member.workers)
        }
        self.here: dict[Key, Rank] = {}
        self.step = round_.resume.step
        """The newest one that a rank has finished."""
        self.target: dict[str, int] = {}
        self.schedules: dict[str, Schedule] = {}
        self.stepped = self.closed = False
        self.first_at = self.last_at = 0.0
        self._entered: dict[tuple[str, int], set[Key]] = {}
        saved = world.saves.of(round_.resume)
        self._states: dict[int, State] = {} if saved is None else {saved.step: saved}
        self._sealed: dict[int, set[Key]] = {}
        self._committing = 0
        """The first step of this round that is to be committed."""

    @property
    def _names(self) -> list[str]:
        return sorted({name for name, _ in self.members})

    @property
    def running(self) -> bool:
        return not self.closed and any(rank.begun for rank in self.here.values())

    def schedule_of(self, name: str) -> Schedule:
        return self.schedules.get(name, self.round.schedule)

    def join(self, rank: "Rank") -> None:
        assert rank.key in self.members and rank.key not in self.here
        self.here[rank.key] = rank

    def goes_on(self, state: State) -> None:
        """A rank is about to compute the step after this state."""
        known = self._states.setdefault(state.step, state)
        assert known == state, f"{self.round.number}: ranks differ: {known}, {state}"
        first = min(self._states)
        assert first == self.round.resume.step, f"{first} is not {self.round.resume}"

    def enter(self, rank: "Rank", collective: str) -> None:
        """A rank waits for all others of the round in a collective."""
        rank.comes_to(collective)
        if self.closed:
            rank.soon(self._moment(), rank.breaks)
            return
        rank.soon(MEETING, rank.breaks)
        step = rank.state.step if collective != "meeting" else 0
        entered = self._entered.setdefault((collective, step), set())
        entered.add(rank.key)
        if entered != self.members:
            return
        schedules = {self.schedule_of(name) for name, _ in self.members}
        assert len(schedules) == 1, f"at step {rank.state.step}: {schedules}"
        for key in sorted(self.members):
            other = self.here[key]
            assert other.where == collective
            other.soon(self.world.random.uniform(0.0005, 0.004), other.passes)

    def _moment(self) -> float:
        return NETWORK * self.world.random.uniform(0.5, 1.5)

    def leave(self, name: str) -> None:
        """All ranks of a node are gone."""
        for key in [key for key in self.here if key[0] == name]:
            self.part(self.here[key])

    def part(self, rank: "Rank") -> None:
        """A rank has gone, or has closed its side of the group."""
        if self.here.pop(rank.key, None) is None:
            return
        self.closed = True
        for other in [*self.here.values()]:
            if other.where in COLLECTIVES:
                other.soon(self._moment(), other.breaks)

    def made(self, rank: "Rank") -> None:
        """A rank has finished a step."""
        step, name = rank.state.step, rank.node.name
        known = self._states.setdefault(step, rank.state)
        assert known == rank.state, f"{known} and {rank.state} at one step"
        if step > self.step:
            self.world.made(step)
        self.step, self.stepped = max(self.step, step), True
        self.first_at, self.last_at = self.first_at or self.world.now, self.world.now
        if falls_on(step, self.schedule_of(name).snapshot_every) and step < self.world.steps:
            self.seal(rank, waiting=False)

    def savers(self, step: int) -> set[Key]:
        """Who has saved a step."""
        return self._sealed.setdefault(step, set())

    def seal(self, rank: "Rank", *, waiting: bool) -> None:
        step, incarnation = rank.state.step, self.round.incarnation
        known = self.world.saves.sealed.setdefault((incarnation, step), rank.state)
        assert known == rank.state
        sealed = self._sealed.setdefault(step, set())
        sealed.add(rank.key)
        every = self.schedule_of(rank.node.name).checkpoint_every
        last = step >= self.world.steps
        first = self.round.resume.kind == "fresh" and self._committing in (0, step) and every > 0
        due = waiting or last or first or falls_on(step, every)
        self._committing = step if due and not self._committing else self._committing
        if all(key in sealed for key in self.members if key[0] == rank.node.name):
            urgent = waiting or last
            rank.node.seal(self.round, step, due=due, urgent=urgent, waiting=waiting)


class Rank:
    """A worker: one process, with its state, which may be in several rounds one after another."""

    def __init__(
        self, node: "SimNode", local: int, group: Group | None = None, beside: str = ""
    ) -> None:
        """Without a group it prepares beside a round."""
        self.node, self.world, self.local = node, node.world, local
        self.key: Key = (node.name, local)
        self.group = group
        """None while it prepares, or rests."""
        self.round = group.round.incarnation if group is not None else ""
        """The last one that it was told of."""
        self.state = State()
        self.change: Change = "dirty"  # until it has restored
        self.gradients: Gradients | None = None
        self.where = "starting"
        self.begun = False
        """Whether it has begun to train in its round."""
        self.first_at = self.last_at = 0.0
        self.alive, self.frozen, self.asked, self.killed = True, False, False, False
        self.name = f"{self.round or f'beside-{beside}'}/{local}"
        self._lacks = True
        """Whether it restores in its round."""
        self._held: list[Callable[[], None]] = []
        self._at = 0
        if group is None:
            self.where = "preparing"
            self.soon(PREPARE * self.world.random.uniform(0.5, 1.5), self._is_prepared)
        else:
            self.soon(self.world.starting, self._starts)

    # -- its time ---------------------------------------------------------------------------------

    def soon(self, seconds: float, effect: Callable[[], None]) -> None:
        """Does something later, unless it has come to another point until then."""
        at = self._at

        def due() -> None:
            if not self.alive or at != self._at:
                return
            if self.frozen:
                self._held.append(due)
            else:
                effect()

        self.world.after(seconds, due)

    def comes_to(self, where: str) -> None:
        self.where = where
        self._at += 1
        self.world.comes_to(self)

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        self.frozen = False
        held, self._held = self._held, []
        for due in held:
            due()
        if self.alive and self.asked:
            self.is_asked()

    def vanish(self) -> None:
        """The process ends; its connections close."""
        self.alive = False
        self._at += 1
        if self.group is not None:
            self.group.part(self)
            self.group = None

    def exits(self, code: int) -> None:
        """It ends by itself."""
        if self.alive:
            self.vanish()
            self.node.ends(self.name, code, self)

    # -- a round begins ---------------------------------------------------------------------------

    def _starts(self) -> None:
        group = self._group()
        group.join(self)
        if not self.world.plain:
            self.node.post(Attached(0))
        if group.round.in_place:
            self._listens()
        group.enter(self, "meeting")

    def _is_prepared(self) -> None:
        if not self.node.can_rest:
            self.exits(1)
            return
        self._listens()
        self.comes_to("resting")
        self.node.post(events.WorkerRests("", self.local, Standing(0)))

    def _listens(self) -> None:
        if self.node.can_rest:
            self.node.post(events.WorkerListens(self.round, self.local))

    def is_told(self, group: Group, *, restores: bool) -> None:
        """Its agent tells a worker that rests of the round to go on in."""
        assert self.where == "resting" and self.group is None
        self.round, self.asked, self.group = group.round.incarnation, False, group
        self.first_at = self.last_at = 0.0
        self.begun, self._lacks = False, restores
        self.comes_to("entering")
        self.answers()
        self.soon(ENTER * self.world.random.uniform(0.2, 1.8), self._enters)

    def _enters(self) -> None:
        group = self._group()
        resume = group.round.resume
        if self._lacks:
            assert resume.kind != "fresh", "a process cannot begin anew"
            self.change = "dirty"
        else:
            assert self.change != "dirty", "a state that is not whole was kept"
            if resume.step == self.state.step + 1:
                assert self.change == "pending" and self.gradients is not None
                self.state = self.state.after(self.gradients)
            assert resume.step == self.state.step, f"{self.state} cannot reach {resume}"
            self.change, self.gradients = "clean", None
        group.join(self)
        if not self.world.plain:
            self.node.post(Attached(0))
        group.enter(self, "meeting")

    def _restores(self) -> None:
        resume = self._group().round.resume
        saved = self.world.saves.of(resume)
        if saved is None or not self.world.saves.are_held(resume):
            self.exits(1)
            return
        self.state, self.change, self.gradients = saved, "clean", None
        self._lacks = False
        self._begins()

    def _begins(self) -> None:
        if not self.begun and not self._group().round.in_place:
            self._listens()
        self.begun = True
        self._goes_on()

    # -- a step -----------------------------------------------------------------------------------

    def passes(self) -> None:
        """The collective in which it waits has succeeded."""
        group = self._group()
        match self.where:
            case "meeting":
                if self._lacks:
                    self.comes_to("restoring")
                    self.soon(RESTORE * self.world.random.uniform(0.5, 1.0), self._restores)
                else:
                    self._begins()
            case "reducing":
                self.change, self.gradients = "pending", (self.round, self.state.step + 1)
                group.enter(self, "voting")
            case "voting":
                self.change = "dirty"
                self.comes_to("stepping")
                self.soon(OPTIMIZER * self.world.random.uniform(0.1, 2.0), self._steps)
            case "leaving":
                self.comes_to("finishing")
                group.seal(self, waiting=False)
                self._awaits_commit(self.world.now + COMMIT_WITHIN)

    def _awaits_commit(self, until: float) -> None:
        """Ends when the last step is committed, or can no longer be."""
        if self.node.hangs:
            return
        committed = self.node.processes.daemon.is_committed()
        if committed is None and self.world.now < until:
            self.soon(LOOK, lambda: self._awaits_commit(until))
            return
        self.node.post(WorkerLeft(0, 0, clean=True))
        self.soon(LEAVE, lambda: self.exits(0 if committed else 1))

    def _goes_on(self) -> None:
        """At the end of a step, or before the first one of a round."""
        group, step = self._group(), self.state.step
        group.goes_on(self.state)
        if self.asked:
            self._rests()
        elif step >= self.world.steps:
            group.enter(self, "leaving")
        elif step > 0 and group.target.get(self.node.name) == step:
            self.comes_to("waiting")
            group.seal(self, waiting=True)
        else:
            self._computes()

    def _computes(self) -> None:
        group = self._group()
        self.comes_to("computing")
        seconds = self.world.step_time * self.world.random.uniform(0.6, 0.9)
        self.soon(seconds, lambda: group.enter(self, "reducing"))

    def _steps(self) -> None:
        assert self.gradients is not None and self.change == "dirty"
        self.state, self.change = self.state.after(self.gradients), "clean"
        self.gradients = None
        self.first_at, self.last_at = self.first_at or self.world.now, self.world.now
        self._group().made(self)
        self._goes_on()

    def looks(self) -> None:
        """Its target has changed."""
        group = self.group
        if self.where != "waiting" or group is None or self.asked:
            return
        if group.target.get(self.node.name) != self.state.step:
            self.soon(NETWORK, self._computes)

    def answers(self) -> None:
        """Its agent asks whether it runs."""
        if self.frozen:
            self._held.append(self.answers)
        elif self.alive:
            told = events.WorkerPresent(self.round, self.local)
            self.world.after(NETWORK, lambda: self.node.post(told))

    # -- rest -------------------------------------------------------------------------------------

    def is_asked(self) -> None:
        """Its agent asks it to rest."""
        self.asked = True
        if not self.frozen and self.alive and self.where in BLOCKED:
            self.soon(NETWORK * self.world.random.uniform(0.1, 1.0), self._rests)

    def breaks(self) -> None:
        """The collective in which it waits has failed."""
        self._rests("" if self.asked else "RuntimeError: a peer has closed its connection")

    def _rests(self, broken: str = "") -> None:
        if not self.node.can_rest:
            self.exits(1)
            return
        group = self._group()
        self._saves_first(group)
        self.comes_to("resting")
        group.part(self)
        self.group = None
        change: Change = "dirty" if self.world.sharded else self.change
        standing = Standing(self.state.step, change)
        told = (self.round, self.local, standing, broken, broken and "a trace")
        self.node.post(events.WorkerRests(*told))

    def _saves_first(self, group: Group) -> None:
        """Where a node more would be too few for a round, it saves the step that it has."""
        world = self.world
        tight = len(group.round.members) <= world.settings.min_nodes and not world.settings.gang
        if not tight or world.sharded or self.change == "dirty":
            return
        self.change, self.gradients = "clean", None
        if self.begun and self.state.step and self.key not in group.savers(self.state.step):
            group.seal(self, waiting=False)

    def _group(self) -> Group:
        assert self.group is not None
        return self.group


class Saves:
    """What was saved of states, and whether it can be restored."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.sealed: dict[tuple[str, int], State] = {}
        self.found: dict[Commit, State] = {}
        """Commits that were there before."""

    def of(self, resume: Resume) -> State | None:
        """The state that a round resumes from; None if that is only what the workers have."""
        if resume.kind == "fresh":
            return State()
        if resume.kind == "store" and Commit(resume.epoch, resume.step) in self.found:
            return self.found[Commit(resume.epoch, resume.step)]
        if resume.kind == "store":
            rounds = {r.incarnation for r in self._world.rounds if r.epoch == resume.epoch}
            found = [self.sealed.get((each, resume.step)) for each in sorted(rounds)]
            return next(state for state in found if state is not None)
        return self.sealed[resume.incarnation, resume.step] if resume.holders else None

    def are_held(self, resume: Resume) -> bool:
        """Whether the nodes that it is to be restored from are still there."""
        there = [holder.node in self._world.nodes for holder in resume.holders]
        return not there or (all(there) if self._world.sharded else any(there))
