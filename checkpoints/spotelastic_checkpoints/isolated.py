"""Starts Python processes of our own that no file of a user's gets into.

`python -m` would search the working folder first, and PYTHONPATH before the standard library: a
`signal.py` that lies there would be imported in place of Python's.
"""

import sys

_BOOT = """
import os, sys
given = sys.path[not sys.flags.safe_path:]
library = os.path.dirname(os.__file__)
archive = "python%d%d.zip" % sys.version_info[:2]
def comes_later(path):
    first = path in (library, os.path.join(library, "lib-dynload"))
    return not (first or os.path.basename(path) == archive)
sys.path[:] = sorted(given, key=comes_later)
import importlib
sys.exit(importlib.import_module(sys.argv.pop(1)).main())
"""


def command(module: str, *args: str, python: str = sys.executable) -> list[str]:
    """Runs `main()` of a module, whose `sys.argv[1:]` are `args`."""
    return [python, "-c", _BOOT, module, *args]


def search_path() -> list[str]:
    """The folders that a script finds modules in, but for its own: in the order of `python`."""
    return list(getattr(sys.modules["__main__"], "given", sys.path))
