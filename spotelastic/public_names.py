"""Imports the module of a public name when the name is first used."""

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any

_OF_TRAIN = ("torch", "numpy")
"""Packages that the extra `train` brings."""


def on_first_use(
    package: str, names: Mapping[str, str], *, of_nodes: Collection[str] = ()
) -> Callable[[str], Any]:
    """Return the `__getattr__` of `package`, whose public names are defined by the modules in
    `names`. Those of `of_nodes` are for what runs on a node, which takes Linux.
    """

    def found(name: str) -> Any:
        if sys.platform == "win32":
            import_module("spotelastic.systems").refuse_windows()
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        shown = f"{package}.{name}"
        if name in of_nodes:
            import_module("spotelastic.systems").require_linux(shown)
        try:
            module = import_module(names[name])
            return module if names[name] == shown else getattr(module, name)
        except ModuleNotFoundError as error:
            if error.name not in _OF_TRAIN:
                raise
            raise ModuleNotFoundError(
                f"{shown} needs {error.name}: pip install 'spotelastic[train]'", name=error.name
            ) from None

    return found
