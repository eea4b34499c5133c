"""Defines `Checkpointer`, with which a training script saves its state and restores it.

    with se.Checkpointer({"model": model, "optimizer": optimizer}) as checkpoint:
        for step in checkpoint.steps(steps):
            with step:
                step.loss = ...

The same script runs under `spotelastic up` and `spotelastic run`, under torchrun, and alone.
"""

import math
import os
import time
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import replace
from typing import Any, ClassVar, NoReturn, Self, TypeVar

import torch
from spotelastic_checkpoints.types import Resume, Schedule

from spotelastic.errors import SpotelasticError, UsageError
from spotelastic.training.data import randomness
from spotelastic.training.in_place import guarding, rehearsing, watching
from spotelastic.training.in_place.attempts import Step
from spotelastic.training.in_place.batches import Batches
from spotelastic.training.in_place.building import Build, Builder
from spotelastic.training.in_place.groups import groups
from spotelastic.training.in_place.meeting import LoopParts
from spotelastic.training.in_place.steps import Steps
from spotelastic.training.rehearsal import kept_state, recording
from spotelastic.training.restore.loops import Loops
from spotelastic.training.restore.own_values import OwnValues
from spotelastic.training.restore.resuming import open_source
from spotelastic.training.runtime import conditions, gc_pause, step_numbers
from spotelastic.training.runtime.arena_folder import say
from spotelastic.training.runtime.local_storage import FRESH
from spotelastic.training.runtime.logged_values import LoggedValues
from spotelastic.training.runtime.loop_steps import LoopSteps
from spotelastic.training.runtime.losses import Losses
from spotelastic.training.runtime.own_time import Measuring, measuring
from spotelastic.training.runtime.script_errors import tell_mistakes_in_a_line
from spotelastic.training.runtime.session import Ranks, open_session
from spotelastic.training.save.beside import Beside
from spotelastic.training.save.save_plan import SavePlan
from spotelastic.training.save.saving import COMMIT_WITHIN, Saving
from spotelastic.training.state import each_rank, growth
from spotelastic.training.state.state import State

T = TypeVar("T")

watching.watch()


class Checkpointer(Saving):
    """Saves a training script's state while it trains, and restores it after an interruption.

    Use it as a context manager around the training loop. All ranks construct it with the same names
    in `state`, after `init_process_group` if there is a process group.

    `state` maps names to modules, optimizers, anything with `state_dict()` and `load_state_dict()`,
    tensors, and plain values. A restore fills modules, optimizers and tensors in place. Plain
    values are replaced in the mapping.

    `storage` (an `s3://` URL or a folder), `snapshot_every` and `checkpoint_every` (steps) are for
    scripts that run without spotelastic. Under `spotelastic run` and `up` the job's settings apply.
    `take_over=True` claims a storage that another run has written to.

    `build` returns, by name, what is bound to the ranks: a sharded model, and its optimizer.
    `steps()` and `restore()` put that into `state`, and again when nodes have come or gone.

    `rehearse` says whether `steps()` makes an early step, and rarely a later one, several times, to
    see whether it comes back as it was: True or "auto", False or "off", or "strict", which ends a
    run whose step does not. By default the job's `--rehearse` counts, which is "auto".

    `exact=True` sets and compares what besides virtual ranks decides the last bits, as `--exact`.
    `guard` says whether `steps()` skips a step whose loss or gradients are NaN, infinite, or far
    out of their history. By default the job's `--guard` counts. Set `step.loss` before the
    optimizer steps, to have it looked at.

    Periodic saves copy parameters while forward and backward go on. Set `overlap=False` if the
    script changes a few elements of a parameter outside of the optimizer, through `.data`.
    """

    _open: ClassVar["Checkpointer | None"] = None
    """The open one of this process. Two would write into the same slots."""

    def __init__(
        self,
        state: MutableMapping[str, Any],
        *,
        storage: str | os.PathLike[str] | None = None,
        snapshot_every: int = 10,
        checkpoint_every: int = 50,
        take_over: bool = False,
        overlap: bool = True,
        build: Build | None = None,
        rehearse: bool | str | None = None,
        exact: bool | None = None,
        guard: bool | None = None,
    ) -> None:
        tell_mistakes_in_a_line()
        self._own = OwnValues()
        super().__init__(State(state), Beside(wanted=overlap), self._own.agree)
        self._exact = conditions.begin(exact, self._state.values.values())
        self._builder = Builder(build, self._state, groups)
        self._storage = None if storage is None else os.fspath(storage)
        self._schedule = Schedule(snapshot_every, checkpoint_every)
        self._take_over = take_over
        self._losses: Losses | None = None
        self._loss: Any = math.nan
        self._logged = LoggedValues()
        self._measuring = Measuring()
        self._restored = False
        self._asked: int | None = None
        """The step that the script has asked `restore()` for."""
        self._wanted = False
        """Whether the script asks for a save of the epoch that is ending."""
        self._loops = Loops(self._own, lambda: self._last_step, self._load_again, self._tell)
        self._recording = recording.of_environment(self._state, self._loops, lambda: groups.rests)
        loop = LoopParts(
            state=self._state,
            groups=groups,
            builder=self._builder,
            last_step=lambda: self._last_step,
            saved_step=lambda: self._saved_step,
            ranks=lambda: self._entered()[0].ranks,
            count=self.step,
            waits_after=lambda step: self._entered()[1].page.target == step,
            count_quietly=self._count,
            save_alone=self._save_alone,
            leave=self._leave_round,
            enter=self._enter,
            restore=self._load,
            resumed=self._resumed,
            complain=lambda message: self._entered()[1].complain(message),  # noqa: PLW0108
            own=self._own,
            keep=self._keep,
            go_back=self._go_back,
            tell=self._tell_of_step,
            start_anew=self._start_anew,
            voting=lambda: self._measuring.voting(),  # noqa: PLW0108
            loops=self._loops,
            save_held=self._save_held,
        )
        guards = guarding.is_wanted(guard)
        self._steps = Steps(loop, rehearsing.mode(rehearse), guards=guards)

    def __enter__(self) -> Self:
        if Checkpointer._open is not None:
            Checkpointer._open._entered()
            raise UsageError("another Checkpointer is open: give one of them the whole state")
        if self._client is not None:
            raise UsageError("this Checkpointer is closed: create another one with the same state")
        Checkpointer._open, self._process = self, os.getpid()
        try:
            if groups.prepares is None:
                self._enter()
            return self
        except BaseException:
            Checkpointer._open = None
            raise

    def _enter(self) -> None:
        self._session = open_session(self._storage, self._schedule, take_over=self._take_over)
        ranks = self._session.ranks
        self._state.rank, self._state.world_size = ranks.rank, ranks.world_size
        self._agree_on_conditions(ranks)
        self._client = self._session.attach()
        self._losses = Losses(self._client.page)
        self._measuring = measuring(self._client.page, ranks.world_size)
        self._plan = SavePlan(
            self._state,
            self._session,
            self._client,
            lambda: [
                *self._own.entries(ranks, lambda: self._last_step, self._is_loop_over),
                each_rank.entry(self._state, ranks.rank, self._loss_at_end),
            ],
        )
        self._saved_step = self._last_committing = 0
        self._slot, self._take, self._from_memory = None, 0, None
        self._client.page.enter(self._last_step)

    def _agree_on_conditions(self, ranks: Ranks) -> None:
        """See that all ranks compute alike, where that is asked for. All of them call it."""
        if self._exact:
            is_told, its = self._own.conditions is not None, conditions.agree(ranks)
            self._own.conditions = its
            if ranks.rank == 0 and not is_told:
                say(conditions.told(its))

    def _leave_round(self) -> None:
        """End what belongs to a round that is over. This process goes on in another one."""
        if self._session is None or self._client is None or self._plan is None:
            return
        self._settle(self._client)
        self._measuring.close()
        self._plan.close()
        self._client.close()

    def _count(self, step: int, loss: Any) -> None:
        """Count a step that the other ranks have finished in a round that is over."""
        self._told_step = self._last_step = step
        self._note(loss)
        self._state.stepped()

    def _resumed(self, step: int) -> None:
        self._entered()[1].page.enter(step)
        self._last_step = step
        self._save_restored()

    def _note(self, loss: Any) -> None:
        if loss is not None:
            self._loss = loss.detach() if isinstance(loss, torch.Tensor) else loss

    def _loss_at_end(self) -> float:
        """Return the loss where a loop of steps is over; elsewhere training would wait for it."""
        return float(self._loss) if self._loops.waits(self._last_step) else math.nan

    def _is_loop_over(self) -> bool:
        """Return whether a loop was over when the state became what it is."""
        restored = self._from_memory is not None
        return self._own.loop_was_over if restored else self._loops.is_between

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if os.getpid() != self._process:
            return  # this is the end of a forked child: saves, slots and daemon are its parent's
        Checkpointer._open = None
        well = kind is None or (isinstance(error, SystemExit) and not error.code)
        finished = False
        try:
            if well:
                self._steps.leave()
            self._steps.close()
            if self._session is not None:  # otherwise it was never in its round
                self._settle(self._entered()[1])
                if well:
                    self._finish(*self._entered())
                    self._recording.ended(self._entered()[1].page)
                    finished = True
        finally:
            if self._session is not None:
                self._close(well=well, clean=kind is None, finished=finished)

    def _close(self, *, well: bool, clean: bool, finished: bool) -> None:
        session, client, plan = self._entered()
        if well and self._losses is not None:
            self._losses.finish()
            self._logged.finish(client.page, time.time())
        self._beside.close()
        self._measuring.close()
        plan.close()
        client.leave(clean=clean)
        session.close(finished)

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a Checkpointer belongs to the process that made it, and can be neither copied nor "
            "sent to another: keep it out of data sets and of what is pickled"
        )

    @gc_pause.no_collections()
    def restore(self, step: int | None = None) -> int:
        """Load the newest state of the run, and return its step; 0 on a fresh run.

        All ranks call it and get the same step. If the newest state is damaged, all ranks go back
        to the checkpoint before it. With `step`, the run goes back to that checkpoint once: when it
        has trained on from there and is only restarted, it resumes from its newest state.

        Raises `UsageError` if the checkpoint belongs to another model (the message names what
        differs) or if `step` was never committed. Raises `SpotelasticError` if nothing can be
        restored; the state may then be filled in part.
        """
        if self._steps.enter_prepared():
            return self._last_step
        session, client, plan = self._entered()
        if self._last_step and plan.is_made and not plan.is_early:
            raise UsageError(
                "restore() comes before the first step(): to go back, start the run again with "
                "restore(step=...)"
            )
        if self._builder.is_due:
            self._builder.build()
        self._asked = step
        if self._load(session.ranks, step):
            client.page.enter(self._last_step)
            self._save_restored()
        return self._last_step

    def _load(self, ranks: Ranks, step: int | None = None) -> int:
        """Restore on these ranks, and return the step."""
        self._recording.begins()
        session, client, _ = self._entered()
        self._restored = True
        growth.begin(self._state)
        auditing = self._steps.auditing
        limit = math.inf if auditing is None else auditing.limit(ranks)
        place = replace(session, ranks=ranks)
        restored = open_source(place, client, self._state, step, limit=limit)
        if restored is None:
            if self._told_step:
                raise SpotelasticError("there is nothing to go back to: nothing was saved")
            return 0
        restored.load(self._state)
        trains = self._told_step > 0
        # The first one alone evaluates, in many scripts: it comes last.
        order = session.ranks.rank, *range(restored.world_size - 1, -1, -1)
        self._loss = each_rank.restore(self._state, restored.own_value, order, trains=trains)
        self._own.restore(session.ranks, restored, step)
        client.restored(restored.ident)
        self._last_step = restored.step
        self._told_step = min(self._told_step, restored.step)
        self._last_committing = restored.step if restored.source.kind == "store" else 0
        self._slot = None
        alone = bool(ranks.some) or restored.source.kind != "memory"
        self._from_memory = None if alone else restored.source
        self._recording.restored(restored.step)
        return restored.step

    def steps(self, total: int) -> Iterator[Step]:
        """Yield the steps that are left of `total`. Make each in a block: `with step:`.

        The state is restored first if `restore()` was not called. At the end of a block the step is
        recorded, and saved if a save is due, as `step()` does. Set `step.loss` in the block to have
        the loss shown, and `step.samples` to have samples per second shown.

        If nodes come or go, this process goes on with those that are left. A step in which a peer
        was lost is undone, and comes again; `step.finished` says after the block whether it counts.
        """
        if not self._restored:
            self.restore()
        left = self._steps.until(total)
        return LoopSteps(left, total, lambda: self._last_step)

    def epochs(self, total: int, steps: int) -> Iterator[int]:
        """Yield the numbers of the epochs that are left of `total`, each of `steps` steps, from 0.

        Make those of one by `steps((epoch + 1) * steps)`. What stands after them is done once for
        each epoch, by all ranks together. It is saved with the epoch's last step.
        """
        if not self._restored:
            self.restore()
        return self._loops.epochs(total, steps, self._epoch_ended)

    def batches(self, loader: Iterable[T]) -> Iterator[T]:
        """Yield a loader's batches for ever, for use in the blocks of `steps()`.

        The loader begins again where it ends. If a step is begun again, its batches come again.
        With an `ElasticSampler` they are this rank's new share of them.
        """
        return Batches(loader, self._steps)

    def step(self, step: int, loss: Any = None, samples: float = 0.0, total: int = 0) -> None:
        """Record that the optimizer steps 1 to `step` are done, and save if a save is due.

        Call it after every optimizer step. A loop that counts from 0 calls `step(number + 1)`.
        Calling it twice with one number counts one step. `loss`, a number or a tensor of one
        element, is shown in the status and the loss curve, and so is the speed where `samples` says
        how many samples (or tokens) this rank has seen in the step, and how far the run is where
        `total` says with which step it ends. At a step that all ranks have agreed on, because a
        node is about to come or go, the call waits.
        """
        if self._steps.is_within:
            raise UsageError(
                "checkpoint.step() inside the block of a step: the end of the block does the same"
            )
        session, client, plan = self._entered()
        assert self._losses is not None
        if not self._restored and (session.resume.kind != "fresh" or self._builder.is_due):
            raise UsageError("call checkpoint.restore() before the first checkpoint.step(...)")
        step = step_numbers.checked(step, self._last_step)
        is_new, self._told_step = step != self._told_step, step
        self._steps.refuse_unguarded()
        if is_new:
            self._take = 0
            self._measuring.step_ends(step)
            total = total or self._loops.end
            now = time.time()
            self._losses.publish(step, loss, now, total, float(samples))
            self._logged.publish(client.page, now)
            self._note(loss)
        self._state.stepped(is_new=is_new)
        at_target = client.page.target == step
        self._last_step = step
        if (copying := self._beside.copying) is not None and copying.is_over:
            self._settle(client)
        self._see_to_plan(plan)
        self._holds = not at_target and self._loops.waits(step)
        # What there is while steps are skipped is no better than the save before.
        skips = self._steps.guard is not None and self._steps.guard.in_a_row > 0
        if not self._holds and (at_target or not skips):
            self._save_if_due(step, session, client, agreed=at_target)
        self._recording.stepped(step, loss, client.page, holds=self._holds)
        self._measuring.step_begins()

    def log(self, /, **values: Any) -> None:
        """Show values of the script beside the loss, by their names: `log(lr=..., grad_norm=...)`.

        A value is a number, or a tensor of one element. Those of rank 0 count, with the next step
        that does: of a step that is undone or made again, once. Once a second the newest ones are
        published. One that is NaN or infinite is a gap in its curve.

        Raises `UsageError` for anything but a number, for the 21st name, and for one that has other
        characters than letters, digits and `_./-`, or more than 32 of them.
        """
        if Checkpointer._open is not self:
            raise UsageError("checkpoint.log() belongs into the Checkpointer's `with` block")
        self._logged.take(values, counts=self._state.rank == 0)

    def save(self) -> bool:
        """Save the last step now and commit it to storage, whatever the schedule says.

        All ranks call it after the same step. It waits for the copy, not for the upload; `wait()`
        does that. Returns False if there was no room for another save; training goes on. Returns
        False also if the step was saved before, and the state was changed since: it is told what,
        and the next step's save has it. Where an epoch of `epochs()` ends, the save is made once
        all is done that belongs to its end.
        """
        self._steps.settle()
        if self._loops.is_at_an_end:
            self._wanted = True
            return True
        self._holds = False
        _, client, plan = self._entered()
        if not self._last_step:
            raise UsageError("call checkpoint.step(...) before checkpoint.save()")
        self._settle(client)
        self._see_to_plan(plan)
        if not self._commit_step():
            return False
        client.urge()
        self._recording.ended(client.page)
        return True

    def wait(self, timeout: float = COMMIT_WITHIN) -> bool:
        """Wait until each due save is committed. Returns False after `timeout` seconds."""
        self._steps.settle()
        if not self._loops.is_at_an_end:
            self._save_held()
        _, client, _ = self._entered()
        self._settle(client)
        return client.flush(timeout)

    @property
    def run_id(self) -> str:
        """The run's id for experiment trackers: it outlives restarts; a fresh start has another."""
        return self._session.run_id if self._session else os.environ.get("SPOTELASTIC_RUN_ID", "")

    @property
    def loss(self) -> torch.Tensor:
        """The last loss of this rank, as a tensor of one element, for what is told after the steps.

        A process that begins after the steps of an epoch, or of the run, has the saved one; on a
        new rank it is another rank's. NaN if there is none.
        """
        return torch.as_tensor(self._loss)

    @property
    def stall(self) -> float:
        """Seconds for which the last save kept training waiting."""
        return self._beside.stall

    @property
    def interrupted(self) -> bool:
        """Whether a node is about to come or go, or this node has received its notice.

        Use it to postpone what takes long, such as an evaluation. Ranks may see it at different
        steps, so never use it for a decision that all ranks have to make alike.
        """
        _, client, _ = self._entered()
        return client.page.target > self._last_step or client.page.deadline > 0

    def _save_held(self) -> None:
        holds = self._holds
        super()._save_held()
        if holds:
            self._recording.ended(self._entered()[1].page)

    def _keep(self) -> Resume | None:
        session, client, plan = self._entered()
        self._settle(client)
        return kept_state.keep(session, client, plan, self._last_step)

    def _go_back(self, source: Resume) -> None:
        session, client, _ = self._entered()
        if self._builder.is_wanted:
            groups.leave_built()
            self._builder.let_go()
            self._builder.build()
        kept_state.restore(session, client, self._state, self._own, source)

    def _tell_of_step(self, kind: str, step: int, outcome: str, line: str) -> None:
        session, client, _ = self._entered()
        client.found(step, session.ranks.world_size, outcome, line, kind)

    def _start_anew(self) -> None:
        """Go on from the newest commit in this process, as a restart without an agent would."""
        session, client, _ = self._entered()
        if session.restarts:
            raise SpotelasticError(
                "--guard: going back takes steps that go on in place: an event says what is in the "
                "way, or go back with checkpoint.restore(step=...)"
            )
        self._settle(client)
        client.flush(COMMIT_WITHIN)
        self._leave_round()
        session.close(False)
        os.environ.pop(FRESH, None)  # it has begun afresh already
        self._enter()
        session, client, _ = self._entered()
        self._load(session.ranks)
        client.page.enter(self._last_step)

    def _epoch_ended(self, goes_on: bool) -> None:
        """See to the save of an epoch's last step.

        One that was made lacks the epoch's end, which a process that restores it makes again. What
        the script does after its last epoch may have to be saved with it.
        """
        wanted, self._wanted = self._wanted, False
        if goes_on:
            self._steps.save_held()
        if wanted:
            self.save()

    def _load_again(self, with_randomness: bool) -> None:
        """Restore what the script has changed before its first step."""
        drawn = randomness.capture()
        self._load(self._entered()[0].ranks, self._asked)
        self._from_memory = None
        if not with_randomness:
            randomness.apply(drawn)
