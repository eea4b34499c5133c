"""The run's storage as a checkpoint daemon sees it: opened at first use, and claimed on request."""

import asyncio
import threading
import time
from concurrent.futures import Executor

from spotelastic_checkpoints import messages
from spotelastic_checkpoints.backoff import Backoff
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.errors import StorageUnavailable
from spotelastic_checkpoints.storage.open import open_storage
from spotelastic_checkpoints.types import EpochClaim


class DaemonStorage:
    """`owner` is the name that the storage is claimed under."""

    def __init__(self, url: str, owner: str, executor: Executor) -> None:
        """`executor` runs what talks to the store."""
        self.url = url
        self.owner = owner
        self._executor = executor
        self._commits: Commits | None = None
        self._opening = threading.Lock()
        self._told_weakness = False

    def commits(self) -> Commits:
        """Open the storage at first use, in any thread: the packages take a second to import. All
        callers get the same object, which alone knows what a claim has learned."""
        with self._opening:
            if self._commits is None:
                self._commits = Commits(open_storage(self.url), self.owner)
            return self._commits

    async def claim(self, request: messages.ClaimEpoch) -> EpochClaim:
        """Claim the next epoch. Raises `StorageUnavailable` if the store stays away for longer than
        the request allows."""
        self.owner = request.owner
        deadline = time.monotonic() + request.timeout
        backoff = Backoff(0.2, 2.0)
        loop = asyncio.get_running_loop()
        while True:
            try:
                return await loop.run_in_executor(self._executor, self._claim_once, request)
            except StorageUnavailable:
                backoff = backoff.failed()
                if time.monotonic() + backoff.bound > deadline:
                    raise
                await asyncio.sleep(backoff.bound)

    def weakness(self) -> str:
        """Return what the store does not keep, once; later on, and if it keeps all, nothing."""
        weaker = "" if self._told_weakness else self.commits().storage.weaker
        self._told_weakness = self._told_weakness or bool(weaker)
        return weaker

    def _claim_once(self, request: messages.ClaimEpoch) -> EpochClaim:
        commits = self.commits()
        commits.owner = request.owner
        return commits.claim(take_over=request.take_over)
