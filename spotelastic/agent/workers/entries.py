"""Runs a worker's script, module or program as the interpreter itself would.

A script may be a file, a link to one, a folder or an archive with a `__main__.py`.
"""

import io
import os
import pkgutil
import runpy
import signal
import sys
import types
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from typing import Any

_kept: list[dict[str, Any]] = []
"""Globals of scripts. They stay until the process ends: see docs/decisions/0004."""


def modules_folder(script: str) -> str:
    """Return the folder of a script's own modules: beside the file that a link leads to."""
    path = _absolute(script)
    if pkgutil.get_importer(path) is not None:
        return path
    return os.path.dirname(os.path.realpath(path))  # noqa: PTH120


def _absolute(path: str) -> str:
    """Return the path as `python` would show it: absolute, otherwise as it was typed."""
    return os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118


def run(entry: str, argv: list[str], search_path: list[str]) -> None:
    """Run the script.

    Raises what the user's code raises, and SystemExit if there is nothing to run.
    """
    sys.argv = argv
    module = ("-m",) if entry == "module" else ()
    sys.orig_argv = [sys.executable, "-u", *module, *argv]
    sys.path[:] = search_path
    _ENTRIES[entry](argv[0])


def _run_script(script: str) -> None:
    path = _absolute(script)
    folder = modules_folder(script)
    main = _new_main()
    if folder == path:  # a folder, or an archive: `python` prepends these in any case
        sys.path.insert(0, folder)
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
        return
    if not sys.flags.safe_path:
        sys.path.insert(0, folder)
    with io.open_code(path) as file:
        code = pkgutil.read_code(file)
    compiled = code is not None
    if code is None:
        with io.open_code(path) as file:
            source = file.read()
    loader = SourcelessFileLoader if compiled else SourceFileLoader
    main.__dict__.update(__file__=path, __cached__=None, __loader__=loader("__main__", path))
    if code is None:
        code = compile(source, path, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _run_module(name: str) -> None:
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    _new_main()
    sys.argv[0] = "-m"
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def _run_path(path: str) -> None:
    """Run a file as torchrun's --run-path does."""
    if not sys.flags.safe_path:
        sys.path.insert(0, modules_folder(path))
    _kept.append(runpy.run_path(path, run_name="__main__"))


def _execute(program: str) -> None:
    """Replace this process by the program."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvp(program, sys.argv)
    except OSError as error:
        raise SystemExit(f"cannot run {program}: {error.strerror}") from error


def _call_function(file: str) -> None:
    """Call a function as multiprocessing does in a process that it has spawned."""
    from spotelastic.agent.workers import function

    function.call(Path(file))


_ENTRIES = {
    "script": _run_script,
    "module": _run_module,
    "path": _run_path,
    "program": _execute,
    "function": _call_function,
}


def _new_main() -> types.ModuleType:
    """Return a new main module with the attributes that the interpreter gives it."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__annotations__={}, __builtins__=sys.modules["builtins"])
    sys.modules["__main__"] = main
    return main
