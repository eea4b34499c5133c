"""Finds the variables that a training loop carries from step to step, and that nobody saves.

    before = carried(frame, state)
    ...
    changed(before, carried(frame, state))  ->  {"rng": "numpy Generator", "best": "float"}

A restart loses these. They are looked for in the script's own functions that are being executed, by
the names that `loop_names` finds. What belongs to the Checkpointer's state is left out, and so are
values that tell nothing: modules, data sets. Of an iterator nobody can tell where it is, only that
it is there.
"""

import sys
import sysconfig
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import IOBase
from types import FrameType, FunctionType
from typing import Any

import torch

from spotelastic import torch_names
from spotelastic.model.in_place import SCHEDULER
from spotelastic.training.rehearsal import loop_names
from spotelastic.training.rehearsal.fingerprint import LONG, SHOWN
from spotelastic.training.state.generators import SavedGenerator, is_generator
from spotelastic.training.state.rank_agreement import digest_of_value

LARGE = 16 << 20
"""Bytes above which an array is not looked at."""
RECENT = 60.0
"""Seconds up to which a number that a clock has shown is known as such."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_INNER = ("module", torch_names.WRAPPERS["OptimizedModule"], "optimizer", "_optimizer", "scheduler")
"""Where wrappers have what they wrap."""
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_OURS = "spotelastic."
_QUEUES = ("queue", "_queue", "multiprocessing")


@dataclass(frozen=True, slots=True)
class Variable:
    """The value of a variable at one moment."""

    kind: str
    """Its type, as people call it: "int", "numpy Generator"."""
    digest: str
    """Empty where nothing tells whether it has changed: it hands out something else each time."""
    shown: str = ""
    """The value; empty where that is too long."""


def carried(frame: FrameType | None, state: Mapping[str, Any]) -> dict[str, Variable]:
    """Return what the script's loops carry outside of the state, from this frame outwards."""
    known = _KnownState(state)
    found: dict[str, Variable] = {}
    while frame is not None:
        code = frame.f_code
        if is_of_script(frame.f_globals.get("__name__", ""), code.co_filename):
            names = loop_names.names_at(
                code.co_filename, code.co_name, code.co_firstlineno, frame.f_lineno
            )
            shared = loop_names.names_at(code.co_filename, "<module>", 1, 0)
            for name in sorted({*names, *shared}):
                first, _, attribute = name.partition(".")
                values = frame.f_locals if first in frame.f_locals else frame.f_globals
                if attribute:  # such as `data.level += 1`
                    values = _attribute(first, attribute, values.get(first), known)
                if name in values and name not in found and not name.startswith("__"):
                    found.update(_described(name, values[name], known))
        frame = frame.f_back
    return found


def changed(before: Mapping[str, Variable], after: Mapping[str, Variable]) -> dict[str, str]:
    """Return the variables that have changed in between, with their kinds."""
    return {
        name: each.kind
        for name, each in after.items()
        if name in before and before[name].digest != each.digest
    }


def is_of_script(module: str, file: str) -> bool:
    """Return whether code is the script's own: neither a library's nor spotelastic's."""
    if not file or file.startswith("<") or module.startswith(_OURS):
        return False
    return not file.startswith(_LIBRARIES) or module == "__main__"


class _KnownState:
    """What belongs to the state: the objects in it, and its values by name."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.ids: set[int] = {id(state)}
        self.values: dict[str, Any] = {}
        for name, value in state.items():
            self._add(name, value, 3)

    def _add(self, name: str, value: Any, deep: int) -> None:
        if not isinstance(value, _PLAIN):
            self.ids.add(id(value))
        self.values[name] = value
        if isinstance(value, torch.nn.Module):
            self.ids.update(map(id, value.modules()))
            self.ids.update(map(id, value.parameters()))
            self.ids.update(map(id, value.buffers()))
        elif isinstance(value, Mapping) and deep:
            for key, each in value.items():
                self._add(str(key), each, deep - 1)
        for inner in _wrapped(value) if deep else ():
            self._add(name, inner, deep - 1)
        if deep and type(value).__module__.startswith(_OURS) and hasattr(value, "value"):
            self._add(name, value.value, deep - 1)  # `se.PerRank`

    def has(self, name: str, value: Any, deep: int = 3) -> bool:
        """Return whether a variable is in the state: the object, or a value of this name."""
        if id(value) in self.ids and not isinstance(value, _PLAIN):
            return True
        if isinstance(value, torch.nn.Module):
            tensors = [*value.parameters(), *value.buffers()]
            return bool(tensors) and all(id(each) in self.ids for each in tensors)
        attribute = name.rpartition(".")[2]
        if isinstance(value, _PLAIN) and attribute in self.values:
            return type(self.values[attribute]) is type(value) and self.values[attribute] == value
        return deep > 0 and any(self.has(name, each, deep - 1) for each in _wrapped(value))


def _wrapped(value: Any) -> Iterator[Any]:
    """Yield what a wrapper wraps: a scheduler, which also has an optimizer, does not wrap that."""
    own = getattr(value, "__dict__", {})
    for name in _INNER:
        is_other = name == "optimizer" and not isinstance(value, torch.optim.Optimizer)
        if own.get(name) is not None and not is_other:
            yield own[name]


def _attribute(name: str, attribute: str, owner: Any, known: _KnownState) -> dict[str, Any]:
    """Return an attribute of a variable by its whole name, unless the state has its owner."""
    own = getattr(owner, "__dict__", {})
    if attribute not in own or type(owner).__module__.startswith(_OURS) or known.has(name, owner):
        return {}
    return {f"{name}.{attribute}": own[attribute]}


def _described(
    name: str, value: Any, known: _KnownState, deep: int = 1
) -> Iterator[tuple[str, Variable]]:
    if known.has(name, value) or type(value).__module__.startswith(_OURS):
        return
    content = _content(value)
    if content is not None:
        digest = digest_of_value(content)
        if digest is not None:
            shown = repr(value) if isinstance(value, _PLAIN) else ""
            yield (
                name,
                Variable(_kind(value), digest.hex(), shown if len(shown) <= SHOWN else ""),
            )
        return
    is_queue = type(value).__module__.partition(".")[0] in _QUEUES
    if is_queue or (isinstance(value, Iterator) and not isinstance(value, IOBase)):
        yield name, Variable(_kind(value), "")
        return
    own = value if isinstance(value, FunctionType) else type(value)
    file = getattr(sys.modules.get(own.__module__), "__file__", None) or ""
    if not deep or isinstance(value, type) or not is_of_script(own.__module__, file):
        return
    counted = set(vars(own)) if own is value else loop_names.changed_attributes(file, own.__name__)
    for key, each in getattr(value, "__dict__", {}).items():
        if key in counted or not isinstance(each, (*_PLAIN, torch.Tensor)):
            yield from _described(f"{name}.{key}", each, known, deep - 1)


def _content(value: Any) -> Any:
    """Return what there is to compare of a value; None where nothing tells."""
    kind = type(value)
    if isinstance(value, _PLAIN):
        return None if _is_time(value) else (value,)
    if isinstance(value, torch.Tensor):
        return (value.detach(),) if value.nbytes <= LARGE else None
    if isinstance(value, _CONTAINERS):
        few = len(value) <= LONG
        return [*value.items()] if few and isinstance(value, dict) else [*value] if few else None
    if is_generator(value):
        return SavedGenerator(value).state_dict()
    if kind.__module__.startswith("numpy"):
        return value if getattr(value, "nbytes", LARGE + 1) <= LARGE else None
    if kind.__module__ == "itertools" and kind.__name__ == "count":
        return repr(value)
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        try:
            held = value.state_dict()
        except Exception:  # an object of any class may raise anything
            return None
        # A module that is as large as the model costs as much as saving it.
        return held if _bytes(held) <= LARGE else None
    return None


def _is_time(value: Any) -> bool:
    """Return whether a number is what a clock has shown of late. It differs whatever happens."""
    clocks = time.time, time.monotonic
    return isinstance(value, float) and any(0 <= now() - value < RECENT for now in clocks)


def _bytes(held: Any) -> int:
    if isinstance(held, torch.Tensor):
        return held.nbytes
    if isinstance(held, Mapping):
        return sum(_bytes(each) for each in held.values())
    return sum(map(_bytes, held)) if isinstance(held, list | tuple) else 0


def _kind(value: Any) -> str:
    kind = type(value)
    if isinstance(value, torch.optim.lr_scheduler.LRScheduler):
        return SCHEDULER
    package = kind.__module__.partition(".")[0]
    named = package in ("numpy", "torch") and not isinstance(value, torch.nn.Module)
    return f"{package} {kind.__name__}" if named else kind.__name__
