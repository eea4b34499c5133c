"""Starts Python processes of our own that nothing of a user's gets into.

`python -m` would search the working folder first, and PYTHONPATH before the standard library: a
`signal.py` that lies there would be imported in place of Python's. Variables of the interpreter are
meant for the user's programs: PYTHONWARNINGS=error would end a daemon that gets a warning.
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
_OTHER_PROGRAMS = ("ETCD_", "ETCDCTL_", "ETCDUTL_", "FLASK_", "MOTO_", "WERKZEUG_")
"""Beginnings of variables that a program of ours would take for its settings."""


def command(module: str, *args: str, python: str = sys.executable) -> list[str]:
    """Runs `main()` of a module, whose `sys.argv[1:]` are `args`."""
    return [python, "-u", "-c", _BOOT, module, *args]


def environment(environ: Mapping[str, str] = os.environ, **more: str) -> dict[str, str]:
    """The variables of a process of our own: without those that change how Python or etcd runs."""
    kept = {name: value for name, value in environ.items() if not _changes_us(name)}
    return {**kept, **more}


def _changes_us(name: str) -> bool:
    if name.startswith("PYTHON"):
        return name not in _WHERE_MODULES_ARE
    return name.startswith(_OTHER_PROGRAMS)


def search_path() -> list[str]:
    """The folders that a script finds modules in, but for its own: in the order of `python`."""
    return list(getattr(sys.modules["__main__"], "given", sys.path))


def leave_working_folder() -> None:
    """Of a process that `python -m` has started: import nothing that lies there."""
    if not sys.flags.safe_path:
        del sys.path[0]
    put_library_first()


def put_library_first() -> None:
    """The standard library is searched before what PYTHONPATH names."""
    sys.path.sort(key=_comes_later)


def _comes_later(path: str) -> bool:
    library = os.path.dirname(os.__file__)  # noqa: PTH120
    first = path in (library, os.path.join(library, "lib-dynload"))  # noqa: PTH118
    return not (first or path.endswith("python{}{}.zip".format(*sys.version_info)))
