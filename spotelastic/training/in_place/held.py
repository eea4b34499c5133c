"""Finds the process groups and meshes that an object keeps, in itself or in what it is made of.

A layer may keep its group, and so may a helper of a layer, or what averages an optimizer's weights.
"""

import gc
import types
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

DEPTH = 2
"""How many objects within each other are looked into."""
MANY = 100
"""Entries up to which a container is looked into. Longer ones hold data."""
_LEAVES = (torch.Tensor, torch.nn.Module, type, str, bytes, int, float, complex, type(None))
"""What is not looked into. Modules are gone through one by one."""

_NOTHING = frozenset((bool, int, float, str, type(None), types.FunctionType))
_GROUPS = (dist.ProcessGroup, DeviceMesh)
_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))
_PASSING = (
    dict,
    list,
    tuple,
    set,
    types.CellType,
    types.CoroutineType,
    types.FrameType,
    types.FunctionType,
    types.GeneratorType,
)
"""What passes something on, without a name that a script would know it by. torch.compile() copies
a module's attributes to a function.
"""
_OURS = ("torch", "spotelastic")


class Kept(NamedTuple):
    """A place where a process group or a mesh is kept."""

    holder: Any
    """The object with the attribute."""
    name: str
    what: Any


def held(value: Any, depth: int = DEPTH) -> Iterator[Kept]:
    """Yield the groups and meshes that an object keeps in attributes, its own and its parts'.

    A model has thousands of modules, and each is looked at when a round begins. What all modules
    have is left out, and so is what can hold nothing.
    """
    known = _OF_EVERY_MODULE if isinstance(value, torch.nn.Module) else ()
    for name, kept in list(getattr(value, "__dict__", {}).items()):
        if type(kept) in _NOTHING or name in known:
            continue
        if isinstance(kept, _GROUPS):
            yield Kept(value, name, kept)
        elif depth:
            for part in _parts(kept):
                yield from held(part, depth - 1)


def keeper(group: object, known: Collection[object]) -> str:
    """Return who else keeps a group in an attribute or a module's variable; empty if nobody does.

    `known` objects are given the new group when there is one. What torch keeps belongs to the
    group. Looks at all objects of this process, which takes 50 ms for 300,000 of them.
    """
    passed = {id(each) for each in known}
    for found in gc.get_referrers(group):
        holders = [found]
        if type(found) is dict:
            if isinstance(name := found.get("__name__"), str):
                return f"a variable of {name}"
            holders = [each for each in gc.get_referrers(found) if _attributes(each) is found]
        for holder in holders:
            if id(holder) not in passed and not _passes(holder):
                return f"a {type(holder).__name__}"
    return ""


def _attributes(value: object) -> object:
    try:
        return getattr(value, "__dict__", None)
    except Exception:  # an object of the script's may refuse
        return None


def _passes(value: object) -> bool:
    return issubclass(type(value), _PASSING) or type(value).__module__.partition(".")[0] in _OURS


def _parts(kept: Any) -> list[Any]:
    found = [kept]
    if isinstance(kept, dict):
        found = [*kept.values()] if len(kept) <= MANY else []
    elif isinstance(kept, list | tuple):
        found = [*kept] if len(kept) <= MANY else []
    return [part for part in found if not isinstance(part, _LEAVES)]
