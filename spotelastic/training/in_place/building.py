"""Makes what is bound to the ranks (a sharded model, its optimizers) anew for each round.

The script gives a function for that. It is called when the ranks of a round have met, and before
they restore: at the start, and in the same process whenever nodes have come or gone.

Must never happen:

- Two models are in memory at once: one alone may fill a device. So what was built before leaves the
  state, and its memory is freed, before the function is called. The script may still hold some of
  it in its variables, so that references alone do not decide.
- The model of a round that is over is trained on: it says so where it is used.
- A mesh of a round that is over is met again, in one of torch's own caches. Meshes of as many ranks
  are equal to torch, also where this process had another rank. It would read and write another
  rank's part. Caches belong to threads, so that they cannot all be emptied: meshes of different
  rounds are made unequal.
"""

import contextlib
import functools
import gc
import re
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from spotelastic import torch_names
from spotelastic.errors import UsageError
from spotelastic.training.in_place.groups import Groups
from spotelastic.training.in_place.watching import wrapped
from spotelastic.training.runtime.patches import put_around
from spotelastic.training.state.state import State
from spotelastic.training.state.tensors import local_part

_COMPILES = re.compile(r"(?<!\bre)\.compile\b")
Build = Callable[[], Mapping[str, Any]]
"""A function of the script: returns entries of the state."""
_FSDP = "torch.distributed.fsdp"
_CACHES = "torch.distributed.tensor."
"""Modules of torch that remember meshes, which are equal if they have the same ranks."""


class Builder:
    """Calls the script's function, and knows what it has made."""

    def __init__(self, build: Build | None, state: State, groups: Groups) -> None:
        """`build` is None for scripts whose state is bound to no ranks."""
        self._build = build
        if build is not None:
            put_around(DeviceMesh, "__init__", _tell_apart)
        self._state = state
        self._groups = groups
        self._names: list[str] | None = None
        """What the function has returned; None before the first time."""
        self._was_called = False
        self._times = 0
        self._former: list[weakref.ref[Any]] = []
        """What it had made for rounds that are over, as far as the script still holds it."""

    @property
    def is_wanted(self) -> bool:
        """Whether the state has parts that are made for each round."""
        return self._build is not None

    @property
    def problem(self) -> str:
        """Return why this process cannot make them for other ranks; empty if it can."""
        return torch_names.mesh_problem() if self.is_wanted else ""

    @property
    def is_due(self) -> bool:
        """Whether they were never made."""
        return self.is_wanted and self._names is None

    @property
    def names(self) -> frozenset[str]:
        """Names of these parts in the state."""
        return frozenset(self._names or ())

    def prepare(self) -> None:
        """Import torch's compiler, if the script seems to use it.

        A process that comes does so while nobody waits for it: in the function, all ranks of the
        round would wait.
        """
        if self._build is None:
            return
        main = getattr(sys.modules["__main__"], "__file__", None)
        code = getattr(self._build, "__code__", None)
        for file in filter(None, {main, code and code.co_filename}):
            with contextlib.suppress(OSError, ValueError, ImportError):
                if compiles(Path(file).read_text()):
                    torch_names.import_compiler()

    def let_go(self) -> None:
        """Take what was built out of the state, and free its memory."""
        former = [self._state.values.pop(name, None) for name in self.names]
        for value in former:
            _empty(value)
            if isinstance(value, torch.nn.Module | torch.optim.Optimizer):
                self._former.append(weakref.ref(value))
        self._groups.built.clear()
        if self.is_wanted:
            _forget_meshes()
        if self._was_called:
            value = None
            former.clear()
            gc.collect()  # modules and their hooks hold each other, also what was made in part

    def build(self) -> None:
        """Call the function, and put what it returns into the state. All ranks call this."""
        assert self._build is not None
        ddps = {*wrapped}
        self._was_called = True
        try:
            with self._groups.building():
                made = self._build()
        except Exception as error:
            error.add_note("(raised by the function that was given to the Checkpointer as build=)")
            raise
        wrapped.difference_update({*wrapped} - ddps)  # they are made anew, not pointed elsewhere
        self._check(made)
        self._state.put(made)
        self._names, self._times = [*made], self._times + 1
        self._refuse_former()

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Names the function where what it has made does not fit the state that is restored."""
        try:
            yield
        except UsageError as error:
            if self._times < 2:
                raise
            raise UsageError(f"build= has built a different state than before: {error}") from None

    def _check(self, made: Any) -> None:
        if not isinstance(made, Mapping) or not made:
            raise UsageError(
                "build= has to return a mapping of names to what it has built, such as "
                f'{{"model": model, "optimizer": optimizer}}; it has returned {made!r:.80}'
            )
        if self._names is not None and {*made} != self.names:
            raise UsageError(
                f"build= has returned {_listed(made)}, and before that {_listed(self.names)}: it "
                "has to return the same names for all numbers of ranks"
            )
        if twice := sorted({*made} & {*self._state.values}, key=str):
            raise UsageError(
                f'state["{twice[0]}"] is built by build= as well: leave it out of the state that '
                "you give to the Checkpointer"
            )
        again = [name for name in made if any(ref() is made[name] for ref in self._former)]
        if again:
            raise UsageError(
                f'build= has returned the "{again[0]}" of the earlier ranks again: it has to build '
                "another"
            )

    def _refuse_former(self) -> None:
        """Have what the script still holds of former rounds say so when it is used."""
        kept = []
        for ref in self._former:
            value = ref()
            if isinstance(value, torch.nn.Module):
                torch_names.call_uncompiled(value)
                value.register_forward_pre_hook(_refuse, prepend=True)
            elif isinstance(value, torch.optim.Optimizer):
                value.register_step_pre_hook(_refuse)
            if value is not None:
                kept.append(ref)
        self._former = kept


def compiles(script: str) -> bool:
    """Return whether a script seems to use torch's compiler.

    If this is wrong, a process does more than it needs to, but nobody waits for that.
    """
    return _COMPILES.search(script) is not None


def _refuse(value: Any, *_: Any) -> NoReturn:
    raise UsageError(
        f"this {type(value).__name__} belongs to ranks that no longer exist: in each step, take "
        'what build= has built from the state, as in state["model"]'
    )


def _empty(value: Any) -> None:
    """Free the memory of what is sharded. What is not may be the script's own, and used again."""
    if isinstance(value, torch.nn.Module):
        for part in value.modules():
            for tensor in (*part._parameters.values(), *part._buffers.values()):
                if isinstance(tensor, DTensor):
                    _free(tensor)
            for tensor in _held_by_fsdp(torch_names.fsdp_state_of(part)):
                _free(tensor)
    elif isinstance(value, torch.optim.Optimizer):
        for state in value.state.values():
            for tensor in state.values():
                _free(tensor)
        value.state.clear()


def _free(tensor: Any) -> None:
    """Leave a tensor without elements, so that its memory is free whoever holds it."""
    if not isinstance(tensor, torch.Tensor):
        return
    tensor.grad = None
    local = local_part(tensor)
    with contextlib.suppress(RuntimeError):
        local.data = local.new_empty(0)


def _held_by_fsdp(state: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that FSDP2 keeps for a module: what is gathered, and its own views."""
    seen: set[int] = set()
    left = [state]
    while left:
        held = left.pop()
        if id(held) in seen:
            continue
        seen.add(id(held))
        if isinstance(held, torch.Tensor):
            yield held
        elif isinstance(held, list | tuple):
            left += held
        elif type(held).__module__.startswith(_FSDP) and hasattr(held, "__dict__"):
            left += vars(held).values()


class _Rounds:
    """Counts the rounds for which this process has made something."""

    over = 0


def _tell_apart(make: Callable[..., None], mesh: Any, *args: Any, **more: Any) -> None:
    """Make a mesh that is unequal to those of other rounds."""
    make(mesh, *args, **more)
    if _Rounds.over:
        torch_names.set_mesh_apart(mesh, -_Rounds.over)


def _forget_meshes() -> None:
    """Empty torch's caches by mesh, and have new ranks agree on random numbers of tensors again.

    Ranks that come have no such generator yet, and agree on one by a collective when it is made.
    """
    _Rounds.over += 1
    for name, module in [*sys.modules.items()]:
        if name.startswith(_CACHES):
            for cache in _caches(module):
                cache.cache_clear()
    torch_names.forget_meshes()
    torch_names.forget_random_numbers()


def _caches(module: object) -> Iterator[Any]:
    """Yield the caches of a module's functions, and of functions in its classes."""
    for value in [*vars(module).values()]:
        for each in (value, *(vars(value).values() if isinstance(value, type) else ())):
            function = getattr(each, "__func__", each)
            if isinstance(function, functools._lru_cache_wrapper):
                yield function


def _listed(names: Any) -> str:
    return ", ".join(sorted(map(str, names)))
