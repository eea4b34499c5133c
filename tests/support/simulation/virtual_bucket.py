"""The object store of a simulated cluster: a store in memory, which may be away.

What is committed in it, and who is fenced, is decided by the real commit protocol.
"""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

from spotelastic_checkpoints.commit.commit_protocol import Commits, step_folders
from spotelastic_checkpoints.errors import StorageUnavailable
from spotelastic_checkpoints.types import Commit, EpochClaim
from support.saving.commit_protocol import Auditor, put_part
from support.store.store_doubles import Interposed, MemoryStorage

OWNER = "sim"


class AtOnce(Executor):
    """Does what it is given in the thread that asks."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


@dataclass(frozen=True, slots=True)
class StoredSaves:
    complete: list[Commit]
    """Those of which every part is there, recorded or not."""
    last_epoch: int
    """The last one in which any part was saved; 0: none."""


class VirtualBucket:
    def __init__(self) -> None:
        self.answers = True
        self.auditor = Auditor()
        self.claims: dict[int, StoredSaves] = {}
        """By epoch: what was there when it was claimed."""
        self._storage = MemoryStorage(self.auditor)
        self._outside = Commits(self._storage, OWNER, AtOnce())
        """Of somebody who is no node of the cluster, and is always answered."""

    def commits(self) -> Commits:
        """Returns the commit protocol as one daemon carries it out."""
        return Commits(Interposed(self._storage, self._carried_out), OWNER, AtOnce())

    @property
    def latest(self) -> Commit | None:
        return self._outside.latest()

    def stored(self) -> StoredSaves:
        folders = step_folders(self._storage.keys())
        complete = [
            commit
            for commit, found in folders.items()
            if found.ranks and len(found.ranks) == self._ranks_of(commit, min(found.ranks))
        ]
        return StoredSaves(complete, max((commit.epoch for commit in folders), default=0))

    def claimed(self, claim: EpochClaim) -> None:
        """A node has just claimed this."""
        self.claims[claim.epoch] = self.stored()

    def _ranks_of(self, commit: Commit, rank: int) -> int:
        (content,) = self._outside.manifests(commit, [rank])
        return content.world_size

    def claim(self, run_id: str = "") -> str:
        """Claims an epoch, as the late claim of a round that was replaced does. Returns the run's
        id.
        """
        return self._outside.claim(run_id=run_id).run_id

    def hold(self, commit: Commit) -> None:
        """Makes this the newest commit, as a job of before has left it."""
        epoch = 0
        while epoch < commit.epoch:
            epoch = self._outside.claim().epoch
        put_part(self._outside, commit, rank=0, world_size=1)
        assert self._outside.commit(commit, epoch)

    def _carried_out(self, name: str, work: Callable[[], Any]) -> Any:
        if not self.answers:
            raise StorageUnavailable("the object store is away")
        return work()
