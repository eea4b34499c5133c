"""Takes a worker out of a round that is over, and into the next one, in the same process."""

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from spotelastic_checkpoints.types import Resume

from spotelastic.errors import SpotelasticError
from spotelastic.model.in_place import Enter, Standing
from spotelastic.training.data import sampler as samplers
from spotelastic.training.in_place import control, failures, loaders, models
from spotelastic.training.in_place.building import Builder
from spotelastic.training.in_place.control import Control
from spotelastic.training.in_place.groups import Groups
from spotelastic.training.in_place.memory import Memory
from spotelastic.training.in_place.voting import Votes
from spotelastic.training.restore.loops import Loops
from spotelastic.training.restore.own_values import OwnValues
from spotelastic.training.runtime.rehearsal_record import of_script
from spotelastic.training.runtime.session import Ranks
from spotelastic.training.state.state import State

SAVES = "SPOTELASTIC_SAVE_AT_REST"
"""Variable: the round has too few nodes without one of them. So a step is saved before a rest."""
TRACE = 20_000
"""Characters of a traceback that the agent is told."""


@dataclass(frozen=True)
class LoopParts:
    """What is needed of the Checkpointer whose steps are made."""

    state: State
    groups: Groups
    builder: Builder
    """Makes what of the state is made for each round."""
    last_step: Callable[[], int]
    """Returns the last finished step."""
    saved_step: Callable[[], int]
    """Returns the last step of this round that was saved."""
    ranks: Callable[[], Ranks]
    """Returns those of the present round."""
    count: Callable[[int, Any, float], None]
    """A step is finished, with this loss: publishes it, and saves it where a save is due."""
    waits_after: Callable[[int], bool]
    """Returns whether `count` of this step waits for others, as nodes are about to come or go."""
    count_quietly: Callable[[int, Any], None]
    """The same, but nobody is told, and nothing is saved: the round is over."""
    save_alone: Callable[[], None]
    """Saves the last step into this node's memory, without the other ranks, if that is possible."""
    leave: Callable[[], None]
    """Ends what belongs to the present round. May be called twice."""
    enter: Callable[[], None]
    """Connects with the daemon again, as a worker of the environment's round. All ranks call it."""
    restore: Callable[[Ranks], int]
    """Restores what the round resumes from, on these ranks, and returns its step."""
    resumed: Callable[[int], None]
    """Declares this worker present; training goes on from this step."""
    complain: Callable[[str], None]
    """Reports a problem to people."""
    own: OwnValues
    """What is saved besides the state: where the run rehearses is a part of it."""
    keep: Callable[[], Resume | None]
    """Keeps the state in memory, and returns where; None: it cannot be kept. All ranks call it."""
    go_back: Callable[[Resume], None]
    """Restores what was kept. All ranks call it."""
    tell: Callable[[str, int, str, str], None]
    """Tells people of a step: kind of the event, step, outcome in a word, and a line."""
    start_anew: Callable[[], None]
    """Goes back to what is stored, where no agent forms a round for that. All ranks call it."""
    loops: Loops
    """Knows what the script does between the loops of its steps."""
    save_held: Callable[[], None]
    """Makes the save that waited for what the script has done after a loop, if it is due."""
    voting: Callable[[], AbstractContextManager[None]] = nullcontext
    """Returns what a vote is made in: this rank waits for others there."""
    memory: Memory = field(default_factory=Memory)
    """What this process holds, by round."""


class Meeting:
    """A worker's connection to the agent, and the way from one round into the next."""

    def __init__(self, loop: LoopParts, connection: Control) -> None:
        self._loop = loop
        self._control = connection
        self._memory = loop.memory
        self._votes: Votes | None = None
        self.hindrance = ""
        """What the loop does that other ranks cannot go on with; empty if nothing is known."""
        loop.groups.rests = True

    @classmethod
    def of(cls, loop: LoopParts, environ: Mapping[str, str] = os.environ) -> "Meeting | None":
        """Return one where this worker can rest, and tell the agent so; None where it cannot.

        What stands in the way is told once, by the first rank.
        """
        path = environ.get(control.VARIABLE)
        if not path:
            return None
        ranks = loop.ranks()
        problem = (
            loop.builder.problem
            or loop.groups.problem(ranks.group)
            or models.problem(loop.state, loop.builder.names)
            or loaders.problem()
            or models.keeper_problem(loop.state)
        )
        if problem:
            _complain(loop, problem)
            return None
        round_, local_rank = environ["SPOTELASTIC_ROUND"], ranks.local_rank
        try:
            found = Control(path, round_, local_rank, loop.groups.wake)
        except OSError:
            return None  # the agent is gone, which ends this process
        return cls(loop, found)

    @classmethod
    def of_prepared(cls, loop: LoopParts, environ: Mapping[str, str]) -> "Meeting":
        """Return that of a worker that is in no round yet. Raises `OSError` without an agent."""
        path, local_rank = environ[control.VARIABLE], int(environ["SPOTELASTIC_LOCAL_RANK"])
        return cls(loop, Control(path, "", local_rank, loop.groups.wake))

    @property
    def asked(self) -> bool:
        """Whether the agent wants this worker to rest."""
        return self._control.asked

    def hinder(self, problem: str) -> None:
        """Note what the loop does that other ranks cannot go on with. It is told once."""
        if not self.hindrance:
            _complain(self._loop, problem)
        self.hindrance = problem

    @property
    def saves_first(self) -> bool:
        """Whether this worker saves what it has before it rests."""
        return bool(os.environ.get(SAVES))

    @property
    def is_over(self) -> bool:
        """Whether this worker takes part in no collective of the round any more."""
        groups = self._loop.groups
        return self.asked or groups.is_closed or groups.has_failed

    def is_lost(self, error: BaseException) -> bool:
        """Return whether an exception says no more than that ranks of this round are lost.

        With a group or a loader that the script has made since, this worker cannot go on: the
        script sees the exception, unless the agent wants the worker to rest, and so ends it.
        """
        if not self._is_of_groups(error):
            failures.explain(error)
            return False
        return not self._is_hindered()

    def _is_hindered(self) -> bool:
        """Whether something stands in the way by now.

        It is told. Where the agent wants this worker to rest, that ends the process.
        """
        prepares = self._loop.groups.prepares is not None  # it is in no round, and has no ranks yet
        own = None if prepares else self._loop.ranks().group
        problem = self._loop.groups.problem(own) or loaders.problem() or self.hindrance
        if problem:
            _complain(self._loop, problem)
        if problem and self.asked:
            self._control.give_up()
        return bool(problem)

    def _is_of_groups(self, error: BaseException) -> bool:
        return failures.is_of_collective(error) or (
            self._loop.groups.is_closed and failures.is_of_closed_group(error)
        )

    def has_gradients(self) -> None:
        """Wait for the device. Raises what torch raises where gradients may not be complete.

        A collective on a GPU that was aborted ends as if nothing had happened.
        """
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.current_stream().synchronize()
            if self._loop.groups.is_closed:
                broken = self._loop.groups.broken
                raise dist.DistError(broken or "the process group was closed during the step")

    def vote(self, value: int = 0) -> int:
        """Return once all ranks of the round have called this, with the largest value.

        Raises what torch raises otherwise.

        Where this worker was asked to rest, or a collective of the step has failed, that is raised:
        it enters no collective any more.
        """
        ranks = self._loop.ranks()
        if self.asked:
            raise dist.DistError("the agent wants this worker to leave the round")
        if self._loop.groups.has_failed:
            raise dist.DistError(
                "a collective has failed in the step, and the script has caught it"
            )
        if ranks.world_size == 1:
            return value
        self._votes = self._votes or Votes(ranks, self._loop.groups)
        with self._loop.voting():
            return self._votes.vote(value)

    def rest(self, standing: Standing, error: BaseException | None = None) -> Enter:
        """Leave the groups, which wakes the neighbours as well, and wait for another round.

        Where it cannot go on in place by now, the agent ends this process. So it does if the
        process has grown, where that costs no step: the last one is saved, as at planned changes.
        """
        grown = self._memory.problem
        if grown and self.asked and standing == Standing(self._loop.saved_step()):
            self._give_up(grown)
        if error is None and self._is_hindered():
            self._control.give_up()
        self._loop.groups.close()
        if self._loop.builder.is_wanted:
            # What is sharded is of no use to other ranks: all restore.
            standing = Standing(standing.step, "dirty")
        if self.saves_first and standing.change == "clean":
            self._control.saves_first()
            self._loop.save_alone()
        if error is None or self.asked:
            return self._control.rest(standing)
        trace = "".join(traceback.format_exception(error))[-TRACE:]
        return self._control.rest(standing, f"{type(error).__name__}: {error}", trace)

    def enter(self, order: Enter, standing: Standing) -> None:
        """Enter a round. Rests again as often as one is over before all ranks have entered it."""
        while True:
            if order.restores:
                standing = Standing(standing.step, "dirty")
                if problem := self._loop.loops.problem(order.step):
                    self._give_up(problem)
            elif standing != Standing(order.step):
                raise SpotelasticError(
                    f"this worker is at step {standing.step} ({standing.change}), and cannot go on "
                    f"from step {order.step} in place"
                )
            self._votes = None
            try:
                with self._control.unanswered():
                    self._loop.groups.leave()
                join(self._loop, order.variables, order.step, restores=order.restores)
            except Exception as error:
                if not (self.asked or self._is_of_groups(error)):
                    raise
                failures.clear_frames(error)
                order = self.rest(standing, error)
                continue
            if not self.asked:
                self._memory.note()
                return
            standing = Standing(self._loop.last_step())
            order = self.rest(standing)

    def _give_up(self, why: str) -> NoReturn:
        """Have the agent replace this process, and tell people why."""
        rank = self._loop.ranks().rank
        self._loop.complain(f"rank {rank} goes on in a new process, not in place: {why}")
        self._control.give_up()

    def close(self) -> None:
        """End the connection to the agent."""
        self._loop.groups.rests = False
        self._control.close()


def _complain(loop: LoopParts, problem: str) -> None:
    if loop.groups.prepares is None and loop.ranks().rank == 0:
        loop.complain(
            f"steps go on in new processes when the nodes change, not in place: {problem}"
        )


def join(loop: LoopParts, variables: Mapping[str, str], step: int, *, restores: bool) -> None:
    """Meet the other ranks of a round, and restore its step where the state does not count.

    Some of the ranks may restore while the others keep what they have.
    """
    groups, builder = loop.groups, loop.builder
    loop.leave()
    builder.let_go()
    groups.make(variables)
    tell_libraries()
    models.point_to_group(loop.state, groups.former)
    groups.former = None
    loop.enter()
    ranks = loop.ranks()
    record, left_out = loop.own.rehearsals.value(), samplers.left_out(loop.state.values)
    found = ranks.gather((variables["SPOTELASTIC_ROUND"], step, record, left_out, restores))
    if others := [rank for rank, theirs in enumerate(found) if theirs[:2] != found[ranks.rank][:2]]:
        theirs = found[others[0]]
        raise SpotelasticError(
            f"rank {ranks.rank} goes on from step {step}, but rank {others[0]} from {theirs[1]}"
        )
    restoring = [rank for rank, (*_, theirs) in enumerate(found) if theirs]
    if len(restoring) == ranks.world_size:
        if builder.is_wanted:
            builder.build()
        with builder.named():
            step = loop.restore(ranks)
    elif builder.is_wanted:
        raise SpotelasticError("what is made for each round has to be restored by all ranks")
    elif restoring:
        _restore_on(restoring, loop, ranks, step)
    if told := [record for _, _, record, _, theirs in found if not theirs]:
        loop.own.rehearsals = of_script(told[0])
    for *_, left, _ in found:
        samplers.leave_out(loop.state.values, left)
    loop.resumed(step)


def _restore_on(restoring: list[int], loop: LoopParts, ranks: Ranks, step: int) -> None:
    """Have some ranks restore the step at which the others are. All call it, to make a group."""
    group = dist.new_group(restoring, backend="gloo")
    if ranks.rank not in restoring:
        return
    found = loop.restore(ranks.on(group, restoring))
    dist.destroy_process_group(group)
    if found != step:
        raise SpotelasticError(f"step {step} cannot be restored on the ranks that lack it")


def tell_libraries() -> None:
    """Tell libraries that keep rank and world size in variables of their own what they are now.

    Only those that the script has imported. Otherwise Hugging Face's accelerate, and the Trainer
    with it, would weight losses by the number of ranks of a round that is over.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    accelerate = sys.modules.get("accelerate.state")
    for name in ("PartialState", "AcceleratorState"):
        shared: Any = getattr(getattr(accelerate, name, None), "_shared_state", None)
        if shared:
            shared.update(process_index=rank, num_processes=world_size)
