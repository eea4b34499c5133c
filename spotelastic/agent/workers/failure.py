"""Reports an exception of a worker's code to the agent, and shows it as the interpreter does.

The script may have replaced `print`, `sys.stderr` or `sys.excepthook`, and its exceptions may raise
when they are shown. So the report uses none of these: the error file is written first, and the
traceback reaches the log (descriptor 2) whatever the script's own hook does.
"""

import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from spotelastic.linux import FAILING
from spotelastic.signals import send

_OWN = Path(__file__)
_LAUNCHER = tuple(
    str(_OWN.with_name(name)) for name in ("child.py", "entries.py", "function.py", "failure.py")
)
_dump, _format, _write, _dup2 = json.dumps, traceback.format_exception, os.write, os.dup2
_stderr, _hook = sys.stderr, sys.excepthook


def report(message: str, trace: str = "", code: int = 1) -> None:
    """Write the exception to TORCHELASTIC_ERROR_FILE, in torch's format.

    The exit code with which the process will end is written as well.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    extra = {"py_callstack": trace, "timestamp": str(time.time()), "exit_code": code}
    text = _dump({"message": {"message": message, "extraInfo": extra}})
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        _tell(file, text)
        os.close(file)


def announce(zygote: int) -> None:
    """Tells the zygote of a report, so that the agent can act before this process has ended."""
    if os.getppid() == zygote:
        send(zygote, FAILING)


def reported(path: str) -> int:
    """Return the exit code that a worker has reported in its error file; 0 if none."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return int(json.load(file)["message"]["extraInfo"]["exit_code"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def exit_code(ended: SystemExit) -> int:
    """Return the exit code with which the interpreter ends."""
    if ended.code is None:
        return 0
    return ended.code & 0xFF if isinstance(ended.code, int) else 1


def tell(line: str) -> None:
    """Write to the worker's log, whatever the script did to its streams."""
    _tell(2, f"[spotelastic] {line}\n")


def told(error: BaseException) -> tuple[str, str]:
    """Return the exception's message, and its traceback from the user's code on.

    The exception keeps that traceback.
    """
    error.__traceback__ = frames(error)
    name = type(error).__name__
    try:
        message = f"{name}: {error}"
    except BaseException:
        message = f"{name}: <its text cannot be shown>"
    try:
        return message, "".join(_format(type(error), error, error.__traceback__))
    except BaseException:
        return message, "".join([*traceback.format_tb(error.__traceback__), message, "\n"])


def frames(error: BaseException) -> TracebackType | None:
    """Return the traceback without the frames that started the user's code."""
    found = error.__traceback__
    while found and found.tb_frame.f_code.co_filename in _LAUNCHER:
        found = found.tb_next
    return found


def show(error: BaseException, trace: str) -> None:
    """Show the exception by `sys.excepthook`, as the interpreter does.

    If that shows nothing on descriptor 2, the exception is written there directly.
    """
    hook = getattr(sys, "excepthook", None)
    if hook is _hook and sys.stderr is _stderr and not _stderr.closed:
        hook(type(error), error, error.__traceback__)
        return
    with _caught() as caught:
        _call(hook, error, trace)
    said = caught[0]
    if said:
        _tell(2, said)
    if type(error).__name__.encode() not in said:
        _tell(2, trace)


def _call(hook: object, error: BaseException, trace: str) -> None:
    if not callable(hook):
        return
    try:
        hook(type(error), error, error.__traceback__)
    except SystemExit:
        raise
    except BaseException as second:
        if second.__context__ is error:
            second.__context__ = None
        _tell(2, f"Error in sys.excepthook:\n{told(second)[1]}\nOriginal exception was:\n{trace}")
    with contextlib.suppress(BaseException):
        sys.stderr.flush()


@contextlib.contextmanager
def _caught() -> Iterator[list[bytes]]:
    """Yield a list that holds, after the block, what was written to descriptor 2 within it."""
    real, memory, found = os.dup(2), os.memfd_create("stderr"), [b""]
    _dup2(memory, 2)
    try:
        yield found
    finally:
        _dup2(real, 2)
        found[0] = os.pread(memory, os.fstat(memory).st_size, 0)
        os.close(memory)
        os.close(real)


def _tell(file: int, text: str | bytes) -> None:
    data = text if isinstance(text, bytes) else text.encode(errors="backslashreplace")
    with contextlib.suppress(OSError):
        while data:
            data = data[_write(file, data) :]
