"""Carries out the commit protocol as two ranks' daemons do, on an invented state of two values."""

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import TypeVar

import msgspec
from spotelastic_checkpoints.commit import retention
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.commit.latest import LATEST, Latest
from spotelastic_checkpoints.commit.retention import Keep
from spotelastic_checkpoints.errors import CheckpointsError, StorageUnavailable
from spotelastic_checkpoints.format import layout, manifest, metadata
from spotelastic_checkpoints.format.layout import Declaration, Declared, JobLayout
from spotelastic_checkpoints.storage.object_store import Storage
from spotelastic_checkpoints.types import Commit

T = TypeVar("T")


@cache
def plan_of(world_size: int) -> JobLayout:
    """Returns the layout of a state with one value of each rank."""
    return layout.plan(
        [
            Declaration(rank, "n", (Declared(f"v{rank}", ("v",), room=64),))
            for rank in range(world_size)
        ]
    )


def retried(work: Callable[[], T]) -> T:
    """As a daemon does."""
    while True:
        try:
            return work()
        except StorageUnavailable:
            continue


def put_part(
    commits: Commits, commit: Commit, rank: int, world_size: int = 2, incarnation: str = ""
) -> None:
    """One rank's shard and its manifest."""
    plan = plan_of(world_size)
    slot = plan.slots[rank]
    name, data = manifest.shard_name(rank, 0), memoryview(bytes(slot.owned_bytes))
    content = manifest.Manifest(
        version=1,
        epoch=commit.epoch,
        step=commit.step,
        incarnation=incarnation or f"round-{commit.epoch}",
        layout=plan.hash,
        rank=rank,
        world_size=world_size,
        chunks=plan.chunks,
        shards=(manifest.Shard(name, len(data), slot.items[: slot.owned]),),
    )
    commits.put_shard(commit, name, data)
    commits.put_manifest(content)


def put_all(commits: Commits, epoch: int, step: int, ranks: Iterable[int] = (0, 1)) -> None:
    for rank in ranks:
        retried(partial(put_part, commits, Commit(epoch, step), rank))


def two_rounds(commits: Commits) -> Commit:
    """Four commits, one of them pinned, the last by a second round; what LATEST names then."""
    first = retried(commits.claim).epoch
    for step in (1, 2, 3):
        put_all(commits, first, step)
        assert retried(partial(commits.commit, Commit(first, step), first))
    retried(lambda: retention.pin(commits, Commit(first, 1)))
    put_all(commits, first, 4, ranks=[0])
    claim = retried(commits.claim)
    assert claim.epoch > first and claim.commit == Commit(first, 3)
    put_all(commits, claim.epoch, 4)
    latest = Commit(claim.epoch, 4)
    assert retried(lambda: commits.commit(latest, claim.epoch))
    retried(lambda: retention.collect(commits, latest, claim.epoch, Keep(2)))
    return latest


class Auditor:
    """Is told of every write as it happens, and notes each rule of the protocol that one broke."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.latest: Latest | None = None
        self._buried: set[str] = set()

    def __call__(self, key: str, storage: Storage) -> None:
        if key == LATEST:
            self._latest(storage)
        elif key.endswith("/" + metadata.NAME):
            self._record(key, storage)

    def _latest(self, storage: Storage) -> None:
        blob = storage.get(LATEST)
        assert blob is not None
        before, now = self.latest, msgspec.json.decode(blob.data, type=Latest)
        self.latest = now
        if before is not None and (now.epoch, now.commit or Commit(0, 0)) < (
            before.epoch,
            before.commit or Commit(0, 0),
        ):
            self.broken.append(f"LATEST went from {before} to {now}")
        if now.commit is not None:
            self._is_whole(now.commit, storage)

    def _record(self, key: str, storage: Storage) -> None:
        blob = storage.get(key)
        assert blob is not None
        epoch, step, _ = key.split("/")
        commit = Commit(int(epoch), int(step.removeprefix("step-")))
        if metadata.is_tombstone(blob.data):
            self._buried.add(key)
            if self.latest is not None and self.latest.commit == commit:
                self.broken.append(f"{commit}, which LATEST names, was retired")
        elif key in self._buried:
            self.broken.append(f"{commit} came back after it was retired")
        else:
            self._is_whole(commit, storage)

    def _is_whole(self, commit: Commit, storage: Storage) -> None:
        try:
            for content in Commits(storage, "auditor").checkpoint(commit):
                for shard in content.shards:
                    key = f"{commit.epoch}/step-{commit.step:08d}/{shard.name}"
                    if storage.read(key, 0, memoryview(bytearray(shard.nbytes))) != shard.nbytes:
                        self.broken.append(f"{commit} was committed without {shard.name}")
        except CheckpointsError as error:
            self.broken.append(f"{commit} was committed, but {error}")
