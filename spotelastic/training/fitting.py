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


def misfit(here: Mapping[str, Kind], there: Mapping[str, Kind]) -> str:
    """The first of everything that differs; empty where the checkpoint fits.

    `here` is the state that is to be filled, `there` what was saved.
    """
    if here == there:
        return ""
    missing = [name for name in here if name not in there]
    unexpected = sorted(there.keys() - here.keys())
    changed = [name for name in here if name in there and here[name] != there[name]]
    said = []
    if missing:
        said.append(f"{_first(missing)} {_is(missing)} missing from it")
    if unexpected:
        said.append(f"it also holds {_first(unexpected)}")
    if changed:
        name = changed[0]
        said.append(f"{name} is {there[name]} there and {here[name]} here{_more(changed)}")
    return "; ".join(said)


def _first(names: Sequence[str]) -> str:
    return names[0] + _more(names)


def _more(names: Sequence[str]) -> str:
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
