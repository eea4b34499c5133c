"""Runs a program that a hung driver may keep for ever.

A process that waits in the driver ignores even SIGKILL. It is killed and then left to itself: who
waits for its end would hang as well.
"""

import contextlib
import os
import selectors
import subprocess
from collections.abc import Callable, Mapping, Sequence

from spotelastic.clock import steady

END_WITHIN = 1.0
"""Seconds that a killed process is waited for."""


def run(command: Sequence[str], environ: Mapping[str, str], within: float) -> tuple[int, str, str]:
    """Return exit code, output and errors. Raises `TimeoutExpired`, and `OSError`."""
    process = subprocess.Popen(
        command,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=within)
    except subprocess.TimeoutExpired:
        give_up(process)
        raise
    return process.returncode, out, err


def give_up(process: "subprocess.Popen[str] | subprocess.Popen[bytes]") -> None:
    """Kill a process, and wait only a moment for its end."""
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_WITHIN)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def lines(
    process: "subprocess.Popen[bytes]", take: Callable[[str], float | None], within: float
) -> bool:
    """Hands each line that the process prints to `take`, which returns a new time limit, if any.

    Returns whether the process closed its output in time.
    """
    assert process.stdout is not None
    end, rest = steady() + within, b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while (left := end - steady()) > 0:
            if not selector.select(left):
                continue
            data = os.read(process.stdout.fileno(), 65536)
            if not data:
                return True
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                limit = take(line.decode(errors="replace"))
                if limit is not None:
                    end = steady() + limit
    return False
