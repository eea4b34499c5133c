"""Applies environment variables that a script sets before its first `import torch`.

A forked worker has imported torch already, while `python` reads these variables at that import. So
they are looked at when the script imports torch. Some can still be applied, and most are read later
anyway. For the others a line says how to have them heeded.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from typing import Any

from spotelastic import torch_names

_WITHOUT_EFFECT = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "GOTO_"),
    *("PYTORCH_JIT", "TORCH_CPP_LOG_LEVEL", "TORCH_LIBRARY", "TORCH_USE_RTLD_GLOBAL"),
)
"""Prefixes of variables that torch, or a library below it, reads once, when it is imported."""

_told: Callable[[Mapping[str, str]], None] | None = None


class _Watched(ModuleSpec):
    """The spec of a module that was imported before the script began, until the script imports it.

    An `import` of a loaded module asks its spec whether the import is still under way.
    """

    @property
    def _initializing(self) -> bool:
        _the_script_imports_torch()
        return False

    @_initializing.setter
    def _initializing(self, value: bool) -> None:
        pass


def watch(environ: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Make the next import of torch apply what has changed in the environment since now."""
    global _told
    before = dict(environ)
    _told = lambda now: _apply(_changed(before, now), say)  # noqa: E731
    for spec in _specs():
        spec.__class__ = _Watched


def _the_script_imports_torch() -> None:
    global _told
    apply, _told = _told, None
    for spec in _specs():
        if type(spec) is _Watched:
            spec.__class__ = ModuleSpec  # type: ignore[assignment]
    if apply is not None:
        apply(os.environ)


def _specs() -> list[ModuleSpec]:
    modules = [
        module for name, module in list(sys.modules.items()) if name.split(".")[0] == "torch"
    ]
    found: list[Any] = [getattr(module, "__spec__", None) for module in modules]
    return [spec for spec in found if type(spec) in (ModuleSpec, _Watched)]


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in now.items() if before.get(name) != value}


def _apply(changed: Mapping[str, str], say: Callable[[str], None]) -> None:
    late = []
    for name, value in changed.items():
        if name in _APPLIED:
            with contextlib.suppress(ValueError):  # torch heeds no such value either
                _APPLIED[name](sys.modules["torch"], value)
        elif name.startswith(_WITHOUT_EFFECT) or _chooses_an_allocator(name, value):
            late.append(name)
    if late:
        say(
            f"{', '.join(sorted(late))}: set by the script, after workers have imported torch: "
            "set it for the command, or let each worker import torch, with --no-warm"
        )


def _chooses_an_allocator(name: str, value: str) -> bool:
    """Whether the variable chooses an allocator, which is settled when torch is imported.

    Its settings are read at its first use.
    """
    return name.endswith("_ALLOC_CONF") and "backend:" in value


def _threads(torch: Any, value: str) -> None:
    wanted = int(value.partition(",")[0])
    if wanted > 0:
        torch.set_num_threads(min(wanted, len(os.sched_getaffinity(0))))


def _tf32(torch: Any, value: str) -> None:
    torch.backends.cuda.matmul.allow_tf32 = value == "1"


_APPLIED: Mapping[str, Callable[[Any, str], None]] = {
    "OMP_NUM_THREADS": _threads,
    "MKL_NUM_THREADS": _threads,
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": _tf32,
    "TORCH_DISTRIBUTED_DEBUG": lambda torch, _: torch.distributed.set_debug_level_from_env(),
    "TORCH_LOGS": lambda _torch, _: torch_names.apply_log_settings(),
}
