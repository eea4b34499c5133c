"""Compares a checkpoint with a state by names, types and shapes, and describes the differences."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from spotelastic import torch_names

Path = tuple[str | int, ...]
"""The keys that lead to an entry in the nested state dict."""

_COMPILED = f"{torch_names.WRAPPERS['OptimizedModule']}."
WRAPPERS = "module.", _COMPILED
"""Prefixes of names that DDP and torch.compile add; torch.distributed.checkpoint removes them."""


class Kind(NamedTuple):
    """What a name stands for: a tensor, by its dtype and global shape, or a pickled value."""

    dtype: str = ""
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}" if self.dtype else "a value"


class Misfit(NamedTuple):
    """Why a checkpoint does not fit a rank's state, or that of several ranks."""

    missing: tuple[str, ...] = ()
    """Names that only the state has."""
    unexpected: frozenset[str] = frozenset()
    """Names that only the checkpoint has."""
    changed: tuple[tuple[str, str], ...] = ()
    """Names of what has another type or shape, with both."""

    def __str__(self) -> str:
        said = []
        if self.missing:
            said.append(f"{_first(self.missing)} {_is(self.missing)} missing from it")
        if self.unexpected:
            said.append(f"it also holds {_first(sorted(self.unexpected))}")
        if self.changed:
            name, how = self.changed[0]
            said.append(f"{name} is {how}{_more(self.changed)}")
        return "; ".join(said)


def misfit_of(here: Mapping[str, Kind], there: Mapping[str, Kind]) -> Misfit:
    """Compare the state that is to be filled, `here`, with what was saved, `there`."""
    if here == there:
        return Misfit()
    changed = [name for name in here if name in there and here[name] != there[name]]
    return Misfit(
        tuple(name for name in here if name not in there),
        frozenset(there.keys() - here.keys()),
        tuple((name, f"{there[name]} there and {here[name]} here") for name in changed),
    )


def misfit_of_all(found: Sequence[Misfit]) -> Misfit:
    """Combine what does not fit each rank.

    What one rank misses is missing. Only what no rank knows is unexpected: pipeline stages have
    other names on each rank.
    """
    return Misfit(
        tuple(dict.fromkeys(name for each in found for name in each.missing)),
        frozenset.intersection(*(each.unexpected for each in found)),
        tuple(dict(entry for each in reversed(found) for entry in each.changed).items()),
    )


def _first(names: Sequence[str]) -> str:
    return names[0] + _more(names)


def _more(names: Sequence[object]) -> str:
    return f" (and {len(names) - 1:,} more)" if len(names) > 1 else ""


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def is_numbered(path: Path) -> bool:
    """Return whether this is part of an optimizer's state that is saved by number."""
    return len(path) > 3 and path[1] == "state" and str(path[2]).isdecimal()


def without_compiler(name: str) -> str:
    """Return a name without what torch.compile adds to it.

    DCP leaves it in the names of what is compiled within an activation checkpoint.
    """
    return name.replace(_COMPILED, "") if _COMPILED in name else name


def is_compiled(path: Path) -> bool:
    """Return whether the name has what `without_compiler` leaves out."""
    return any(isinstance(key, str) and _COMPILED in key for key in path)


def is_wrapped(path: Path) -> bool:
    """Return whether the name has the prefix of a wrapper."""
    return len(path) > 1 and str(path[1]).startswith(WRAPPERS)


def renamed(
    path: Path,
    parameters: Mapping[str, Sequence[str]],
    models: Collection[str],
    compiled: Collection[str],
) -> Path:
    """Return the name that an entry has in this state.

    `parameters` has the names of optimizers' parameters in the order of their numbers. Wrappers'
    prefixes are removed from the names of `models`, and what torch.compile adds from those of
    entries that may be `compiled`.
    """
    name = str(path[0])
    if name in compiled:
        path = tuple(without_compiler(key) if isinstance(key, str) else key for key in path)
    if name in parameters and is_numbered(path):
        number, names = int(path[2]), parameters[name]
        # A number too high keeps its name, so that it is reported as unexpected.
        return (name, "state", names[number], *path[3:]) if number < len(names) else path
    if name in models and is_wrapped(path):
        return (name, _bare(str(path[1])), *path[2:])
    return path


def _bare(name: str) -> str:
    while name.startswith(WRAPPERS):
        name = name.partition(".")[2]
    return name
