"""Makes the folders of a run and removes them, also those that killed runs have left."""

import fcntl
import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from spotelastic_checkpoints import left_folders

from spotelastic.errors import EnvironmentFailure
from spotelastic.linux import END_WITHIN, end_marked, handled, mark
from spotelastic.signals import STOPPING

PREFIX = "spotelastic-run-"
"""Prefix of a run's folders; the pid of the run follows."""
SHARED_MEMORY = Path("/dev/shm")
OWNER_LOCK, DAEMON_LOCK = "owner", "lock"
"""Files that a run and its checkpoint daemon keep locked while they live.

By them another run recognizes a folder in use, even if its processes are in another container.
"""

LOGS_PREFIX = "spotelastic-logs-"
"""Prefix of a job's log folder if --log-dir names none.

The logs of a job that failed are kept, and then have no lock.
"""


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of this node's run.

    They are removed at its end, except for the logs of a failed job.
    """

    state: Path
    shm: Path
    logs: Path


@contextmanager
def own_folders(shared_memory: Path = SHARED_MEMORY) -> Iterator[Folders]:
    """Create the folders of this run, and remove them afterwards except for logs that are kept.

    A signal that arrives while no agent handles it ends the block, by KeyboardInterrupt or
    SystemExit.
    """
    mine = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
    temporary = _temporary()
    state, shm = temporary / f"{PREFIX}{mine}", shared_memory / f"{PREFIX}{mine}"
    with ExitStack() as stack:
        stack.enter_context(handled(STOPPING, _stop))
        logs = temporary / f"{LOGS_PREFIX}{mine}"
        for folder in (state, shm, logs):
            stack.callback(_remove, folder)
            try:
                folder.mkdir(0o700)
                stack.enter_context(_locked(folder))
            except OSError as error:
                raise EnvironmentFailure(
                    f"{folder.parent}: {error.strerror}: a run needs to write there"
                ) from error
        yield Folders(state, shm, logs)


def _temporary() -> Path:
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise EnvironmentFailure(
            "no folder for temporary files can be written to: make room in /tmp, or set TMPDIR"
        ) from error


def _remove(folder: Path) -> None:
    if (folder / OWNER_LOCK).exists() or not any(folder.glob("*")):
        shutil.rmtree(folder, ignore_errors=True)


def _stop(number: int, _frame: FrameType | None) -> None:
    """Stop at the first signal; later ones must not disturb the clean-up."""
    for each in STOPPING:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which gets its name only once it is held.

    So a folder whose lock is free was left behind.
    """
    new = folder / f"{OWNER_LOCK}.new"
    with new.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        new.rename(folder / OWNER_LOCK)
        yield


def sweep(shared_memory: Path = SHARED_MEMORY) -> None:
    """Remove folders and processes of runs that were killed before they could clean up."""
    commands = [_command(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    temporary = Path(tempfile.gettempdir())
    places = ((temporary, PREFIX), (shared_memory, PREFIX), (temporary, LOGS_PREFIX))
    for parent, prefix in places:
        for folder in left_folders.found(parent, f"{prefix}*"):
            in_use = any(str(folder).encode() in command for command in commands)
            if not in_use and _is_left(folder):
                end_marked(mark(folder), END_WITHIN)
                shutil.rmtree(folder, ignore_errors=True)


def _is_left(folder: Path) -> bool:
    """Whether neither the folder's owner nor its checkpoint daemon lives, in any container."""
    try:
        with (folder / OWNER_LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        with suppress(FileNotFoundError), (folder / DAEMON_LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # held, being created, or another user's
        return False
    return True


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:  # it has ended
        return b""
