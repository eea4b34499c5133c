"""Chooses which saved `se.PerRank` entries a rank reads at a restore, and loads them."""

from collections.abc import Callable, Iterable
from typing import Any

from spotelastic.model.counting import counted
from spotelastic.training.state.compatibility import Kind, Path
from spotelastic.training.state.state import State
from spotelastic.training.state.value_entries import PER_RANK, per_rank_name


class PerRankEntries:
    """The `se.PerRank` entries of one checkpoint."""

    def __init__(self, paths: Iterable[Path], world_size: int) -> None:
        """`paths` are those of the values that spotelastic adds to a state.

        `world_size` is the number of ranks that saved it.
        """
        self._world_size = world_size
        of_ranks = [path for path in paths if path[1] == PER_RANK]
        self._saved = {path[2] for path in of_ranks}
        self._all = frozenset(".".join(map(str, path)) for path in of_ranks)
        self._read: dict[str, list[str]] = {}

    @property
    def kinds(self) -> dict[str, Kind]:
        """What was saved, by name, for a comparison with the state."""
        return {str(name): Kind() for name in self._saved}

    def find(self, state: State) -> list[tuple[str, str]]:
        """Choose what this rank reads.

        Returns the names of what cannot be restored, with the reasons.
        """
        same, refused = self._world_size == state.world_size, []
        saved_by = counted(self._world_size, "rank")
        for name, entry in state.per_rank():
            if name not in self._saved:
                continue
            if not same and entry.merge is None:
                refused.append(
                    (
                        name,
                        f"kept per rank, and was saved by {saved_by}: to restore "
                        f"it on {state.world_size}, give se.PerRank(..., merge=function), or use "
                        f"{saved_by}",
                    )
                )
            ranks = (state.rank,) if same else range(self._world_size)
            self._read[name] = [per_rank_name(name, rank) for rank in ranks]
        return refused

    @property
    def unread(self) -> frozenset[str]:
        """Names of what only other ranks read. Call `find` before."""
        return self._all.difference(*self._read.values())

    def load(self, state: State, value_of: Callable[[str], Any]) -> None:
        """Load the entries of this rank. Call `find` before.

        What was not saved stays as it is, as with an imported part of a state.
        """
        for name, entry in state.per_rank():
            if name not in self._read:
                continue
            saved = [value_of(fqn) for fqn in self._read[name]]
            if self._world_size == state.world_size:
                entry.load(saved[0])
            else:
                assert entry.merge is not None
                entry.load(entry.merge(saved, state.rank, state.world_size))
