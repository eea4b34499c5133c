"""Looks after the arenas of scripts that run without an agent, which outlive their scripts."""

import fcntl
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from spotelastic_checkpoints import left_folders
from spotelastic_checkpoints.daemon import handover

LAST_UPLOAD_WITHIN = 600.0
"""Seconds that a script waits for what an earlier one left to be uploaded.

The earlier daemon ends sooner where the upload makes no progress.
"""
LEFT_FOR = 60.0
"""Seconds for which an arena that no daemon serves is left alone, because one may be starting."""
_PREFIX = "spotelastic-solo-"


def shared_memory() -> Path:
    """Return the folder in which files are shared memory, or else that of temporary files."""
    shm = Path("/dev/shm")
    return shm if shm.is_dir() else Path(tempfile.gettempdir())


def say(message: str) -> None:
    """Print a message to the script's stderr."""
    print(f"spotelastic: {message}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class ArenaFolder:
    """The folder with the arenas of all scripts on this machine that run without an agent."""

    folder: Path
    told_after: float = 1.0
    """Seconds of a wait after which it is reported."""
    tell: Callable[[str], None] = say
    """Reports it."""

    def new(self) -> Path:
        """Make the folder of another arena."""
        return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self.folder))

    def await_last_upload(self, owner: str, storage: str) -> None:
        """Wait until the daemon of an earlier script has committed what that script had sealed.

        The claim of this script comes after that, so that nothing is lost.
        """
        begun, told = time.monotonic(), False
        while any(
            handover.is_marked(folder, owner, storage) and _is_at_work(folder)
            for folder in self._arenas()
        ):
            waited = time.monotonic() - begun
            if waited > LAST_UPLOAD_WITHIN:
                return
            if waited > self.told_after and not told:
                told = True
                self.tell("waiting for the last upload of an earlier script of this run")
            time.sleep(0.05)

    def sweep(self) -> None:
        """Delete arenas whose daemon was killed together with its script."""
        for folder in self._arenas():
            with suppress(OSError):
                if time.time() - folder.stat().st_mtime > LEFT_FOR and not _is_at_work(folder):
                    shutil.rmtree(folder, ignore_errors=True)

    def _arenas(self) -> Iterator[Path]:
        return left_folders.found(self.folder, f"{_PREFIX}*")


def _is_at_work(folder: Path) -> bool:
    """Return whether a daemon serves the arena."""
    try:
        with (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # No daemon ever did, or it has just deleted the arena.
        return False
    return False
