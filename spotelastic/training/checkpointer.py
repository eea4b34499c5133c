"""The one object that a training script needs: it saves when due, and restores what was saved.

with se.Checkpointer({"model": model, "optimizer": optimizer}) as checkpoint:
    step = checkpoint.restore()
    while step < steps:
        ...
        step += 1
        checkpoint.step(step, loss=loss)
"""

import sys
import time
from collections.abc import MutableMapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from spotelastic_checkpoints import wire
from spotelastic_checkpoints.errors import ArenaFull, CheckpointsError
from spotelastic_checkpoints.layout import SHARED
from spotelastic_checkpoints.worker import OpenSlot, WorkerClient

from spotelastic.errors import EnvironmentFailure, SpotelasticError, UsageError
from spotelastic.training import randomness
from spotelastic.training.environment import Session, open_session
from spotelastic.training.losses import Losses
from spotelastic.training.restoring import Restored
from spotelastic.training.saving import LayoutChanged, Saver
from spotelastic.training.state import OWN, Cell, State, View

RESTORE_WITHIN = 600.0
"""Seconds for bringing the state to this node; the daemon's own deadlines are shorter."""
COMMIT_WITHIN = 120.0
"""Seconds that the last save may take to be committed when training is over."""
PATIENCE = 0.05
"""Seconds that a periodic save waits for a free slot; training goes on without it otherwise."""
AGREED_PATIENCE = 10.0
"""The same for a save that everybody agreed on."""


class Checkpointer:
    """Saves `state`: modules, optimizers, things with state_dict()/load_state_dict(), values.

    Values of the mapping itself are replaced on restore. All ranks construct it with the same
    names, after `init_process_group` where there is one. `storage` (an s3:// URL or a folder) and
    the two intervals, in steps, are for runs without `spotelastic`; under it the job's settings
    hold. `take_over` claims a storage that another run has written to.
    """

    def __init__(
        self,
        state: MutableMapping[str, Any],
        *,
        storage: str | None = None,
        snapshot_every: int = 10,
        checkpoint_every: int = 50,
        take_over: bool = False,
    ) -> None:
        self._state = State(state)
        self._storage = storage
        self._schedule = wire.Schedule(snapshot_every, checkpoint_every)
        self._take_over = take_over
        self._session: Session | None = None
        self._client: WorkerClient | None = None
        self._losses: Losses | None = None
        self._view: View | None = None
        self._saver: Saver | None = None
        self._plans = 0
        self._restored = False
        self._last_step = 0
        self._last_committing = 0
        """The last step that was sealed to be committed."""
        self.stall = 0.0
        """Seconds that the last save kept training waiting."""

    def __enter__(self) -> Self:
        self._session = open_session(self._storage, self._schedule, take_over=self._take_over)
        self._schedule = self._session.schedule
        ranks = self._session.ranks
        try:
            self._client = WorkerClient(
                self._session.socket,
                round=self._session.round,
                rank=ranks.rank,
                local_rank=ranks.local_rank,
            )
        except CheckpointsError as error:
            self._session.close()
            raise SpotelasticError(str(error)) from error
        self._losses = Losses(self._client.page)
        self._client.page.enter(0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        session, client, losses = self._session, self._client, self._losses
        assert session is not None and client is not None and losses is not None
        try:
            if kind is None:
                self._finish(session, client)
                losses.finish()
        finally:
            client.leave(clean=kind is None)
            session.close()

    def restore(self) -> int:
        """Load the exact state that this round resumes from; its step, 0 on a fresh run."""
        session, client = self._entered()
        self._restored = True
        resume = session.resume
        if resume.kind == "fresh":
            return 0
        try:
            restore_set = client.fetch(resume, RESTORE_WITHIN)
        except CheckpointsError as error:
            raise SpotelasticError(f"cannot resume from step {resume.step}: {error}") from error
        restored = Restored(restore_set)
        restored.load(self._state)
        self._restore_randomness(session, restored)
        client.restored(restore_set)
        client.page.enter(resume.step)
        self._last_step = self._last_committing = resume.step
        if resume.kind == "memory":
            self._last_committing = 0
        return resume.step

    def step(self, step: int, loss: Any = None) -> None:
        """Step `step` is done. Saves when due; at an agreed step, waits there to be told more."""
        session, client = self._entered()
        assert self._losses is not None
        if not self._restored and session.resume.kind != "fresh":
            raise UsageError("call checkpoint.restore() before the first checkpoint.step(...)")
        self._losses.publish(step, loss, time.time())
        at_target = client.page.target == step
        self._last_step = step
        if self._saver is None:
            self._plan(session, client)
        commit = at_target or _falls_on(step, self._schedule.checkpoint_every)
        if commit or _falls_on(step, self._schedule.snapshot_every):
            slot = self._save(step, waiting=at_target, due=at_target)
            if commit and slot is not None:
                self._last_committing = step
            if at_target and slot is not None:
                client.wait(step)

    # -- saving -----------------------------------------------------------------------------------

    def _save(self, step: int, *, waiting: bool, due: bool) -> OpenSlot | None:
        """None when the save did not come about; training goes on."""
        session, client = self._entered()
        assert self._saver is not None and self._view is not None
        begun = time.perf_counter()
        if self._replan_is_due(session, step):
            self._plan(session, client)
        slot = client.open_slot(AGREED_PATIENCE if waiting or due else PATIENCE)
        if slot is None:
            if waiting or due:
                client.complain(f"rank {session.ranks.rank}: no free slot for step {step}")
            return None
        try:
            if not self._view.current():
                self._view = self._whole_view(session)
                self._saver.follow(self._view)
            self._saver.save(slot, step, due=due)
        except LayoutChanged as change:
            self._ask_for_a_plan(session, client, step, change)
            return None
        client.sealed(slot, step, waiting=waiting, due=due)
        self.stall = time.perf_counter() - begun
        return slot

    def _plan(self, session: Session, client: WorkerClient) -> None:
        """All ranks at the same step: gather what everybody has."""
        self._view = self._whole_view(session)
        self._saver = Saver(session.ranks, self._view, session.round)
        self._plans += 1
        try:
            client.prepare(self._saver.nbytes)
        except ArenaFull as error:
            raise EnvironmentFailure(str(error)) from error

    def _whole_view(self, session: Session) -> View:
        view = self._state.view()
        own = (
            _own_cell("step", lambda: self._last_step),
            _own_cell("seed", torch.initial_seed),
            _own_cell(f"rng-{session.ranks.rank}", randomness.capture, session.ranks.rank),
        )
        return replace(view, cells=(*view.cells, *own))

    def _ask_for_a_plan(
        self, session: Session, client: WorkerClient, step: int, change: LayoutChanged
    ) -> None:
        """This save is incomplete. At the next one, which all ranks reach, all plan anew."""
        client.complain(f"step {step} was not saved: {change}; the next save will be")
        if session.ranks.group is None:
            self._plan(session, client)
        else:
            _default_store().set(self._plan_key(session), str(step))

    def _replan_is_due(self, session: Session, step: int) -> bool:
        """Whether a rank asked at an earlier step. Steps depend on each other through training's
        own collectives, so that what was asked for before this step is seen by all now."""
        if session.ranks.group is None:
            return False
        store, key = _default_store(), self._plan_key(session)
        return bool(store.check([key])) and int(store.get(key)) < step

    def _plan_key(self, session: Session) -> str:
        return f"spotelastic/{session.round}/plan-{self._plans}"

    def _finish(self, session: Session, client: WorkerClient) -> None:
        """The last step is what the run was for: it is committed before we leave."""
        if self._saver is None:
            return
        if self._last_committing != self._last_step:
            self._save(self._last_step, waiting=False, due=True)
        if not client.flush(COMMIT_WITHIN) and session.ranks.local_rank == 0:
            print(
                f"spotelastic: step {self._last_step} could not be committed",
                file=sys.stderr,
                flush=True,
            )

    # -- restoring --------------------------------------------------------------------------------

    def _restore_randomness(self, session: Session, restored: Restored) -> None:
        rank = session.ranks.rank
        state = None
        if restored.world_size == session.ranks.world_size:
            state = restored.own_value(f"rng-{rank}")
        if state is not None:
            randomness.apply(state)
        else:
            randomness.derive(restored.own_value("seed"), restored.step, rank)

    def _entered(self) -> tuple[Session, WorkerClient]:
        if self._session is None or self._client is None:
            raise UsageError(
                "use the Checkpointer as a context: with se.Checkpointer(state) as ..."
            )
        return self._session, self._client


def _falls_on(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _own_cell(name: str, get: Any, rank: int = SHARED) -> Cell:
    return Cell(f"{OWN}.{name}", (OWN, name), get, rank)


def _default_store() -> Any:
    return dist.distributed_c10d._get_default_store()
