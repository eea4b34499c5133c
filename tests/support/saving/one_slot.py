"""Saves a state into one slot and loads it from there, without a daemon."""

from dataclasses import replace as replace_view
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from spotelastic_checkpoints.memory.arena import HEADER, Slot, slot_bytes
from spotelastic_checkpoints.protocol.worker_client import OpenSlot
from spotelastic_checkpoints.restore.contents import Contents
from spotelastic_checkpoints.types import RestoreSet, Resume

from spotelastic.training.restore.restored import RestoreSource
from spotelastic.training.runtime.session import Ranks
from spotelastic.training.save.overlap import SIZES, OverlapSizes
from spotelastic.training.save.saver import Saver
from spotelastic.training.state import growth
from spotelastic.training.state.chunks import PIECE
from spotelastic.training.state.state import State, StateView

ALONE = Ranks(0, 1, 0, "n")


class OneSlot:
    def __init__(
        self,
        path: Path,
        values: dict[str, Any],
        *,
        piece: int = PIECE,
        sizes: OverlapSizes = SIZES,
        ranks: Ranks = ALONE,
    ) -> None:
        self.ranks = ranks
        self._path = path
        self._state = State(values, piece=piece)
        self._sizes = sizes
        growth.begin(self._state)
        self.plan()

    def plan(self) -> None:
        self.view = self._whole_view()
        self.saver = Saver(self.ranks, self.view, "round", self._sizes)
        self._path.write_bytes(bytes(max(self.saver.nbytes, slot_bytes(0, b"", 0))))

    def _whole_view(self) -> StateView:
        view = self._state.view()
        changed = growth.changes(self._state, growth.begin(self._state))
        return replace_view(view, entries=(*view.entries, *changed))

    def save(self, step: int, *, overlaps: bool = False) -> None:
        """As a `Checkpointer` does. Raises `LayoutChanged`."""
        if not self.view.current():
            view = self._whole_view()
            self.saver.follow(view)
            self.view = view
        slot = OpenSlot(Slot(self._path), "test", known=False)
        copying = self.saver.begin(slot, step, due=True, overlaps=overlaps)
        if copying is not None:
            copying.settle()
            assert copying.error is None


def load(path: Path, step: int, values: dict[str, Any], *, piece: int = PIECE) -> None:
    source = RestoreSet(1, step, 1, (str(path),), "", ())
    restored = RestoreSource(Contents(source), Resume("memory", step))
    state = State(values, piece=piece)
    restored.needs(state, 0)
    restored.match_groups(state)
    restored.load(state)


def stream(path: Path, step: int, values: dict[str, Any]) -> None:
    """As from a file that the daemon has fetched: what can be, is filled a window at a time."""
    slot = Slot(path)
    header = slot.header()
    assert header is not None
    items = tuple(replace(item, offset=item.offset + HEADER) for item in slot.items(header))
    source = RestoreSet(1, step, 1, (), str(path), items)
    restored, state = RestoreSource(Contents(source), Resume("store", step)), State(values)
    restored.needs(state, 0)
    restored.match_groups(state)
    for window in restored.windows():
        restored.fill(window)
    restored.load(state)
