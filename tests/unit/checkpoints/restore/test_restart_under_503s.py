"""A fleet that restarts at once is when S3 says SlowDown: each request is repeated by itself.

In virtual time, with the product's own reading of a commit. One request takes 30 ms, and eight are
under way at a time, so that a node takes an eighth of all requests' time.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from functools import cache
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from spotelastic_checkpoints.commit.commit_protocol import READ_AT_ONCE, Commits, folder
from spotelastic_checkpoints.errors import RestoreFailed, StorageUnavailable
from spotelastic_checkpoints.format import manifest, metadata
from spotelastic_checkpoints.format.manifest import Manifest, Shard
from spotelastic_checkpoints.storage.object_store import Blob
from spotelastic_checkpoints.storage.outage_retry import OutageRetry
from spotelastic_checkpoints.types import Commit, Item
from support.draws import drawn
from support.store.store_doubles import MemoryStorage

TAKES = 0.03
"""Seconds of a request."""
AT = Commit(1, 7)


class Busy(MemoryStorage):
    """Answers a share of the requests with 503; `now` is the virtual time."""

    def __init__(self, rate: float, seed: int) -> None:
        super().__init__()
        self.rate, self.now = rate, 0.0
        self.come: Counter[str] = Counter()
        self.asked = 0
        self._draw = random.Random(seed)

    def get(self, key: str) -> Blob | None:
        self._answer()
        self.come[key] += 1
        return super().get(key)

    def read(self, key: str, offset: int, target: memoryview) -> int:
        self._answer()
        return super().read(key, offset, target)

    def keys(self, prefix: str = "") -> list[str]:
        self._answer()
        return super().keys(prefix)

    def _answer(self) -> None:
        self.asked += 1
        self.now += TAKES
        if self._draw.random() < self.rate:
            raise StorageUnavailable("503 SlowDown")


class Serial:
    """One after the other: their time adds up."""

    def map(self, call: Callable[[Any], Any], each: Iterable[Any]) -> list[Any]:
        return [call(one) for one in each]


@cache
def stored(ranks: int) -> dict[str, bytes]:
    found = {f"{folder(AT)}/{metadata.NAME}": b"\x80."}
    for rank in range(ranks):
        name = f"v{rank}"
        item = Item(name, (name,), "", (), (), (), -1, 0, 8)
        shards = (Shard(manifest.shard_name(rank, 0), 8, (item,)),)
        content = Manifest(1, AT.epoch, AT.step, "r1", "layout", rank, ranks, ranks, shards)
        found[f"{folder(AT)}/{manifest.manifest_name(rank)}"] = manifest.encode(content)
    return found


def node(ranks: int, rate: float, seed: int) -> tuple[Busy, Commits]:
    storage = Busy(rate, seed)
    for key, data in stored(ranks).items():
        storage.put(key, memoryview(data))

    def wait(seconds: float) -> bool:
        storage.now += seconds
        return False

    retry = OutageRetry(lambda _: None, clock=lambda: storage.now, wait=wait)
    return storage, Commits(storage, "run", cast(Executor, Serial())).patient(retry)


@settings(max_examples=drawn(20), deadline=None)
@given(st.sampled_from([1, 64, 256, 512]), st.sampled_from([0.01, 0.03]), st.integers(0, 999))
@example(512, 0.01, 0)
@example(10_000, 0.01, 0)
@example(10_000, 0.05, 1)
def test_each_manifest_comes_once_and_all_within_a_minute(
    ranks: int, rate: float, seed: int
) -> None:
    storage, commits = node(ranks, rate, seed)
    assert len(commits.checkpoint(AT)) == ranks
    of_ranks = [count for key, count in storage.come.items() if manifest.FOLDER in key]
    assert len(of_ranks) == ranks and set(of_ranks) == {1}
    assert storage.asked < (ranks + 10) * (1 + 4 * rate) + 10
    assert storage.now / READ_AT_ONCE < 60


def test_a_store_that_stays_away_is_given_up_and_not_taken_for_damage() -> None:
    storage, commits = node(8, 1.0, 0)
    with pytest.raises(StorageUnavailable):
        commits.checkpoint(AT)
    assert 200 < storage.now < 400


class WrongOnce(MemoryStorage):
    """The first answer for each key is none, or has lost its end."""

    def __init__(self, kept: int) -> None:
        super().__init__()
        self._kept, self._told = kept, set[str]()

    def get(self, key: str) -> Blob | None:
        blob = super().get(key)
        if blob is None or key in self._told:
            return blob
        self._told.add(key)
        return Blob(blob.data[: self._kept], blob.etag) if self._kept else None


@pytest.mark.parametrize("kept", [0, 100])
def test_what_is_wrong_once_is_read_again(kept: int) -> None:
    storage = WrongOnce(kept)
    for key, data in stored(8).items():
        storage.put(key, memoryview(data))
    assert len(Commits(storage, "run").checkpoint(AT)) == 8


def test_what_stays_wrong_is_damaged() -> None:
    storage = MemoryStorage()
    for key, data in stored(2).items():
        storage.put(key, memoryview(data[:100]))
    with pytest.raises(RestoreFailed, match=r"manifests/0\.json is damaged"):
        Commits(storage, "run").checkpoint(AT)
