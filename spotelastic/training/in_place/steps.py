"""Makes the steps of a training loop, each again until it counts on all ranks.

    for step in checkpoint.steps(total):
        with step:
            step.loss = train_one(model, optimizer, batches, step.number)

Before the first optimizer steps in the block, all ranks vote: a collective that ends only if all
ranks have entered it, and so have all gradients. A rank that has seen it succeed goes on. One that
has not rests, and hears where the others are: it makes the step with the gradients that it has, or
begins it again. So ranks are never more than one step apart, and no step is lost.

Must never happen:

- A step is made twice. After the vote only the end of the block counts it; if a collective fails in
  between, the state is "dirty", and is restored.
- A rank of an old round is in a collective of a new one. What is left of a step that the others
  have finished is done outside of any group, before the new one is entered.
- Two ranks of a round are at different places of the script. A rank enters a round only where its
  loop asks for the next step, which is where new workers begin. What the script does between two
  blocks, such as an evaluation, belongs to the round of the block before.
"""

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from spotelastic_checkpoints.decoders import from_json
from spotelastic_checkpoints.types import Resume
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from spotelastic.errors import SpotelasticError, UsageError
from spotelastic.model.in_place import AUDIT, Change, Enter, Standing
from spotelastic.training.data import sampler as samplers
from spotelastic.training.data.audit import AuditPlan
from spotelastic.training.data.sampler import ElasticSampler
from spotelastic.training.exact.pieces import Pieces, Trained
from spotelastic.training.in_place import failures, models
from spotelastic.training.in_place.attempts import AHEAD, Attempt, Step
from spotelastic.training.in_place.auditing import Auditing
from spotelastic.training.in_place.guarding import Fault, Guard
from spotelastic.training.in_place.meeting import LoopParts, Meeting, join
from spotelastic.training.in_place.rehearsing import Mode, Rehearsing, TrialStage
from spotelastic.training.in_place.undo import Undo
from spotelastic.training.in_place.voting import largest
from spotelastic.training.in_place.watching import IN_PLACE
from spotelastic.training.state.lasting import Lasting
from spotelastic.training.state.rank_agreement import digest_of_tensor


class Steps:
    """The steps of one Checkpointer's loop."""

    def __init__(self, loop: LoopParts, rehearses: Mode = "off", *, guards: bool = False) -> None:
        self._loop = loop
        self._rehearsing = Rehearsing(loop, rehearses)
        self.guard = Guard(loop) if guards else None
        """Looks at loss and gradients of each step; None where that is not asked for."""
        self.auditing = Auditing(loop) if os.environ.get(AUDIT) else None
        self._meeting: Meeting | None = None
        self._undo = Undo(loop.state)
        self._attempt: Attempt | None = None
        self._hook: RemovableHandle | None = None
        self._process = 0
        self._concerned: weakref.WeakKeyDictionary[torch.optim.Optimizer, bool]
        self._concerned = weakref.WeakKeyDictionary()
        self._entry: tuple[Enter, Standing] | None = None
        """The round to enter where the loop asks for the next step, and where this worker is."""
        self._has_met = False
        """Whether this worker has voted where a loop asked for the first step of this round."""
        self._made: Attempt | None = None
        """An attempt of a rehearsal that would count if the loop were left now."""
        self._uncounted: Step | None = None
        """A finished step at whose end all ranks wait. What is between the blocks comes before."""
        self.undone: list[Callable[[], None]] = []
        """Called when a step is begun again, or the ranks have changed."""
        self.counted: list[Callable[[], None]] = []
        """Called when a step counts."""

    def refuse_unguarded(self) -> None:
        """Raise `UsageError` where steps are to be guarded, and others make them."""
        if self.guard is not None and not self._process:
            raise UsageError(
                "--guard: a step of checkpoint.step() cannot be undone: make steps by "
                "`for step in checkpoint.steps(total):` and then `with step:`, or leave it out"
            )

    def ask(self, problem: Callable[[], str]) -> None:
        """Have this asked for what of an attempt cannot be put back; it returns "" if all can."""
        self._undo.others.append(problem)

    def complain(self, message: str) -> None:
        """Tell people something, once for all ranks."""
        if self._loop.ranks().rank == 0:
            self._loop.complain(message)

    @property
    def is_rehearsed(self) -> bool:
        """Whether the step is rehearsed. Its ranks are the same then when it is made again."""
        return self._rehearsing.stage is not TrialStage.NONE

    @property
    def is_within(self) -> bool:
        """Whether the block of a step is being executed."""
        return self._attempt is not None

    def until(self, total: int) -> Iterator[Step]:
        """Yield steps until `total` are finished."""
        if not self._process:
            self._begin()
        self.save_held()
        self._loop.loops.begins(total)
        while not self._are_done(total):
            self._share_by_times()
            step = Step(self._loop.last_step() + 1, self)
            if self._meeting is not None:
                if not self._rehearse(step, self._meeting):
                    continue
                step.rehearses = self._rehearsing.is_made_again
            yield step
            if self._attempt is not None:
                raise UsageError("checkpoint.steps(): the step before is still being made")
            if not step.begun:
                raise UsageError(
                    "checkpoint.steps(): train each step in a block: `for step in "
                    "checkpoint.steps(total):` and then `with step:`"
                )
        self._loop.loops.over()

    def _are_done(self, total: int) -> bool:
        """Return whether the loop ends.

        A worker that was asked to rest since the last step does so.

        Ranks leave the loop together. Otherwise one could be gone whose peer is a step behind.

        All vote where they first ask in a round, too, also those that go on: who has arrived may go
        on in the loop of the next epoch, while that of the epoch before ends here for the others.
        """
        self._enter_round()
        meeting = self._meeting
        while meeting is not None:
            last = self._loop.last_step()
            try:
                if last >= total or meeting.asked or not self._has_met:
                    meeting.vote()
                    self._has_met = True
                return last >= total
            except Exception as error:
                # An attempt of a rehearsal does not count that has yet to be taken back.
                standing = Standing(last, "dirty" if self._rehearsing.restores_first else "clean")
                if not self._rests(standing, error):
                    raise
                self._enter_round()
        return self._loop.last_step() >= total

    def _rehearse(self, step: Step, meeting: Meeting) -> bool:
        """Keep the state of a step that is rehearsed, or restore it for its next attempt.

        Returns False where a peer was lost meanwhile.
        """
        rehearsing, standing = self._rehearsing, Standing(step.number - 1, "dirty")
        if not rehearsing.restores_first and any(map(samplers.waits, self._samplers())):
            meeting.hinder(AHEAD)  # Later on it may be the batch of the attempt before.
        try:
            if rehearsing.restores_first:
                rehearsing.restore(self._undo)
                self._undo.put_back()
                rehearsing.put_back()
                self._undo.go_on_anew()
                self._tell(self.undone)
            else:
                standing = Standing(step.number - 1)
                rehearsing.prepare(step.number, self._undo, hindered=bool(meeting.hindrance))
        except Exception as error:
            if not self._rests(standing, error):
                raise
            self._enter_round()
            return False
        self._made = None
        return True

    def settle(self) -> None:
        """Do what the end of the last block has left to do.

        Count a step that was rehearsed, wait for others, and enter a round.
        """
        made, self._made = self._made, None
        if made is not None and self._meeting is not None:
            self._rehearsing.give_up()
            self._undo.finished(made.stepped)
            self._finish(made)
            self._tell_and_rest(made.step, self._meeting)
        self._enter_round()

    def _enter_round(self) -> None:
        step, self._uncounted = self._uncounted, None
        if step is not None and self._meeting is not None:
            self._tell_and_rest(step, self._meeting)
        entry, self._entry = self._entry, None
        if entry is not None and self._meeting is not None:
            self._enter(self._meeting, *entry)

    def save_held(self) -> None:
        """Make the save that waited for what stands after a loop. Who loses a peer in it rests."""
        self.settle()
        try:
            self._loop.save_held()
        except RuntimeError as failure:
            if not self._rests(Standing(self._loop.last_step()), failure):
                raise

    def leave(self) -> None:
        """Leave the loop with all other ranks, where the script has ended it early.

        Raises `SpotelasticError` where they lost a step meanwhile, which a new process makes again.
        """
        self.settle()
        last = self._loop.last_step()
        if self._meeting is not None and not self._are_done(last):
            raise SpotelasticError(
                f"step {last} was lost with a rank when training was over: go on from step "
                f"{self._loop.last_step()} in a new process"
            )

    def enter_prepared(self) -> bool:
        """Enter the round, where this process has only prepared until now.

        Returns whether it was so.
        """
        variables = self._loop.groups.prepares
        if variables is None:
            return False
        self._loop.loops.came = True
        if variables[IN_PLACE] == "prepare":  # beside a round: the agent tells which one to enter
            self._loop.builder.prepare()
            nothing = Standing(-1, "dirty")
            self._meeting = Meeting.of_prepared(self._loop, variables)
            self._meeting.enter(self._meeting.rest(nothing), nothing)
            return True
        resume = from_json(variables["SPOTELASTIC_RESUME"], Resume)
        join(self._loop, variables, resume.step, restores=True)
        return True

    def close(self) -> None:
        """Stop looking at optimizers and at the agent."""
        if self._hook is not None:
            self._hook.remove()
        if self.guard is not None:
            self.guard.close()
        if self._meeting is not None:
            self._meeting.close()

    # -- the block --------------------------------------------------------------------------------

    def begins(self, step: Step) -> None:
        """Begin the block of a step."""
        if self._attempt is not None:
            raise UsageError("a step was begun within the block of another one")
        # What is made for each round is restored, not undone.
        if self.guard is not None or (self._meeting and not self._loop.builder.is_wanted):
            self._undo.note()
        if self.guard is not None:
            self.guard.begins()
        for pieces in self._pieces():
            pieces.begin(step.number)
        self._attempt = Attempt(step)
        self._loop.groups.has_failed = False
        self._rehearsing.begins()

    def _samplers(self) -> Iterator[ElasticSampler]:
        values = self._loop.state.values.values()
        return (value for value in values if isinstance(value, ElasticSampler))

    def _pieces(self) -> Iterator[Pieces]:
        """Yield what computes virtual ranks: one for each sampler that has them."""
        for value in self._samplers():
            if value.virtual_ranks is not None:
                if value.pieces is None:
                    value.pieces = Pieces(value, self._trained, self._compare, digest_of_tensor)
                yield value.pieces

    def _share_by_times(self) -> None:
        """Deal virtual ranks out by what ranks take for them. Loaders begin anew at the cursor.

        Must never happen between two attempts of a rehearsal: the batch that comes again is this
        rank's share by the former times.
        """
        if self.is_rehearsed:
            return
        for value in self._samplers():
            if value.pieces is not None and value.pieces.share_by_times():
                samplers.go_back(value, samplers.position(value))
                self._tell(self.undone)

    def _compare(self, plan: AuditPlan, told: Sequence[bytes]) -> None:
        """Compare what ranks came to in an audit. If they differ, all leave the block together."""
        attempt = self._attempt
        if attempt is not None and self.auditing is not None:
            attempt.differs = self.auditing.compare(attempt.step.number, plan, told)
            if attempt.differs:
                raise failures.Unwound

    def _trained(self) -> Trained:
        state = self._loop.state
        values = state.values.values()
        return Trained(
            [each for each in values if isinstance(each, torch.nn.Module)],
            [each for each in values if isinstance(each, torch.optim.Optimizer)],
            models.wrappers(state),
        )

    def ends(self, step: Step, error: BaseException | None) -> bool:
        """End the block of a step. Returns whether an exception that came out of it is settled."""
        attempt, meeting = self._attempt, self._meeting
        assert attempt is not None
        if error is None and attempt.order is None:
            for pieces in self._pieces():
                pieces.refuse_unsummed()
        try:
            if error is None and not attempt.voted and self._votes:
                try:
                    self._vote(attempt, has_gradients=False)
                except failures.Unwound as unwound:
                    error = unwound
            if meeting is not None:
                return self._settled(attempt, meeting, error)
            if attempt.fault or attempt.differs:
                return self._skipped(attempt, error)
            if error is None:
                self._count(attempt)
            return False
        finally:
            self._attempt = None

    def _settled(self, attempt: Attempt, meeting: Meeting, error: BaseException | None) -> bool:
        if self._rehearsing.has_struck(error):
            self._begin_again(attempt, error)
            self._rehearsing.undone(attempt.problem)
            return True
        if attempt.order is not None and not attempt.is_behind:
            if error is not None and not failures.is_unwinding(error):
                return False
            self._begin_again(attempt, error)
            self._entry = attempt.order, Standing(self._loop.last_step())
            return True
        if attempt.fault or attempt.differs:
            return self._skipped(attempt, error)
        if error is not None:
            if not meeting.is_lost(error):
                self._rehearsing.failed(attempt.step.number, error)
                return False
            self._begin_again(attempt, error)
            standing = Standing(self._loop.last_step(), attempt.change)
            self._entry = meeting.rest(standing, error), standing
            return True
        if attempt.order is None and self._is_made_again(attempt, meeting):
            return False
        self._undo.finished(attempt.stepped)
        if attempt.is_behind:
            assert attempt.order is not None
            self._loop.count_quietly(attempt.step.number, attempt.step.shown)
            self._finish(attempt)
            self._entry = attempt.order, Standing(attempt.step.number)
            return True
        self._count(attempt)
        return False

    def _count(self, attempt: Attempt) -> None:
        """Count the step, and save it if a save is due, on all ranks."""
        step, meeting = attempt.step, self._meeting
        self._finish(attempt)
        if meeting is None:
            self._loop.count(step.number, step.shown, step.samples)
        elif self._loop.waits_after(step.number) and not meeting.asked:
            self._uncounted = step
        else:
            self._tell_and_rest(step, meeting)

    def _skipped(self, attempt: Attempt, error: BaseException | None) -> bool:
        """Undo a step that all ranks skip, or go back from.

        Returns whether an exception is settled by that.
        """
        meeting, line = self._meeting, attempt.differs
        if not (error is None or failures.is_unwinding(error)):
            return False
        failures.clear_frames(error)
        self._undo.put_back(stays=True)
        self._rehearsing.put_back()
        self._rehearsing.give_up()
        self._undo.finished(None)
        if not line and self.guard is not None:
            attempt.step.skipped = True
            back = attempt.goes_back
            line = self.guard.skipped(attempt.step.number, attempt.fault, back=back)
            if not back:
                self._count(attempt)
                return True
        self._tell(self.undone)
        if meeting is None:
            self._loop.start_anew()
            self._undo.go_on_anew()
            return True
        lost = dist.DistError(line)
        if not self._rests(Standing(self._loop.last_step(), "dirty"), lost):
            raise lost
        return True

    def _is_made_again(self, attempt: Attempt, meeting: Meeting) -> bool:
        """Return whether an attempt is one of a rehearsal that is not the last."""
        if self._rehearsing.stage is TrialStage.NONE:
            return False
        try:
            if not self._rehearsing.made(attempt.step.number, attempt.step.loss):
                return False
        except Exception as error:
            if not meeting.is_lost(error):
                raise
            self._rehearsing.give_up()  # the step counts: all ranks have made it
            return False
        self._made = attempt
        return True

    def _finish(self, attempt: Attempt) -> None:
        """Count the step, for this process."""
        self._attempt = None
        attempt.step.finished = True
        if self.guard is not None and not attempt.step.skipped:
            self.guard.made()
        self._tell(self.counted)

    def _tell_and_rest(self, step: Step, meeting: Meeting) -> None:
        """Tell that the step counts, and save it if a save is due. Then rest if it is asked for."""
        standing = Standing(step.number)
        try:
            self._loop.count(step.number, step.shown, step.samples)
        except RuntimeError as failure:
            if self._loop.last_step() != step.number or not self._rests(standing, failure):
                raise
        if meeting.asked and self._entry is None:
            self._entry = meeting.rest(standing), standing
        if self._entry is None:
            self._rehearsing.stepped(step.number)

    def _begin_again(self, attempt: Attempt, error: BaseException | None) -> None:
        """Undo what the attempt has done. If that is not possible, the state counts as dirty."""
        failures.clear_frames(error)
        # Not every optimizer's writes are seen, so what was dirty stays so.
        attempt.problem = attempt.problem or self._undo.problem
        exact = self._rehearsing.undoes and not attempt.problem
        self._undo.put_back()
        self._rehearsing.put_back()
        attempt.change = "clean" if exact and attempt.change != "dirty" else "dirty"
        self._tell(self.undone)

    # -- the vote ---------------------------------------------------------------------------------

    def _before_optimizer(
        self, optimizer: Any, args: Sequence[Any], more: Mapping[str, Any]
    ) -> None:
        """Note that an optimizer is about to step.

        It has its gradients, unless it computes them itself.
        """
        attempt = self._attempt
        if attempt is None or os.getpid() != self._process:
            return
        entries = self._loop.state.values.values()
        if any(isinstance(each, Lasting) and each.owns(optimizer) for each in entries):
            return
        if not self._concerns(optimizer):
            return
        if attempt.stepped is not None:
            attempt.stepped.add(id(optimizer))
        if attempt.voted:
            return
        if any(callable(each) for each in (*args[1:], more.get("closure"))):  # the first is itself
            attempt.change = "dirty"
            attempt.problem = "an optimizer is given a closure, and steps before the step vote"
        else:
            self._vote(attempt, optimizer)

    def _concerns(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether an optimizer is of the state. Others may step on some ranks alone."""
        known = self._concerned.get(optimizer)
        if known is None:
            known = self._concerned[optimizer] = self._undo.concerns(optimizer)
        return known

    def votes(self, step: Step) -> None:
        """Note that the step has all its gradients, as the script says."""
        attempt = self._attempt
        if attempt is None or attempt.step is not step:
            raise UsageError("call step.vote() inside the block of its step: `with step:`")
        attempt.stepped = None
        if self._votes and not attempt.voted:
            self._vote(attempt)

    @property
    def _votes(self) -> bool:
        """Whether the ranks vote before they make a step."""
        return self._meeting is not None or self.guard is not None

    def _vote(self, attempt: Attempt, optimizer: Any = None, *, has_gradients: bool = True) -> None:
        """Wait until all ranks have all gradients of the step, or rest with these gradients.

        Gradients may be missing where the block has ended without a step of an optimizer, or if the
        groups were closed before: the script may have caught what a collective has raised. Nobody
        can have made the step then, so that all begin it again.
        """
        guard, meeting = self.guard, self._meeting
        has_gradients = has_gradients and not (meeting is not None and meeting.is_over)
        for value in self._samplers():
            samplers.refuse_ended(value)
        for pieces in self._pieces() if has_gradients else ():
            pieces.refuse_unsummed()
        if guard is not None and has_gradients:
            guard.look(optimizer, attempt.step.loss)
        if meeting is not None:
            meeting.has_gradients()
        attempt.voted = True
        own = 0 if guard is None else guard.judge()
        # With a fault of its own nobody makes the step: so this rank cannot have to follow.
        has_gradients = has_gradients and not own
        attempt.fault = Fault(self._agree(attempt, own, has_gradients=has_gradients))
        if attempt.fault and guard is not None:
            problem = attempt.problem or self._undo.problem or not self._rehearsing.undoes
            back = bool(problem) or guard.is_enough
            attempt.goes_back = bool(self._agree(attempt, int(back), has_gradients=False))
            raise failures.Unwound
        attempt.change = "dirty"

    def _agree(self, attempt: Attempt, value: int, *, has_gradients: bool) -> int:
        """Return the largest value that a rank votes with. Rests where a rank is lost."""
        meeting = self._meeting
        try:
            with self._rehearsing.voting():
                if meeting is None:
                    return largest(value, self._loop.ranks())
                return meeting.vote(value)
        except Exception as error:
            if meeting is None or not meeting.is_lost(error):
                raise
            if meeting.saves_first:  # what can be saved is the step before: nobody follows then
                self._begin_again(attempt, error)
            else:  # whoever is asked to begin the step again has to be able to
                unchanged: Change = "pending" if has_gradients else "clean"
                exact = self._rehearsing.undoes and not self._undo.problem
                attempt.change = unchanged if exact else "dirty"
            standing = Standing(self._loop.last_step(), attempt.change)
            attempt.order = meeting.rest(standing, error)
            if not attempt.is_behind:
                raise failures.Unwound from None
        return 0

    # -- between rounds ---------------------------------------------------------------------------

    def _rests(self, standing: Standing, error: Exception) -> bool:
        """Rest if an exception says only that ranks are lost. Returns whether it does."""
        meeting = self._meeting
        if meeting is None or not meeting.is_lost(error):
            return False
        self._entry = meeting.rest(standing, error), standing
        return True

    def _enter(self, meeting: Meeting, order: Enter, standing: Standing) -> None:
        """Go on in another round, which may take several attempts."""
        self._attempt = None  # A restore may have optimizers step, to make their state.
        self._made, self._has_met = None, False
        self._rehearsing.give_up()
        meeting.enter(order, standing)
        if self.guard is not None and order.restores:
            self.guard.forget_row()
        for pieces in self._pieces():
            pieces.forget_times()
        self._rehearsing.enters(self._loop.last_step())
        self._undo.go_on_anew()
        self._tell(self.undone)

    def _begin(self) -> None:
        """See whether this worker can rest, before its first step."""
        self._process = os.getpid()
        self._meeting = self._meeting or Meeting.of(self._loop)
        if self.auditing is not None and not any(True for _ in self._pieces()):
            raise UsageError("--audit: there are no virtual ranks: see docs/how-to/same-bits.md")
        if self._meeting is not None:
            self._rehearsing.enters(self._loop.last_step())
        if self._votes:
            # The hook is called, not traced, where a step is compiled.
            hook = torch.compiler.disable(self._before_optimizer)  # type: ignore[no-untyped-call]
            self._hook = register_optimizer_step_pre_hook(hook)

    @staticmethod
    def _tell(whom: list[Callable[[], None]]) -> None:
        for call in whom:
            call()
