"""Opens and claims the job's storage for a checkpoint daemon.

The storage is opened at its first use. It is claimed when the agent asks for an epoch.
"""

import asyncio
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Executor

from spotelastic_checkpoints import messages
from spotelastic_checkpoints.backoff import Backoff
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.errors import StorageUnavailable
from spotelastic_checkpoints.storage.open import open_storage
from spotelastic_checkpoints.types import EpochClaim


class DaemonStorage:
    """The storage of one daemon; `owner` is the name under which it is claimed."""

    def __init__(self, url: str, owner: str, executor: Executor) -> None:
        """Remember the URL without opening it. `executor` runs the calls to the store."""
        self.url = url
        self.owner = owner
        self._executor = executor
        self._commits: Commits | None = None
        self._opening = threading.Lock()
        self._told: set[str] = set()

    def commits(self) -> Commits:
        """Return the commit protocol; open the storage at first use. Thread-safe.

        Importing a store's packages takes a second. All callers get the same object, as only that
        one knows what a claim has learned.
        """
        with self._opening:
            if self._commits is None:
                self._commits = Commits(open_storage(self.url), self.owner)
            return self._commits

    async def claim(self, request: messages.ClaimEpoch, history: Mapping[int, float]) -> EpochClaim:
        """Claim the next epoch, and retry while the store is unavailable.

        `history` are the epochs that the claiming round goes on from (`Commits.claim`).

        Raises `StorageUnavailable` if it stays away for longer than the request allows.
        """
        self.owner = request.owner
        deadline = time.monotonic() + request.timeout
        backoff = Backoff(0.2, 2.0)
        loop = asyncio.get_running_loop()
        while True:
            try:
                return await loop.run_in_executor(
                    self._executor, self._claim_once, request, history
                )
            except StorageUnavailable:
                backoff = backoff.failed()
                if time.monotonic() + backoff.bound > deadline:
                    raise
                await asyncio.sleep(backoff.bound)

    def remarks(self) -> list[str]:
        """Return, each once, which guarantee the store does not keep, and what was damaged."""
        commits = self.commits()
        new = {commits.storage.weaker, commits.damage} - self._told
        self._told |= new
        return sorted(filter(None, new))

    def _claim_once(self, request: messages.ClaimEpoch, history: Mapping[int, float]) -> EpochClaim:
        commits = self.commits()
        commits.owner = request.owner
        return commits.claim(take_over=request.take_over, history=history, run_id=request.run_id)
