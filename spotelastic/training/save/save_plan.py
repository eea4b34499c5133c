"""Agrees with all ranks on what each save contains, and again whenever the state has changed."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch.distributed as dist
from spotelastic_checkpoints.errors import ArenaFull, StorageRefused
from spotelastic_checkpoints.protocol.worker_client import WorkerClient

from spotelastic.errors import EnvironmentFailure
from spotelastic.torch_names import store_of_all
from spotelastic.training.runtime import gc_pause
from spotelastic.training.runtime.round_store import tell_all
from spotelastic.training.runtime.session import WorkerSession
from spotelastic.training.save.saver import LayoutChanged, Saver
from spotelastic.training.state import growth
from spotelastic.training.state.state import State, StateView
from spotelastic.training.state.value_entries import ValueEntry

PATIENCE = 0.01
"""Seconds that a periodic save waits for a free slot; otherwise training goes on without it."""
AGREED_PATIENCE = 10.0
"""Seconds that an agreed save waits for a slot, and one whose slots are still being made.

Otherwise a state that grows from save to save would never be saved.
"""


class SavePlan:
    """What all ranks have agreed on for their saves.

    It is made at the first step, by all ranks together, and made again when a rank asks for that.
    """

    def __init__(
        self,
        state: State,
        session: WorkerSession,
        client: WorkerClient,
        added: Callable[[], Sequence[ValueEntry]],
    ) -> None:
        """Make an empty plan.

        `added` returns the values that are saved besides the script's state.
        """
        self._state, self._session, self._client = state, session, client
        self._added = added
        self._saver: Saver | None = None
        self._view: StateView | None = None
        self._count = 0
        """Number of plans that were made."""
        self.made_at = 0
        """The step of the last plan."""
        self.is_early = False
        """Whether it was made before the first step of its round."""
        self._has_room = True
        self._compared: deque[str] = deque()
        """Store keys of the last hashes of values, in the order of the saves."""

    @property
    def is_made(self) -> bool:
        """Whether there is a plan."""
        return self._saver is not None

    @property
    def saver(self) -> Saver:
        """Saves by this plan."""
        assert self._saver is not None
        return self._saver

    @property
    def view(self) -> StateView:
        """The state that is saved."""
        assert self._view is not None
        return self._view

    @gc_pause.no_collections()
    def make(self, step: int) -> None:
        """Agree on a layout with all ranks, at the same step, and ask for slots.

        Raises `UsageError` where ranks differ, and `EnvironmentFailure` where a run that never had
        slots gets none.
        """
        ranks = self._session.ranks
        # Nothing is changed before the state was accepted: the script may catch the refusal.
        view = self._whole_view()
        saver = Saver(ranks, view, self._session.round)
        if self._saver is not None:
            self._saver.close()
        self._view, self._saver = view, saver
        if not self._count and self._saver.differing and ranks.rank == 0:
            self._client.complain(
                f"buffers are not the same on all ranks ({self._saver.differing[0]}): "
                "the first rank's are saved, and restored on all"
            )
        self._count += 1
        self.made_at = step
        self._prepare()

    def find_room(self) -> bool:
        """Return whether there are slots, after asking again where there were none."""
        return self._has_room or self._prepare()

    def follow(self) -> None:
        """Use the tensors that the state has now. Raises `LayoutChanged` where they do not fit."""
        assert self._view is not None
        if not self._view.current():
            view = self._whole_view()
            self.saver.follow(view)
            self._view = view  # last: a view that was refused is followed by none

    def fits(self) -> bool:
        """Return whether the state there is now can be saved by the plan."""
        try:
            self.follow()
        except LayoutChanged:
            return False
        return True

    def compare_values(self, step: int, take: int = 0) -> None:
        """Check that values which changed since the plan are still the same on all ranks.

        The first rank that saves a step leaves its hash in the store, and the others compare
        theirs. Raises `LayoutChanged` where they differ. All ranks then plan again at the next
        save, which names the difference.
        """
        if self._session.ranks.group is None or has_left_group(self._session):
            return
        store, key = store_of_all(), f"{self._key}-values-{step}-{take}"
        own = self.saver.hash_of_values()
        if store.compare_set(key, "", own).decode() != own:
            raise LayoutChanged("values are not the same on all ranks")
        if self._session.ranks.rank == 0:
            self._compared.append(key)
            if len(self._compared) > 2:  # ranks are never two saves apart
                store.delete_key(self._compared.popleft())

    def ask_again(self, step: int, change: LayoutChanged) -> None:
        """Report a step that was not saved, and ask all ranks to plan again at the next save."""
        if self._session.ranks.group is None or has_left_group(self._session):
            self._client.complain(f"step {step} was not saved: {change}")
            return
        self._client.complain(f"step {step} was not saved: {change}; the next save tries again")
        tell_all(self._key, str(step))

    def is_asked_for(self, step: int) -> bool:
        """Return whether a rank asked for a new plan at an earlier step.

        Steps depend on each other through training's own collectives. So what was asked for before
        this step had arrived before, and is visible to all ranks now. A rank that has left the
        process group does not plan any more.
        """
        if self._session.ranks.group is None or has_left_group(self._session):
            return False
        store, key = store_of_all(), self._key
        return bool(store.check([key])) and int(store.get(key)) < step

    def close(self) -> None:
        """Stop using slots, and hold nothing of the state any more."""
        if self._saver is not None:
            self._saver.close()
        self._saver = self._view = None

    def _prepare(self) -> bool:
        """Ask for slots, and return whether there are any.

        A run that never had any is refused. One that has outgrown its memory trains on.
        """
        had_room, self._has_room = self._has_room, False
        try:
            self._client.prepare(self.saver.nbytes, self.saver.look_at)
        except (ArenaFull, StorageRefused) as error:
            if self._count == 1:
                raise EnvironmentFailure(str(error)) from error
            if had_room:
                self._client.complain(f"nothing is saved until there is room: {error}")
            return False
        self._has_room = True
        return True

    def _whole_view(self) -> StateView:
        view = self._state.view()
        changed = growth.changes(self._state, growth.begin(self._state))
        return replace(view, entries=(*view.entries, *changed, *self._added()))

    @property
    def _key(self) -> str:
        """Store key by which a rank asks for the plan after this one."""
        return f"spotelastic/{self._session.round}/plan-{self._count}"


def has_left_group(session: WorkerSession) -> bool:
    """Return whether the script has destroyed its process group before leaving the Checkpointer."""
    return session.ranks.group is not None and not dist.is_initialized()
