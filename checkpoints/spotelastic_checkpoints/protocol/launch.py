"""Starts the checkpoint daemon as a process in its own session, and waits until it answers."""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Required, TypedDict, Unpack

from spotelastic_checkpoints import isolated, log_records
from spotelastic_checkpoints.errors import DaemonUnavailable
from spotelastic_checkpoints.protocol.connection import Connection

START_WITHIN = 60.0
"""Seconds within which a new daemon answers."""


class DaemonOptions(TypedDict, total=False):
    """The options of the daemon's process; its `--help` says what each means."""

    socket: Required[Path]
    arena: Required[Path]
    storage: Required[str]
    owner: Required[str]
    node: Required[str]
    listen: str
    workers: int
    certificate: tuple[Path, Path, Path] | None
    peer_name: str
    keep_last: int
    keep_every: int
    folder: Path
    output: Sequence[str]
    not_its: Sequence[Path]
    look: bool
    lifeline: int | None
    outlasts: bool


def start_daemon(
    *, token: str = "", log: Path | None = None, **options: Unpack[DaemonOptions]
) -> subprocess.Popen[bytes]:
    """Start the daemon and return its process once its socket answers.

    `lifeline` is a descriptor. At its end of file, or first byte, the daemon uploads what is left,
    cleans up and ends. Without one it lives until SIGTERM. One that `outlasts` ignores SIGTERM,
    because a scheduler that ends a job sends it to all processes, and a last upload may be under
    way.

    With three files as `certificate` (PEM: authority, certificate, key) it speaks TLS with other
    daemons, if their certificates have the common name `peer_name`. Checkpoints that `keep_last`
    and `keep_every` do not keep are collected; they default to SPOTELASTIC_KEEP_LAST and
    SPOTELASTIC_KEEP_EVERY.

    Files in each `output` of the script's `folder` are kept. With `look`, it tells of others that
    the script writes, but for those in `not_its`.

    Raises `DaemonUnavailable` with what the daemon printed last.
    """
    command = isolated.command("spotelastic_checkpoints.daemon.process")
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, list | tuple):
            command += [f"{flag}={each}" for each in value]
        elif value is True:
            command.append(flag)
        elif value is not None and value is not False:
            command += [flag, str(value)]
    socket, lifeline = options["socket"], options.get("lifeline")
    log = log or socket.with_suffix(".log")
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=() if lifeline is None else (lifeline,),
            env={
                **isolated.environment(SPOTELASTIC_TOKEN=token),
                **log_records.style().environment(),
            },
            start_new_session=True,
        )
    _await_answer(process, socket, log)
    return process


def _await_answer(process: subprocess.Popen[bytes], socket: Path, log: Path) -> None:
    """Wait until the daemon answers. Else end it, and raise `DaemonUnavailable` with the reason."""
    deadline = time.monotonic() + START_WITHIN
    while process.poll() is None and time.monotonic() < deadline:
        try:
            Connection.unix(str(socket), 1.0).close()
        except DaemonUnavailable:
            time.sleep(0.01)
        else:
            return
    ended = process.poll()
    process.kill()
    process.wait()
    how = f"within {START_WITHIN:g} s" if ended is None else f"and ended with code {ended}"
    last = log.read_text(errors="replace").strip().rpartition("\n")[2]
    said = log_records.message_of(last) or last.removeprefix("spotelastic: ")
    raise DaemonUnavailable(f"the checkpoint daemon did not start {how}: {said or log}")
