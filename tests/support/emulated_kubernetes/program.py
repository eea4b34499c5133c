"""Starts the emulated cluster's own processes, which import nothing of the user's."""

import sys
from pathlib import Path

_TESTS = Path(__file__).parents[2]
_BOOT = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import importlib
sys.exit(importlib.import_module(sys.argv.pop(1)).main())
"""


def command(module: str, *args: str) -> list[str]:
    """Return the command that runs `main()` of a module, with `args` as its `sys.argv[1:]`."""
    return [sys.executable, "-I", "-u", "-c", _BOOT, str(_TESTS), module, *args]
