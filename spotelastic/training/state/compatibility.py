"""Pure: whether a checkpoint is one of this state, and in which words it is not."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

Path = tuple[str | int, ...]

WRAPPERS = "module.", "_orig_mod."
"""How names begin that DDP and torch.compile give; torch.distributed.checkpoint takes it away."""


class Kind(NamedTuple):
    """What stands under a name: a tensor (its dtype's name, its global shape), or a value."""

    dtype: str = ""
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}" if self.dtype else "a value"


class Misfit(NamedTuple):
    """What keeps a checkpoint from fitting a rank's state, or those of several ranks."""

    missing: tuple[str, ...] = ()
    """Names that the state has and the checkpoint has not,"""
    unexpected: frozenset[str] = frozenset()
    """and those that the checkpoint alone has."""
    changed: tuple[tuple[str, str], ...] = ()
    """Names of what is of another kind, with how."""

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
    """`here` is the state that is to be filled, `there` what was saved."""
    if here == there:
        return Misfit()
    changed = [name for name in here if name in there and here[name] != there[name]]
    return Misfit(
        tuple(name for name in here if name not in there),
        frozenset(there.keys() - here.keys()),
        tuple((name, f"{there[name]} there and {here[name]} here") for name in changed),
    )


def misfit_of_all(found: Sequence[Misfit]) -> Misfit:
    """Of all ranks together: what one of them misses is missing, but only what none of them knows
    is unexpected. Pipeline stages have other names on each rank."""
    return Misfit(
        tuple(dict.fromkeys(name for each in found for name in each.missing)),
        frozenset.intersection(*(each.unexpected for each in found)),
        tuple(dict(entry for each in reversed(found) for entry in each.changed).items()),
    )


def misfit(here: Mapping[str, Kind], there: Mapping[str, Kind]) -> str:
    """The first of everything that differs; empty where the checkpoint fits."""
    return str(misfit_of(here, there))


def _first(names: Sequence[str]) -> str:
    return names[0] + _more(names)


def _more(names: Sequence[object]) -> str:
    return f" (and {len(names) - 1:,} more)" if len(names) > 1 else ""


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def is_numbered(path: Path) -> bool:
    """Whether it is of an optimizer's state as its own state_dict() has it."""
    return len(path) > 3 and path[1] == "state" and str(path[2]).isdecimal()


def is_wrapped(path: Path) -> bool:
    return len(path) > 1 and str(path[1]).startswith(WRAPPERS)


def renamed(path: Path, parameters: Mapping[str, Sequence[str]], models: Collection[str]) -> Path:
    """Its name here: `parameters` has the names of an optimizer's in the order of their numbers;
    from names in `models` those of wrappers are taken away."""
    name = str(path[0])
    if name in parameters and is_numbered(path):
        number, names = int(path[2]), parameters[name]
        # One more than there are keeps its name, so that it is told as not expected.
        return (name, "state", names[number], *path[3:]) if number < len(names) else path
    if name in models and is_wrapped(path):
        return (name, _bare(str(path[1])), *path[2:])
    return path


def _bare(name: str) -> str:
    while name.startswith(WRAPPERS):
        name = name.partition(".")[2]
    return name
