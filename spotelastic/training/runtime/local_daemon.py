"""The checkpoint daemon of a script that nobody else started one for."""

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
LAST_UPLOAD_WITHIN = 600.0
"""Seconds that a script waits for what one before it left to be uploaded; its daemon ends sooner
where nothing gets on."""
TOLD_AFTER = 1.0
AGAIN = 5.0
"""Seconds between attempts to replace a daemon, or to replace one that died as soon as it ran."""
_ARENAS = "spotelastic-solo-"


class OwnDaemon:
    """Ends, after its last upload, when this process does. One that dies before is replaced, on the
    same slots and socket, beside training. What it has to tell goes to stderr, once."""

    def __init__(self, owner: str, node: str, storage: str, workers: int) -> None:
        _await_last_upload(owner, storage)
        _sweep()
        self._owner, self._node, self._storage, self._workers = owner, node, storage, workers
        self._arena = Path(tempfile.mkdtemp(prefix=_ARENAS, dir=_shared_memory()))
        self._folder = Path(tempfile.mkdtemp(prefix="spotelastic-"))
        self.socket = self._folder / "daemon.sock"
        self._round: RoundInfo | None = None
        self._told: set[str] = set()
        """Since the last commit."""
        self._pause = 0.0
        """Seconds before the next attempt to replace it."""
        self._over = threading.Event()
        self._lock = threading.Lock()
        """Held while one is started or ended."""
        self._lifeline = -1
        try:
            self._start()
        except BaseException:
            self._cut()
            self._remove(self._arena)
            raise

    def begin(self, round_: RoundInfo) -> None:
        self._round = round_
        self._client.begin(round_)

    def close(self) -> None:
        self._over.set()
        with self._lock:
            ended = self._end()
        self._client.close()
        if ended:
            self._remove(self._arena)
        else:
            # Its slots are its own now, and go with it.
            self._remove()
            self._tell("the last upload goes on in the background")

    def _start(self) -> None:
        # Each has a pipe of its own: children that were forked, like a data loader's workers, may
        # keep the last one's.
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
        """Whether it has ended."""
        with suppress(OSError):
            # Forked children have the pipe, too, so that it does not end while they live.
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
        """Until there is one. In the thread that heard its predecessor's last word."""
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
                    self._tell("the checkpoint daemon died; another has taken its place")
                    return
            self._tell(f"the checkpoint daemon died, and nothing is saved without one: {problem}")

    def _start_again(self) -> None:
        """One that has hung up serves nobody, but may have the lock yet."""
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
        """Once, whatever step it happened at."""
        kind = message.translate(_WITHOUT_NUMBERS)
        if kind not in self._told:
            self._told.add(kind)
            _say(message)

    def _remove(self, *more: Path) -> None:
        for folder in (self._folder, *more):
            shutil.rmtree(folder, ignore_errors=True)


_WITHOUT_NUMBERS = str.maketrans("", "", "0123456789")


def _await_last_upload(owner: str, storage: str) -> None:
    """What a script that died here had sealed, its daemon may still be committing. The next claim
    comes after that, so that nothing of it is lost."""
    begun, told = time.monotonic(), False
    while any(_is_at_work(folder) for folder in _ending(owner, storage)):
        waited = time.monotonic() - begun
        if waited > LAST_UPLOAD_WITHIN:
            return
        if waited > TOLD_AFTER and not told:
            told = True
            _say("waiting for what the script before this one left to be uploaded")
        time.sleep(0.05)


def _ending(owner: str, storage: str) -> Iterator[Path]:
    return (folder for folder in _arenas() if handover.is_marked(folder, owner, storage))


def _sweep() -> None:
    """Arenas whose daemon was killed together with its script."""
    for folder in _arenas():
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > 60 and not _is_at_work(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_at_work(folder: Path) -> bool:
    """Whether a daemon serves it."""
    try:
        with (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # none ever did, or it has just removed it
        return False
    return False


def _arenas() -> Iterator[Path]:
    return _shared_memory().glob(f"{_ARENAS}*")


def _shared_memory() -> Path:
    shm = Path("/dev/shm")
    return shm if shm.is_dir() else Path(tempfile.gettempdir())


def _say(message: str) -> None:
    print(f"spotelastic: {message}", file=sys.stderr, flush=True)
