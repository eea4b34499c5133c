"""Starts, replaces and ends the checkpoint daemon of a script that runs without an agent."""

import os
import secrets
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from spotelastic_checkpoints import messages
from spotelastic_checkpoints.errors import CheckpointsError
from spotelastic_checkpoints.protocol.agent_client import DaemonClient
from spotelastic_checkpoints.protocol.launch import start_daemon
from spotelastic_checkpoints.types import RoundInfo

from spotelastic.model.in_place import FINGERPRINT, PROVEN
from spotelastic.training.runtime.arena_folder import ArenaFolder, say, shared_memory


@dataclass(frozen=True)
class DaemonUpkeep:
    """How the daemon of a script without an agent is kept up."""

    end_within: float = 60.0
    """Seconds that a script waits for its daemon to end."""
    again: float = 5.0
    """Seconds between attempts to replace a daemon, and before one that died at once is."""
    start: Callable[..., "subprocess.Popen[bytes]"] = start_daemon
    """Starts the process, with the arguments of `start_daemon`."""


DEFAULT_UPKEEP = DaemonUpkeep()


class OwnDaemon:
    """The checkpoint daemon of this process.

    It ends, after its last upload, when this process does. When it dies before, it is replaced
    while training goes on, on the same slots and socket. Its messages go to stderr, each once.
    """

    def __init__(
        self,
        owner: str,
        node: str,
        storage: str,
        workers: int,
        upkeep: DaemonUpkeep = DEFAULT_UPKEEP,
    ) -> None:
        """Start the daemon for this node's `workers`. Raises `CheckpointsError` or `OSError`."""
        arenas = ArenaFolder(shared_memory())
        arenas.await_last_upload(owner, storage)
        arenas.sweep()
        self._upkeep = upkeep
        self._owner, self._node, self._storage, self._workers = owner, node, storage, workers
        self._arena = arenas.new()
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
            self._tell("the last upload continues in the background")

    def _start(self) -> None:
        # Each daemon has a pipe of its own: forked children, like a data loader's workers, may keep
        # the last one open.
        reading, self._lifeline = os.pipe()
        try:
            self._process = self._upkeep.start(
                socket=self.socket,
                arena=self._arena,
                storage=self._storage,
                owner=self._owner,
                node=self._node,
                workers=self._workers,
                token=secrets.token_hex(32),  # nobody else on this machine is to read the state
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
            self._process.wait(self._upkeep.end_within)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _said(self, event: messages.DaemonEvent) -> None:
        match event:
            case messages.SaveFailed(message=message):
                self._tell(message)
            case messages.Rehearsed(message=message, kind=kind) if kind in (PROVEN, FINGERPRINT):
                say(message)
            case messages.Committed():
                self._told.clear()
                self._pause = 0.0
            case messages.Closed():
                self._replace()

    def _replace(self) -> None:
        """Start another daemon, in the thread that was told of the end of the last one."""
        while not self._over.wait(self._pause):
            self._pause = self._upkeep.again
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
            say(message)

    def _remove(self, *more: Path) -> None:
        for folder in (self._folder, *more):
            shutil.rmtree(folder, ignore_errors=True)


_WITHOUT_NUMBERS = str.maketrans("", "", "0123456789")
