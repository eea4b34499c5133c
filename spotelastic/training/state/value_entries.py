"""Defines a state's pickled values, and names those that spotelastic adds to a script's own.

Spotelastic adds the containers of entries (their structure), the classes of optimizers and what
each rank keeps for itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spotelastic_checkpoints.format.layout import SHARED

from spotelastic.training.state.chunks import Key
from spotelastic.training.state.compatibility import Path
from spotelastic.training.state.per_rank import PerRank

OWN = "spotelastic"
"""First part of the names of values that spotelastic adds to the state."""
PER_RANK = "per-rank"
"""Second part of the names of `se.PerRank` entries."""
BY_ITSELF = "by-itself"
"""Second part of the names of values with the parameters of an optimizer that saves itself."""
CLASS = "class"
"""Second part of the names of values that tell the class of any other optimizer."""

CONTAINERS = "containers"
"""Second part of the names of values with the containers in an optimizer's options and state."""
STRUCTURE = "structure"
"""Second part of the names of values that have the containers of an entry."""
EXACT = "exact"
"""Second part of the name of a value that says that structures tell all that tensors are."""


@dataclass(frozen=True, slots=True)
class ValueEntry:
    """A value that is pickled at each save."""

    fqn: str
    path: Path
    get: Callable[[], Any]
    """Returns the value as it is now."""
    rank: int = SHARED
    """The rank that it belongs to, or `SHARED`."""

    @property
    def key(self) -> Key:
        """Identifies the value within the state."""
        return self.fqn, ()

    @property
    def is_of_script(self) -> bool:
        """Whether the script's state decides about it, and not spotelastic alone."""
        return self.path[0] != OWN or self.path[1] in (STRUCTURE, PER_RANK, CONTAINERS)

    @property
    def shown(self) -> str:
        """The name that a user knows it by."""
        return self.fqn.removeprefix(f"{OWN}.{STRUCTURE}.")


def per_rank_name(name: str, rank: int) -> str:
    """Return the full name of a rank's `se.PerRank` entry."""
    return f"{OWN}.{PER_RANK}.{name}.{rank}"


def per_rank_entry(name: str, own: PerRank[Any], rank: int) -> ValueEntry:
    """Return a value with a name that only this rank has.

    As with parts of a sharded tensor, all of them together make a whole.
    """
    return own_entry(lambda: own.saved(name), PER_RANK, name, str(rank))


def own_entry(get: Callable[[], Any], *path: str, rank: int = SHARED) -> ValueEntry:
    """Return a value that spotelastic adds, with the rest of its path."""
    return ValueEntry(".".join((OWN, *path)), (OWN, *path), get, rank)


def class_name(value: object) -> str:
    """Return the full name of an object's class."""
    return f"{type(value).__module__}.{type(value).__qualname__}"
