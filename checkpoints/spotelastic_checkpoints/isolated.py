"""Starts spotelastic's own Python processes so that nothing of the user's is imported into them.

`python -m` would search the working folder first, and PYTHONPATH before the standard library. A
`signal.py` in one of them would be imported in place of Python's. The interpreter's variables are
meant for the user's programs as well: PYTHONWARNINGS=error would end a daemon at its first warning.
"""

import os
import sys
from collections.abc import Mapping

_BOOT = """
import sys
loaded = frozenset(sys.modules)
given = sys.path[not sys.flags.safe_path:]
sys.path[:] = given
from spotelastic_checkpoints import isolated
isolated.put_library_first()
import importlib
code = importlib.import_module(sys.argv.pop(1)).main()
if code:
    sys.exit(code)
"""
"""Program that imports a module and runs its `main()`."""
_WHERE_MODULES_ARE = frozenset(
    f"PYTHON{name}"
    for name in (
        "DONTWRITEBYTECODE",
        "HOME",
        "NOUSERSITE",
        "PATH",
        "PLATLIBDIR",
        "PYCACHEPREFIX",
        "SAFEPATH",
        "USERBASE",
    )
)
"""Variables of the interpreter that are kept: they say where modules are."""
_OTHER_PROGRAMS = ("ETCD_", "ETCDCTL_", "ETCDUTL_", "FLASK_", "MOTO_", "WERKZEUG_")
"""Prefixes of variables that etcd, moto and others would take for their settings."""


def command(module: str, *args: str, python: str = sys.executable) -> list[str]:
    """Return the command that runs `main()` of a module, with `args` as its `sys.argv[1:]`."""
    return [python, "-u", "-c", _BOOT, module, *args]


def environment(environ: Mapping[str, str] = os.environ, **more: str) -> dict[str, str]:
    """Return the variables for a process of our own, with `more` added.

    Those that change how Python, etcd or moto run are left out.
    """
    kept = {name: value for name, value in environ.items() if not _changes_us(name)}
    return {**kept, **more}


def _changes_us(name: str) -> bool:
    if name.startswith("PYTHON"):
        return name not in _WHERE_MODULES_ARE
    return name.startswith(_OTHER_PROGRAMS)


def search_path() -> list[str]:
    """Return the folders in which a script finds modules, without its own, in Python's order."""
    return list(getattr(sys.modules["__main__"], "given", sys.path))


def leave_working_folder() -> None:
    """Stop importing from the working folder, in a process that `python -m` has started."""
    if not sys.flags.safe_path:
        del sys.path[0]
    put_library_first()


def put_library_first() -> None:
    """Search the standard library before the folders that PYTHONPATH names."""
    sys.path.sort(key=_comes_later)


def _comes_later(path: str) -> bool:
    library = os.path.dirname(os.__file__)  # noqa: PTH120
    first = path in (library, os.path.join(library, "lib-dynload"))  # noqa: PTH118
    return not (first or path.endswith("python{}{}.zip".format(*sys.version_info)))
