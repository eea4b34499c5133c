"""Runs the `spotelastic` command, and turns errors into one line and an exit code.

Nothing heavy is imported before a command needs it. A mistake of the user or a fault of the machine
ends as one line on stderr, with the exit code of its class (errors.py). Only a defect of
spotelastic itself shows a traceback.
"""

import errno
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path

from spotelastic import systems
from spotelastic.errors import SpotelasticError, Unavailable, UsageError
from spotelastic.wrapping import note

PROGRAMS = {"run": "spotelastic.launcher.run", "boot": "spotelastic.bootstrap.entrypoint"}
"""Commands that parse their own arguments, with their modules.

These processes live as long as their node. They do without typer, which would cost each node 10 MB
of memory.
"""


LOCAL_TARGET = "spotelastic.client.targets.local_target"
"""A module that is asked only if a command has imported it."""


def main() -> None:
    """Entry point of the `spotelastic` command."""
    _prepare_output()
    if (local := sys.modules.get(LOCAL_TARGET)) is not None:
        local.forget_used()  # by what ran in this process before
    try:
        sys.exit(run_command(sys.argv[1:] or ["--help"]))
    except SpotelasticError as error:
        _fail(*(_told_by_the_local_cloud(error) or (str(error), error.exit_code)))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:  # the reader of our output has closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except Exception as error:
        ended = _told_by_the_local_cloud(error)
        told = told_by_parser(error, sys.argv[1:]) or (ended[0] if ended else _told_by_aws(error))
        told = told or told_by_machine(error)
        if told is None:
            raise
        _fail(told, 2)


def _prepare_output() -> None:
    """Have both streams, where a shell has closed them, and let them take any character."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 (to the end)
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def kubectl() -> None:
    """Entry point of `kubectl spotelastic`: the same commands, which look on Kubernetes."""
    os.environ.setdefault("SPOTELASTIC_KUBE", "1")
    main()


def run_command(args: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    systems.refuse_windows()
    program = PROGRAMS.get(args[0])
    if program is not None:
        systems.require_linux(f"`spotelastic {args[0]}`")
        return int(import_module(program).main(args[1:]))
    from spotelastic.cli.app import app

    return int(app(_as_named_now(args), prog_name="spotelastic", standalone_mode=False) or 0)


def _as_named_now(args: Sequence[str]) -> Sequence[str]:
    """Return the command line of a command's former name as it is today, and say so.

    These names are of 0.1, and go with 0.3. Raises `UsageError` where nothing does the same.
    """
    match args:
        case ["cost", *others]:
            now, told = ["report", "--cost", *others], "report --cost"
        case ["forward", node, port, *others]:
            now, told = ["shell", node, "--forward", port, *others], "shell NODE --forward PORT"
        case ["drill", *_]:
            raise UsageError(
                "`spotelastic drill` is gone: `up --local --drill` interrupts a job four times, "
                "and `spotelastic interrupt any` a job that runs"
            )
        case _:
            return args
    note(f"note: `spotelastic {args[0]}` is now `spotelastic {told}`")
    return now


def _fail(message: str, code: int) -> None:
    note(f"spotelastic: {message}")
    sys.exit(code)


FAULTS = {
    errno.EACCES: "your user has no right to it",
    errno.EIO: "a disk, or a device, does not work",
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "your quota is used up",
    errno.EROFS: "it is mounted read-only",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "this machine has no more open files to give",
    errno.EADDRINUSE: "no port is free (see net.ipv4.ip_local_port_range)",
    errno.EADDRNOTAVAIL: "no interface of this machine has that address",
    errno.EAGAIN: "raise the limit of processes (ulimit -u)",
    errno.ENOMEM: "this machine has no memory left",
    errno.ENAMETOOLONG: "give a shorter one",
}
"""Advice for the faults of a machine, by errno."""
_LONGEST = 200
"""Characters of a file's name that are told."""


def told_by_machine(error: Exception) -> str | None:
    """Return one line for a fault of the machine; None for any other error."""
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return f"this machine starts no more threads: {FAULTS[errno.EAGAIN]}"
    if isinstance(error, OSError) and error.errno in FAULTS:
        where = f"{str(error.filename)[:_LONGEST]}: " if error.filename else ""
        return f"{where}{error.strerror}: {FAULTS[error.errno]}"
    return None


def told_by_parser(error: Exception, args: Sequence[str] = ()) -> str | None:
    """Return one line for a mistake that the command line's parser found in `args`.

    None for any other error.

    Typer does not export the base class of its errors; they are recognized by this method.
    """
    say = getattr(error, "format_message", None)
    if say is None:
        return None
    from spotelastic.usage_errors import named_without_option, no_such_option, reworded

    context = getattr(error, "ctx", None)
    missing = getattr(error, "option_name", "")
    if missing and context is not None and hasattr(error, "possibilities"):
        known = [name for each in context.command.params for name in each.opts]
        told = no_such_option(missing, [*known, "--help"])
        if missing == "--name" and "name" in known:  # an argument of that name
            told = named_without_option(context.command_path, args)
    else:
        told = reworded(say())
    command = getattr(context, "command_path", "spotelastic")
    return f"{told} (see `{command} --help`)"


def _told_by_aws(error: Exception) -> str | None:
    """Return one line for an error of AWS, or of the connection to it; None for any other error.

    botocore's classes are looked at only if something has imported them already.
    """
    exceptions = sys.modules.get("botocore.exceptions")
    if exceptions is None:
        return None
    from spotelastic.aws.base.clients import wrong_configuration

    if isinstance(error, exceptions.BotoCoreError | exceptions.ClientError):
        return wrong_configuration(error) or f"AWS: {error}"
    return None


def _told_by_the_local_cloud(error: Exception) -> tuple[str, int] | None:
    """Return message and exit code if the local cloud has ended under this command; else None."""
    local = sys.modules.get(LOCAL_TARGET)
    exceptions = sys.modules.get("botocore.exceptions")
    if local is None or exceptions is None:
        return None
    lost = (Unavailable, exceptions.ConnectionError, exceptions.HTTPClientError)
    if not isinstance(error, lost) or not local.has_gone():
        return None
    return local.GONE, local.CloudEnded.exit_code
