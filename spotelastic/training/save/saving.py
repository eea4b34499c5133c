"""Decides when a Checkpointer saves, and saves: what all its loops have in common."""

import functools
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from spotelastic_checkpoints import crash_points
from spotelastic_checkpoints.commit.first_save import FirstSave, key
from spotelastic_checkpoints.protocol.worker_client import OpenSlot, WorkerClient
from spotelastic_checkpoints.types import Resume

from spotelastic.errors import UsageError
from spotelastic.model.in_place import FINGERPRINT
from spotelastic.training.runtime import last_step, step_numbers
from spotelastic.training.runtime.conditions import has_virtual_ranks
from spotelastic.training.runtime.session import Ranks, WorkerSession
from spotelastic.training.save.beside import Beside
from spotelastic.training.save.save_plan import AGREED_PATIENCE, PATIENCE, SavePlan, has_left_group
from spotelastic.training.save.saver import LayoutChanged
from spotelastic.training.state import rank_agreement, values
from spotelastic.training.state.fingerprint import fingerprint, own_sums
from spotelastic.training.state.lasting import Lasting
from spotelastic.training.state.state import State, StateView

ALONE_WITHIN = 1.0
"""Seconds in which a rank whose peers are gone waits for a slot. An older save gives up its own."""
COMMIT_WITHIN = 120.0
"""Seconds that `wait` waits for a commit, and that the last save goes on without another byte."""


class Saving:
    """The part of a Checkpointer that saves."""

    _session: WorkerSession | None = None
    _client: WorkerClient | None = None
    _plan: SavePlan | None = None
    _process = 0
    """Id of the process that has entered. A process forked from it must not use the client."""
    _last_step = 0
    _told_step = 0
    """The last step that the script has reported in this round; 0 before the first."""
    _saved_step = 0
    """The last step that was saved in this round."""
    _last_committing = 0
    """The last step that was saved to be committed, or restored from a commit."""
    _slot: OpenSlot | None = None
    """The slot of the last save; None where the last step was restored."""
    _take = 0
    """How often the state of the last step was changed after a save of it, and saved again."""
    _changes_told = 0
    """The last step of which it was told that the state has changed since its save."""
    _from_memory: Resume | None = None
    """Where in memory all ranks have restored what they have, until it is saved again."""
    _holds = False
    """Whether the save of the last step waits for what the script does after its loop."""

    def __init__(self, state: State, beside: Beside, agree: Callable[[Ranks], None]) -> None:
        """`agree` has ranks agree on the run's seed."""
        self._state, self._beside, self._agree_on_seed = state, beside, agree

    def _save_if_due(
        self, step: int, session: WorkerSession, client: WorkerClient, *, agreed: bool
    ) -> None:
        """Save a step where the schedule, or an agreement of all ranks, says so."""
        if agreed and self._slot is not None and self._last_committing == step:
            client.wait(step)  # what a script that counts a step twice has changed is no part of it
            return
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
        alone: bool = False,
    ) -> bool:
        """Save a step. Returns False when that was not possible; training goes on.

        `patience` are the seconds to wait for a slot, and `due` says that the save is to be
        committed. `waiting` marks the save at an agreed step, where all ranks wait, and `planned`
        one for which a plan has just been made. Older saves make room for an `urgent` one. With
        `overlaps`, training need not wait for all of the copy. Where a rank is `alone`, nothing is
        asked of the other ranks or of their store, which may be gone without an answer.
        """
        session, client, plan = self._entered()
        begun = time.perf_counter()
        self._settle(client)
        # The copy would wait as well: a rank's host may be steps ahead of its device.
        plan.saver.wait()
        if not alone and plan.is_asked_for(step):
            self._make_plan(plan)
        if not plan.find_room():
            return False
        if not alone and plan.made_at == step:
            patience = AGREED_PATIENCE
        slot = client.open_slot(patience, urgent=urgent)
        if slot is None:
            if patience == AGREED_PATIENCE:
                client.complain(f"rank {session.ranks.rank}: no free slot for step {step}")
            return False
        try:
            plan.follow()
            # At an agreed step all ranks wait for each other, so none may leave the save out alone.
            if not waiting and not alone:
                plan.compare_values(step, self._take)
            if due:
                self._note_first(plan, step, Path(slot.path).parent)
            copying = plan.saver.begin(
                slot,
                step,
                due=due,
                overlaps=overlaps and self._beside.wanted,
                take=self._take,
                sealed=lambda: client.sealed(slot, step, waiting=waiting, due=due),
            )
        except LayoutChanged as change:
            if alone:
                return False
            if session.ranks.group is None and not planned:  # there is no other rank to agree with
                self._make_plan(plan)
                again = functools.partial(self._save, step, patience, due=due, waiting=waiting)
                return again(planned=True, urgent=urgent, overlaps=overlaps)
            plan.ask_again(step, change)
            return False
        self._beside.begun(client, copying, time.perf_counter() - begun)
        self._saved_step, self._slot = step, slot
        if due:
            self._last_committing = step
        if copying is not None:
            crash_points.reached("overlap-begun")
        return True

    def _note_first(self, plan: SavePlan, step: int, arena: Path) -> None:
        """Note what this rank has at the first save of a run: that commit is read back."""
        session, *_ = self._entered()
        if session.resume.kind == "fresh" and not self._last_committing:
            with suppress(OSError):  # without room for it the commit is not proven, but made
                first_save_note(plan.view, session.ranks.rank, step).leave(arena)

    def _commit_step(self, *, urgent: bool = False) -> bool:
        """Save the last step to be committed, unless it was.

        All ranks call this. Returns False if that was not possible, or if the state was changed
        since: that is told.

        What ranks have saved of a step is put together, whenever they saved it. So it must never
        happen that one rank's part is of before a change, and another's of after it. All ranks ask
        whether anybody's state is not what that rank has saved. If it is on none, it does not
        matter when each has saved. Otherwise all save it once more, under another layout; but not
        what all have saved to be committed: a commit never changes, as others may be restoring it.
        """
        session, client, plan = self._entered()
        step = self._last_step
        changed = self._changed(plan, step)
        known = self._slot is not None and self._last_committing == step
        alone = has_left_group(session)
        told = [(known, changed)] if alone else session.ranks.gather((known, changed))
        differs = any(changed for _, changed in told)
        if differs and all(known for known, _ in told):
            if changed and self._changes_told != step:
                self._changes_told = step
                client.complain(
                    f"rank {session.ranks.rank}: {changed} was changed after step {step} had been "
                    f"saved, and is not in its checkpoint: count the change as a step of its own, "
                    f"as with checkpoint.step({step + 1}), and it is saved"
                )
            return False
        if differs:
            self._take, self._last_committing, known = self._take + 1, 0, False
        return known or self._save(step, AGREED_PATIENCE, due=True, urgent=urgent)

    def _changed(self, plan: SavePlan, step: int) -> str:
        """Return the name of something that is not as this rank has saved it; empty if all is."""
        if self._slot is None or self._saved_step != step:
            return ""
        plan.saver.wait()
        try:
            plan.follow()
            return plan.saver.differs(self._slot, step)
        except (LayoutChanged, UsageError) as error:
            return str(error).partition(" ")[0]

    def _save_held(self) -> None:
        """Make the save that waited for what the script has done after a loop, if it is due."""
        holds, self._holds = self._holds, False
        if holds:
            session, client, _ = self._entered()
            self._save_if_due(self._last_step, session, client, agreed=False)

    def _save_restored(self) -> None:
        """Save a step that all ranks have restored from memory, if a lost node would end that.

        It must never happen that a second loss takes what the first has left. The shards of a lost
        node are with its partner alone, and those of its partners with these alone; who has come
        has nothing. With this save each node holds its own part of the state that there is now,
        and its partner copies that, whenever the next snapshot is due. A state that keeps itself
        may be ahead of what was restored.
        """
        session, _, plan = self._entered()
        source = self._from_memory
        if source is not None and self._saved_step != self._last_step:
            nodes = {*session.ranks.gather(session.ranks.node)}
            lasts = any(isinstance(each, Lasting) for each in self._state.values.values())
            if len(nodes) > 1 and not lasts and not source.outlives_any_of(nodes):
                self._make_plan(plan)
                plan.is_early = True
                self._save(self._last_step, AGREED_PATIENCE, due=False)
        self._from_memory = None

    def _see_to_plan(self, plan: SavePlan) -> None:
        """Plan with all ranks if there is no plan, or if an early one does not fit.

        An early plan is from before the first step; it may not fit what scripts have made of their
        state since.
        """
        early, plan.is_early = plan.is_early, False
        if (early and any(self._entered()[0].ranks.gather(not plan.fits()))) or not plan.is_made:
            self._make_plan(plan)

    def _save_alone(self) -> None:
        """Save this rank's part of the last step into this node's memory, if there is a plan."""
        _, client, plan = self._entered()
        self._settle(client)
        if plan.is_made and self._saved_step != self._last_step > 0:
            self._save(self._last_step, ALONE_WITHIN, due=False, urgent=True, alone=True)

    def _settle(self, client: WorkerClient) -> None:
        """Wait until the save that is being copied is sealed, or has failed."""
        if not self._beside.settle(client):
            self._saved_step = self._last_committing = 0

    def _make_plan(self, plan: SavePlan) -> None:
        """Agree with all ranks on what is saved, and see to it that optimizers wait for copies."""
        assert self._session is not None
        self._agree_on_seed(self._session.ranks)
        plan.make(self._last_step)
        if self._beside.wanted and plan.view.optimized:
            self._beside.protect()

    def _finish(self, session: WorkerSession, client: WorkerClient, plan: SavePlan) -> None:
        """Save and commit the last step, which is what the run was for, before the script ends."""
        if self._last_step and not self._told_step:
            last_step.tell_nothing_was_left(session, self._last_step)
        if not plan.is_made:
            # The last step may have been restored from memory, and never been committed.
            if has_left_group(session) or self._last_committing == self._last_step:
                self._tell_fingerprint(session, client)
                return
            self._make_plan(plan)
        saved = self._commit_step(urgent=True) or self._last_committing == self._last_step
        if not has_left_group(session) and not all(session.ranks.gather(saved)):
            self._make_plan(plan)
            saved = self._commit_step(urgent=True)
        self._tell_fingerprint(session, client)
        last_step.await_commit(client, session.ranks, self._last_step, COMMIT_WITHIN, saved)

    def _tell_fingerprint(self, session: WorkerSession, client: WorkerClient) -> None:
        """Tell people what a run has come to whose bits do not depend on its ranks."""
        step, ranks = self._last_step, session.ranks
        if not has_virtual_ranks(self._state.values.values()):
            return
        state = self._state.view()  # by all ranks: a state_dict() may exchange something
        if state.sharded and has_left_group(session):
            return
        own = own_sums(state, leads=ranks.rank == 0)
        parts = ranks.gather(own) if state.sharded else [own]
        if ranks.rank == 0:
            its = fingerprint(parts)
            line = f"step {step}: parameters, buffers and optimizers have the fingerprint {its}"
            client.found(step, ranks.world_size, its, line, FINGERPRINT)

    def _tell(self, line: str) -> None:
        session, client, _ = self._entered()
        if session.ranks.rank == 0:
            client.complain(line)

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


def first_save_note(view: StateView, rank: int, step: int) -> FirstSave:
    """Return what this rank has in its state at the first save of a run.

    Leave it in the arena's folder before the save is sealed.
    """
    return FirstSave(
        rank,
        step,
        {name: digest or b"" for name, digest in _digests(view)},
        tuple(sys.path),
        safe_globals(),
    )


def safe_globals() -> tuple[str, ...]:
    """Return what the script lets its values refer to, each as "module:name"."""
    return tuple(_named(each) for each in torch.serialization.get_safe_globals())


def _digests(view: StateView) -> Iterator[tuple[str, rank_agreement.Digest | None]]:
    for (fqn, offsets), digest in rank_agreement.digests_of(view.chunks).items():
        yield key(fqn, offsets), digest
    for entry in view.entries:
        if entry.is_of_script:
            # What is compared is decoded here as well: on a device a tensor has another hash.
            value = values.decode(entry.shown, values.encode(entry.shown, entry.get()))
            yield entry.fqn, rank_agreement.digest_of_value(value)


def _named(allowed: Any) -> str:
    """Return what a value may refer to as "module:name"."""
    thing = allowed[0] if isinstance(allowed, tuple) else allowed
    module = inspect.getmodule(thing)
    name = getattr(thing, "__module__", None) or (module.__name__ if module else "")
    return f"{name}:{getattr(thing, '__qualname__', '')}"
