"""Finds imported modules that a user's files of the same name would shadow under `python`.

With a `queue.py` beside `train.py`, `python train.py` takes it for `import queue`. A process that
imported Python's own `queue` before the script began would give the script the wrong one.
"""

import os
import sys
from collections.abc import Collection, Iterable
from importlib.machinery import PathFinder


def before_the_library(folder: str, search_path: Iterable[str]) -> list[str]:
    """Return where a script in `folder` finds modules ahead of Python's own."""
    found = [] if sys.flags.safe_path else [folder]
    library = os.path.dirname(os.__file__)  # noqa: PTH120
    for path in search_path:
        if path == library or path.endswith(".zip"):
            break
        found.append(path)
    return found


def loaded_at_the_start() -> frozenset[str]:
    """Return the modules that the interpreter had imported before any of ours.

    It imports these before a script as well.
    """
    return frozenset(getattr(sys.modules["__main__"], "loaded", ()))


def shadowed(folders: Iterable[str], but: Collection[str]) -> dict[str, str]:
    """Return the imported modules that files in `folders` come before, with those files.

    Modules in `but` are left out.
    """
    found = {}
    folders = list(folders)
    there = _names_in(folders)
    for name, module in list(sys.modules.items()):
        if "." in name or name in but or (there is not None and name not in there):
            continue
        spec = getattr(module, "__spec__", None)
        ours = getattr(spec, "origin", None)
        if ours in (None, "built-in", "frozen"):
            continue
        theirs = getattr(PathFinder.find_spec(name, folders), "origin", None)
        if theirs is not None and os.path.realpath(theirs) != os.path.realpath(ours):
            found[name] = theirs
    return found


def _names_in(folders: Iterable[str]) -> set[str] | None:
    """Return the module names that the folders may hold.

    Only these are then looked for, because each worker does that at its start. None if one of the
    folders is an archive.
    """
    names = set()
    for folder in folders:
        try:
            names |= {entry.partition(".")[0] for entry in os.listdir(folder or ".")}  # noqa: PTH208
        except NotADirectoryError:
            return None
        except OSError:  # nothing is found there
            continue
    return names


def forget(names: Collection[str]) -> None:
    """Remove modules, so that the next import loads them anew."""
    for loaded in list(sys.modules):
        if loaded.partition(".")[0] in names:
            del sys.modules[loaded]
