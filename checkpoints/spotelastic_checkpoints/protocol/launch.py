"""Starts the checkpoint daemon as a process in its own session, and waits until it answers."""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from spotelastic_checkpoints import isolated, log_records
from spotelastic_checkpoints.errors import DaemonUnavailable
from spotelastic_checkpoints.protocol.connection import Connection

START_WITHIN = 60.0
"""Seconds within which a new daemon answers."""


def start_daemon(
    *,
    socket: Path,
    arena: Path,
    storage: str,
    owner: str,
    node: str,
    listen: str = "127.0.0.1:0",
    workers: int = 1,
    token: str = "",
    certificates: tuple[Path, Path, Path] | None = None,
    peer_name: str = "",
    keep_last: int | None = None,
    keep_every: int | None = None,
    folder: Path | None = None,
    outputs: Sequence[str] = (),
    not_its: Sequence[Path] = (),
    looks: bool = False,
    lifeline: int | None = None,
    outlasts: bool = False,
    log: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start the daemon and return its process once its socket answers.

    `lifeline` is a descriptor. At its end of file, or first byte, the daemon uploads what is left,
    cleans up and ends. Without one it lives until SIGTERM. One that `outlasts` ignores SIGTERM,
    because a scheduler that ends a job sends it to all processes, and a last upload may be under
    way.

    With `certificates` (PEM files: authority, certificate, key) it speaks TLS with other daemons,
    if their certificates have the common name `peer_name`. Checkpoints that `keep_last` and
    `keep_every` do not keep are collected; they default to SPOTELASTIC_KEEP_LAST and
    SPOTELASTIC_KEEP_EVERY.

    Files in the `outputs` of the script's `folder` are kept. With `looks`, it tells of others that
    the script writes, but for those in `not_its`.

    Raises `DaemonUnavailable` with what the daemon printed last.
    """
    command = isolated.command("spotelastic_checkpoints.daemon.process")
    command += ["--socket", str(socket), "--arena", str(arena), "--storage", storage]
    command += ["--owner", owner, "--node", node, "--listen", listen, "--workers", str(workers)]
    if certificates is not None:
        for flag, file in zip(("--cacert", "--cert", "--key"), certificates, strict=True):
            command += [flag, str(file)]
        command += ["--peer-name", peer_name]
    numbers = ("--keep-last", keep_last), ("--keep-every", keep_every), ("--lifeline", lifeline)
    for flag, number in numbers:
        command += [flag, str(number)] if number is not None else []
    if folder is not None:
        command += _about_files(folder, outputs, not_its, looks=looks)
    if outlasts:
        command += ["--outlasts"]
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


def _about_files(
    folder: Path, outputs: Sequence[str], not_its: Sequence[Path], *, looks: bool
) -> list[str]:
    """Return the arguments that say which files of the script the daemon keeps, and looks for."""
    kept = [f"--output={each}" for each in outputs]
    left_out = [f"--not-its={each}" for each in not_its]
    return ["--folder", str(folder), *kept, *left_out, *(["--look"] if looks else [])]


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
