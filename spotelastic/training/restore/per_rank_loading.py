"""Which of the saved `se.PerRank` entries a rank reads at a restore, and what it loads of them."""

from collections.abc import Callable, Iterable
from typing import Any

from spotelastic.training.state.compatibility import Kind, Path
from spotelastic.training.state.state import PER_RANK, State, per_rank_path


class PerRankEntries:
    """`paths` are those of the saved values that spotelastic adds to a state."""

    def __init__(self, paths: Iterable[Path], world_size: int) -> None:
        self._world_size = world_size
        """Of the ranks that saved."""
        self._saved = {path[2]: path for path in paths if path[1] == PER_RANK}
        self._all = frozenset(_joined(path) for path in paths if path[1] == PER_RANK)
        self._read: dict[str, list[str]] = {}

    @property
    def kinds(self) -> dict[str, Kind]:
        return {str(name): Kind() for name in self._saved}

    def find(self, state: State) -> list[tuple[str, str]]:
        """What this rank reads. Returns the names of what cannot be restored, with why."""
        same, refused = self._world_size == state.world_size, []
        for name, entry in state.per_rank():
            if name not in self._saved:
                continue
            if not same and entry.merge is None:
                refused.append(
                    (
                        name,
                        f"kept per rank, and was saved by {self._world_size} ranks: on "
                        f"{state.world_size} it can be restored with a function, "
                        f"se.PerRank(..., merge=...), or on {self._world_size} ranks",
                    )
                )
            ranks = (state.rank,) if same else range(self._world_size)
            self._read[name] = [_joined(per_rank_path(name, rank)) for rank in ranks]
        return refused

    @property
    def unread(self) -> frozenset[str]:
        """After `find`: names of what only other ranks read."""
        return self._all.difference(*self._read.values())

    def load(self, state: State, value_of: Callable[[str], Any]) -> None:
        """After `find`. What was not saved, as of an imported part of a state, stays as it is."""
        for name, entry in state.per_rank():
            if name not in self._read:
                continue
            saved = [value_of(fqn) for fqn in self._read[name]]
            if self._world_size == state.world_size:
                entry.load(saved[0])
            else:
                assert entry.merge is not None
                entry.load(entry.merge(saved, state.rank, state.world_size))


def _joined(path: Path) -> str:
    return ".".join(map(str, path))
