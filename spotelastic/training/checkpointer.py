"""Defines `Checkpointer`, with which a training script saves its state and restores it.

    with se.Checkpointer({"model": model, "optimizer": optimizer}) as checkpoint:
        for step in checkpoint.steps(steps):
            with step:
                step.loss = ...

The same script runs under `spotelastic up` and `spotelastic run`, under torchrun, and alone.
"""

import os
import time
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import nullcontext
from dataclasses import replace
from types import TracebackType
from typing import Any, ClassVar, NoReturn, Self, TypeVar

from spotelastic_checkpoints import crash_points
from spotelastic_checkpoints.crash_points import Stage
from spotelastic_checkpoints.protocol.worker_client import WorkerClient
from spotelastic_checkpoints.types import Resume, Schedule

from spotelastic.errors import SpotelasticError, UsageError
from spotelastic.training.in_place import rehearsing, watching
from spotelastic.training.in_place.batches import Batches
from spotelastic.training.in_place.building import Build, Builder
from spotelastic.training.in_place.groups import groups
from spotelastic.training.in_place.meeting import LoopParts
from spotelastic.training.in_place.steps import Step, Steps
from spotelastic.training.rehearsal import kept_state
from spotelastic.training.restore.own_values import OwnValues
from spotelastic.training.restore.resuming import open_source
from spotelastic.training.runtime import gc_pause, last_step, step_numbers
from spotelastic.training.runtime.losses import Losses
from spotelastic.training.runtime.own_time import Measuring, measuring
from spotelastic.training.runtime.script_errors import tell_mistakes_in_a_line
from spotelastic.training.runtime.session import Ranks, WorkerSession, open_session
from spotelastic.training.save.alone import save_alone
from spotelastic.training.save.beside import Beside
from spotelastic.training.save.save_plan import AGREED_PATIENCE, PATIENCE, SavePlan, has_left_group
from spotelastic.training.save.saver import LayoutChanged
from spotelastic.training.state.state import State

COMMIT_WITHIN = 120.0
"""Seconds that `wait` waits for a commit, and that the last save goes on without another byte."""

T = TypeVar("T")

watching.watch()


class Checkpointer:
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

    Periodic saves copy parameters while forward and backward go on. Set `overlap=False` if the
    script changes a few elements of a parameter outside of the optimizer, through `.data`.
    """

    _open: ClassVar["Checkpointer | None"] = None
    """The open one of this process. Two would write into the same slots."""

    def __init__(
        self,
        state: MutableMapping[str, Any],
        *,
        storage: str | None = None,
        snapshot_every: int = 10,
        checkpoint_every: int = 50,
        take_over: bool = False,
        overlap: bool = True,
        build: Build | None = None,
        rehearse: bool | str | None = None,
    ) -> None:
        tell_mistakes_in_a_line()
        self._state = State(state)
        self._builder = Builder(build, self._state, groups)
        self._storage = storage
        self._schedule = Schedule(snapshot_every, checkpoint_every)
        self._take_over = take_over
        self._beside = Beside(wanted=overlap)
        self._session: WorkerSession | None = None
        self._client: WorkerClient | None = None
        self._losses: Losses | None = None
        self._measuring: Measuring | None = None
        self._plan: SavePlan | None = None
        self._restored = False
        self._process = 0
        """Id of the process that has entered. A process forked from it must not use the client."""
        self._last_step = 0
        self._told_step = 0
        """The last step that the script has reported in this round; 0 before the first."""
        self._saved_step = 0
        """The last step that was saved in this round."""
        self._last_committing = 0
        self._own = OwnValues()
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
            rehearsed=self._rehearsed,
            voting=lambda: nullcontext() if self._measuring is None else self._measuring.voting(),
        )
        self._steps = Steps(loop, rehearsing.mode(rehearse))

    def __enter__(self) -> Self:
        if Checkpointer._open is not None:
            Checkpointer._open._entered()
            raise UsageError("another Checkpointer is open: give one of them the whole state")
        if self._client is not None:
            raise UsageError("this Checkpointer was left: to go on, make another of the same state")
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
        self._client = self._session.attach()
        self._losses = Losses(self._client.page)
        self._measuring = measuring(self._client.page, ranks.world_size)
        self._plan = SavePlan(
            self._state,
            self._session,
            self._client,
            lambda: self._own.entries(ranks, lambda: self._last_step),
        )
        self._saved_step = self._last_committing = 0
        self._client.page.enter(self._last_step)

    def _leave_round(self) -> None:
        """End what belongs to a round that is over. This process goes on in another one."""
        if self._session is None or self._client is None or self._plan is None:
            return
        self._settle(self._client)
        if self._measuring is not None:
            self._measuring.close()
        self._plan.close()
        self._client.close()

    def _count(self, step: int) -> None:
        """Count a step that the other ranks have finished in a round that is over."""
        self._told_step = self._last_step = step
        self._state.stepped()

    def _resumed(self, step: int) -> None:
        self._entered()[1].page.enter(step)
        self._last_step = step

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
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
                    finished = True
        finally:
            if self._session is not None:
                self._close(well=well, clean=kind is None, finished=finished)

    def _close(self, *, well: bool, clean: bool, finished: bool) -> None:
        session, client, plan = self._entered()
        if well and self._losses is not None:
            self._losses.finish()
        self._beside.close()
        if self._measuring is not None:
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
        if self._last_step and plan.is_made:
            raise UsageError(
                "restore() comes before the first step(): to go back, start the run again with "
                "restore(step=...)"
            )
        if self._builder.is_due:
            self._builder.build()
        if self._load(session.ranks, step):
            client.page.enter(self._last_step)
        return self._last_step

    def _load(self, ranks: Ranks, step: int | None = None) -> int:
        """Restore on these ranks, and return the step."""
        session, client, _ = self._entered()
        self._restored = True
        restored = open_source(replace(session, ranks=ranks), client, self._state, step)
        if restored is None:
            if self._told_step:
                raise SpotelasticError("there is nothing to go back to: nothing was saved")
            return 0
        restored.load(self._state)
        self._own.restore(session.ranks, restored, step)
        client.restored(restored.ident)
        self._last_step = restored.step
        self._told_step = min(self._told_step, restored.step)
        self._last_committing = restored.step if restored.source.kind == "store" else 0
        return restored.step

    def steps(self, total: int) -> Iterator[Step]:
        """Yield the steps that are left of `total`. Make each in a block: `with step:`.

        The state is restored first if `restore()` was not called. At the end of a block the step is
        recorded, and saved if a save is due, as `step()` does. Set `step.loss` in the block to have
        the loss shown.

        If nodes come or go, this process goes on with those that are left. A step in which a peer
        was lost is undone, and comes again; `step.finished` says after the block whether it counts.
        """
        if not self._restored:
            self.restore()
        return self._steps.until(total)

    def batches(self, loader: Iterable[T]) -> Iterator[T]:
        """Yield a loader's batches for ever, for use in the blocks of `steps()`.

        The loader begins again where it ends. If a step is begun again, its batches come again.
        With an `ElasticSampler` they are this rank's new share of them.
        """
        return Batches(loader, self._steps)

    def step(self, step: int, loss: Any = None) -> None:
        """Record that the optimizer steps 1 to `step` are done, and save if a save is due.

        Call it after every optimizer step. A loop that counts from 0 calls `step(number + 1)`.
        Calling it twice with one number counts one step. `loss`, a number or a tensor of one
        element, is shown in the status and the loss curve. At a step that all ranks have agreed on,
        because a node is about to come or go, the call waits.
        """
        if self._steps.is_within:
            raise UsageError(
                "checkpoint.step() within the block of a step: the block's end does what it does"
            )
        session, client, plan = self._entered()
        assert self._losses is not None
        if not self._restored and (session.resume.kind != "fresh" or self._builder.is_due):
            raise UsageError("call checkpoint.restore() before the first checkpoint.step(...)")
        step = step_numbers.checked(step, self._last_step)
        is_new, self._told_step = step != self._told_step, step
        if is_new:
            if self._measuring is not None:
                self._measuring.step_ends(step)
            self._losses.publish(step, loss, time.time())
        self._state.stepped(is_new=is_new)
        at_target = client.page.target == step
        self._last_step = step
        if (copying := self._beside.copying) is not None and copying.is_over:
            self._settle(client)
        if not plan.is_made:
            self._make_plan(plan)
        self._save_if_due(step, session, client, agreed=at_target)
        if self._measuring is not None:
            self._measuring.step_begins()

    def _save_if_due(
        self, step: int, session: WorkerSession, client: WorkerClient, *, agreed: bool
    ) -> None:
        """Save a step where the schedule, or an agreement of all ranks, says so."""
        schedule = client.page.schedule
        unsaved = step != self._saved_step
        commit = agreed or (unsaved and step_numbers.falls_on(step, schedule.checkpoint_every))
        if commit or (unsaved and step_numbers.falls_on(step, schedule.snapshot_every)):
            # The first save of a fresh run is committed: nothing else would survive the loss of its
            # nodes.
            first = session.resume.kind == "fresh" and not self._last_committing
            commit = commit or (first and schedule.checkpoint_every > 0)
            patience = AGREED_PATIENCE if agreed else PATIENCE
            saved = self._save(
                step, patience, waiting=agreed, due=commit, urgent=agreed, overlaps=not agreed
            )
            if saved and agreed:
                client.wait(step)

    def save(self) -> bool:
        """Save the last step now and commit it to storage, whatever the schedule says.

        All ranks call it after the same step. It waits for the copy, not for the upload; `wait()`
        does that. Returns False if there was no room for another save; training goes on.
        """
        self._steps.settle()
        _, client, plan = self._entered()
        if not self._last_step:
            raise UsageError("call checkpoint.step(...) before checkpoint.save()")
        self._settle(client)
        if not plan.is_made:
            self._make_plan(plan)
        if self._last_committing != self._last_step and not self._save(
            self._last_step, AGREED_PATIENCE, due=True
        ):
            return False
        client.urge()
        return True

    def wait(self, timeout: float = COMMIT_WITHIN) -> bool:
        """Wait until each due save is committed. Returns False after `timeout` seconds."""
        self._steps.settle()
        _, client, _ = self._entered()
        self._settle(client)
        return client.flush(timeout)

    @property
    def run_id(self) -> str:
        """The run's id for experiment trackers: it outlives restarts; a fresh start has another."""
        return self._session.run_id if self._session else os.environ.get("SPOTELASTIC_RUN_ID", "")

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

    # -- saving -----------------------------------------------------------------------------------

    def _save(
        self,
        step: int,
        patience: float,
        *,
        due: bool,
        waiting: bool = False,
        planned: bool = False,
        urgent: bool = False,
        overlaps: bool = False,
    ) -> bool:
        """Save a step. Returns False when that was not possible; training goes on.

        `patience` are the seconds to wait for a slot, and `due` says that the save is to be
        committed. `waiting` marks the save at an agreed step, where all ranks wait, and `planned`
        one for which a plan has just been made. Older saves make room for an `urgent` one. With
        `overlaps`, training need not wait for all of the copy.
        """
        session, client, plan = self._entered()
        begun = time.perf_counter()
        self._settle(client)
        # The copy would wait as well: a rank's host may be steps ahead of its device.
        plan.saver.wait()
        if plan.is_asked_for(step):
            self._make_plan(plan)
        if not plan.find_room():
            return False
        if plan.made_at == step:
            patience = AGREED_PATIENCE
        slot = client.open_slot(patience, urgent=urgent)
        if slot is None:
            if patience == AGREED_PATIENCE:
                client.complain(f"rank {session.ranks.rank}: no free slot for step {step}")
            return False
        try:
            plan.follow()
            # At an agreed step all ranks wait for each other, so none may leave the save out alone.
            if not waiting:
                plan.compare_values(step)
            copying = plan.saver.begin(
                slot,
                step,
                due=due,
                overlaps=overlaps and self._beside.wanted,
                sealed=lambda: client.sealed(slot, step, waiting=waiting, due=due),
            )
        except LayoutChanged as change:
            if session.ranks.group is None and not planned:  # there is no other rank to agree with
                self._make_plan(plan)
                return self._save(
                    step,
                    patience,
                    due=due,
                    waiting=waiting,
                    planned=True,
                    urgent=urgent,
                    overlaps=overlaps,
                )
            if plan.ask_again(step, change):
                self._make_plan(plan)
            return False
        self._beside.begun(client, copying, time.perf_counter() - begun)
        self._saved_step = step
        if due:
            self._last_committing = step
        if copying is not None:
            crash_points.reached(Stage.OVERLAP_BEGUN)
        return True

    def _keep(self) -> Resume | None:
        session, client, plan = self._entered()
        self._settle(client)
        return kept_state.keep(session, client, plan, self._last_step)

    def _go_back(self, source: Resume) -> None:
        session, client, _ = self._entered()
        if self._builder.is_wanted:
            self._builder.let_go()
            self._builder.build()
        kept_state.restore(session, client, self._state, self._own, source)

    def _rehearsed(self, step: int, outcome: str, line: str) -> None:
        session, client, _ = self._entered()
        client.rehearsed(step, session.ranks.world_size, outcome, line)

    def _save_alone(self) -> None:
        _, client, plan = self._entered()
        self._settle(client)
        if self._saved_step != self._last_step > 0 and save_alone(client, plan, self._last_step):
            self._saved_step = self._last_step

    def _settle(self, client: WorkerClient) -> None:
        """Wait until the save that is being copied is sealed, or has failed."""
        if not self._beside.settle(client):
            self._saved_step = self._last_committing = 0

    def _make_plan(self, plan: SavePlan) -> None:
        """Agree with all ranks on what is saved, and see to it that optimizers wait for copies."""
        assert self._session is not None
        self._own.agree(self._session.ranks)
        plan.make(self._last_step)
        if self._beside.wanted and plan.has_optimized:
            self._beside.protect()

    def _finish(self, session: WorkerSession, client: WorkerClient, plan: SavePlan) -> None:
        """Save and commit the last step, which is what the run was for, before the script ends."""
        if self._last_step and not self._told_step:
            last_step.tell_nothing_was_left(session, self._last_step)
        if not plan.is_made:
            # The last step may have been restored from memory, and never been committed.
            if has_left_group(session) or self._last_committing == self._last_step:
                return
            self._make_plan(plan)
        saved = self._last_committing == self._last_step or self._save(
            self._last_step, AGREED_PATIENCE, due=True, urgent=True
        )
        if not has_left_group(session) and not all(session.ranks.gather(saved)):
            self._make_plan(plan)
            saved = self._save(self._last_step, AGREED_PATIENCE, due=True, urgent=True)
        last_step.await_commit(client, session.ranks, self._last_step, COMMIT_WITHIN, saved)

    def _entered(self) -> tuple[WorkerSession, WorkerClient, SavePlan]:
        """Return what the Checkpointer works with. Raises `UsageError` outside of its context."""
        if self._session is None or self._client is None or self._plan is None:
            raise UsageError(
                "use the Checkpointer as a context: with se.Checkpointer(state) as ..."
            )
        if os.getpid() != self._process:
            raise UsageError(
                f"process {os.getpid()} was forked from process {self._process}, which opened the "
                "Checkpointer: only that one restores and saves"
            )
        return self._session, self._client, self._plan
