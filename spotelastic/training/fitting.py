"""Pure: whether a checkpoint is one of this state, and in which words it is not."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple


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
