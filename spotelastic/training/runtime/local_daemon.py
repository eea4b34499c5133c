"""Starts, replaces and ends the checkpoint daemon of a script that runs without an agent."""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from spotelastic_checkpoints import messages
from spotelastic_checkpoints.daemon import handover
from spotelastic_checkpoints.errors import CheckpointsError
from spotelastic_checkpoints.protocol.agent_client import DaemonClient
from spotelastic_checkpoints.protocol.launch import start_daemon
from spotelastic_checkpoints.types import RoundInfo

END_WITHIN = 60.0
"""Seconds that a script waits for its daemon to end."""
LAST_UPLOAD_WITHIN = 600.0
"""Seconds that a script waits for what an earlier one left to be uploaded.

The earlier daemon ends sooner where the upload makes no progress.
"""
TOLD_AFTER = 1.0
"""Seconds of that wait after which it is reported."""
AGAIN = 5.0
"""Seconds between attempts to replace a daemon, and before one that died at once is replaced."""
_ARENAS = "spotelastic-solo-"


class OwnDaemon:
    """The checkpoint daemon of this process.

    It ends, after its last upload, when this process does. When it dies before, it is replaced
    while training goes on, on the same slots and socket. Its messages go to stderr, each once.
    """

    def __init__(self, owner: str, node: str, storage: str, workers: int) -> None:
        """Start the daemon for this node's `workers`. Raises `CheckpointsError` or `OSError`."""
        _await_last_upload(owner, storage)
        _sweep()
        self._owner, self._node, self._storage, self._workers = owner, node, storage, workers
        self._arena = Path(tempfile.mkdtemp(prefix=_ARENAS, dir=_shared_memory()))
        self._folder = Path(tempfile.mkdtemp(prefix="spotelastic-"))
        self.socket = self._folder / "daemon.sock"
        self._round: RoundInfo | None = None
        self._told: set[str] = set()
        """Messages printed since the last commit."""
        self._pause = 0.0
        """Seconds before the next attempt to replace the daemon."""
        self._over = threading.Event()
        self._lock = threading.Lock()
        """Held while a daemon is started or ended."""
        self._lifeline = -1
        try:
            self._start()
        except BaseException:
            self._cut()
            self._remove(self._arena)
            raise

    def begin(self, round_: RoundInfo) -> None:
        """Tell the daemon, and those that replace it, of the round."""
        self._round = round_
        self._client.begin(round_)

    def close(self) -> None:
        """End the daemon, or leave it to its last upload if that takes long."""
        self._over.set()
        with self._lock:
            ended = self._end()
        self._client.close()
        if ended:
            self._remove(self._arena)
        else:
            # The slots are the daemon's own now, and are deleted with it.
            self._remove()
            self._tell("the last upload goes on in the background")

    def _start(self) -> None:
        # Each daemon has a pipe of its own: forked children, like a data loader's workers, may keep
        # the last one open.
        reading, self._lifeline = os.pipe()
        try:
            self._process = start_daemon(
                socket=self.socket,
                arena=self._arena,
                storage=self._storage,
                owner=self._owner,
                node=self._node,
                workers=self._workers,
                lifeline=reading,
                outlasts=True,
            )
        finally:
            os.close(reading)
        self._client = DaemonClient(str(self.socket))
        if self._round is not None:
            self._client.begin(self._round)
        self._client.subscribe(self._said)

    def _end(self) -> bool:
        """Ask the daemon to end. Returns whether it has."""
        with suppress(OSError):
            # Forked children have the pipe open as well, so it does not end while they live.
            os.write(self._lifeline, b".")
        self._cut()
        try:
            self._process.wait(END_WITHIN)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _said(self, event: messages.DaemonEvent) -> None:
        match event:
            case messages.SaveFailed(message=message):
                self._tell(message)
            case messages.Committed():
                self._told.clear()
                self._pause = 0.0
            case messages.Closed():
                self._replace()

    def _replace(self) -> None:
        """Start another daemon, in the thread that was told of the end of the last one."""
        while not self._over.wait(self._pause):
            self._pause = AGAIN
            with self._lock:
                if self._over.is_set():
                    return
                try:
                    self._start_again()
                except (CheckpointsError, OSError) as error:
                    problem = str(error)
                else:
                    self._tell("the checkpoint daemon died; another one has replaced it")
                    return
            self._tell(
                f"the checkpoint daemon died, and nothing is saved until another starts: {problem}"
            )

    def _start_again(self) -> None:
        """Kill the old daemon, which may still hold the lock, and start another one."""
        self._client.close()
        self._process.kill()
        self._process.wait()
        self._cut()
        self._start()

    def _cut(self) -> None:
        lifeline, self._lifeline = self._lifeline, -1
        if lifeline >= 0:
            os.close(lifeline)

    def _tell(self, message: str) -> None:
        """Print a message, unless it was printed since the last commit.

        Numbers in it do not count.
        """
        kind = message.translate(_WITHOUT_NUMBERS)
        if kind not in self._told:
            self._told.add(kind)
            _say(message)

    def _remove(self, *more: Path) -> None:
        for folder in (self._folder, *more):
            shutil.rmtree(folder, ignore_errors=True)


_WITHOUT_NUMBERS = str.maketrans("", "", "0123456789")


def _await_last_upload(owner: str, storage: str) -> None:
    """Wait until the daemon of an earlier script has committed what that script had sealed.

    The claim of this script comes after that, so that nothing is lost.
    """
    begun, told = time.monotonic(), False
    while any(_is_at_work(folder) for folder in _ending(owner, storage)):
        waited = time.monotonic() - begun
        if waited > LAST_UPLOAD_WITHIN:
            return
        if waited > TOLD_AFTER and not told:
            told = True
            _say("waiting for the last upload of an earlier script of this run")
        time.sleep(0.05)


def _ending(owner: str, storage: str) -> Iterator[Path]:
    """Return arenas of this run whose daemon has outlived its script."""
    return (folder for folder in _arenas() if handover.is_marked(folder, owner, storage))


def _sweep() -> None:
    """Delete arenas whose daemon was killed together with its script."""
    for folder in _arenas():
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > 60 and not _is_at_work(folder):
                shutil.rmtree(folder, ignore_errors=True)


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


def _arenas() -> Iterator[Path]:
    return _shared_memory().glob(f"{_ARENAS}*")


def _shared_memory() -> Path:
    shm = Path("/dev/shm")
    return shm if shm.is_dir() else Path(tempfile.gettempdir())


def _say(message: str) -> None:
    print(f"spotelastic: {message}", file=sys.stderr, flush=True)
