"""Runs that are moved from one storage to another: who may commit, and where, at each moment."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotelastic_checkpoints.commit import moving
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.commit.latest import (
    LATEST,
    ForwardPointer,
    Latest,
    LatestObject,
    decoded,
)
from spotelastic_checkpoints.errors import Fenced, StorageMoved, StorageRefused
from spotelastic_checkpoints.storage.folder import FolderStorage
from spotelastic_checkpoints.types import Commit
from support.saving.commit_protocol import put_all
from support.store.store_doubles import MemoryStorage

STORED = (
    b'{"owner":"run","epoch":2,"commit":{"epoch":1,"step":5},"nonce":"mover-1","begins":0,'
    b'"run_id":"","version":2,"to":"s3://there/run/checkpoints","region":"us-west-2",'
    b'"moved_at":7.0,"checksum":"8ca89d57426793f9"}'
)
"""A forward pointer as this version writes it."""


def latest_of(storage: MemoryStorage | FolderStorage) -> Latest | None:
    return LatestObject(storage).read()[0]


def begun(storage: MemoryStorage | FolderStorage, step: int = 5) -> tuple[Commits, Commit]:
    """A run that has committed one step."""
    commits = Commits(storage, "run")
    epoch = commits.claim(run_id="r").epoch
    put_all(commits, epoch, step)
    assert commits.commit(Commit(epoch, step), epoch)
    return commits, Commit(epoch, step)


def close(storage: MemoryStorage, expected: Latest, to: str) -> ForwardPointer:
    return moving.close(storage, expected, expected, to, region="us-west-2", now=7.0)


def test_a_run_that_was_moved_goes_on_in_the_other_storage_and_never_in_the_first() -> None:
    here, there = MemoryStorage(), MemoryStorage()
    commits, commit = begun(here)
    put_all(commits, commit.epoch, 6)  # complete, and never recorded
    claimed = moving.claim_to_move(commits)
    assert moving.is_claimed_to_move(claimed) and claimed.commit == Commit(commit.epoch, 6)

    pointer = close(here, claimed, there.url)
    put_all(commits, commit.epoch, 7)
    with pytest.raises(Fenced, match="was moved to"):
        commits.commit(Commit(commit.epoch, 7), commit.epoch)
    for refused in (commits.claim, commits.begin_afresh, partial(moving.claim_to_move, commits)):
        with pytest.raises(StorageMoved, match=r"goes on there"):
            refused()
    assert latest_of(here) == pointer

    opened = moving.open_here(there, pointer)
    assert moving.open_here(there, pointer) == opened  # once more, after a kill
    claim = Commits(there, "run").claim()
    assert (claim.commit, claim.run_id) == (claimed.commit, "r")
    assert claim.epoch > pointer.epoch


def test_a_commit_after_the_seal_is_refused_and_a_claim_makes_the_pointer_fail() -> None:
    here = MemoryStorage()
    commits, commit = begun(here)
    claimed = moving.claim_to_move(commits)
    put_all(commits, commit.epoch, 6)
    with pytest.raises(Fenced):
        commits.commit(Commit(commit.epoch, 6), commit.epoch)
    claim = commits.claim()  # somebody has restarted the job
    with pytest.raises(Fenced, match="in the meantime"):
        close(here, claimed, "s3://there")
    put_all(commits, claim.epoch, 7)
    assert commits.commit(Commit(claim.epoch, 7), claim.epoch)


def test_a_storage_that_others_use_is_not_opened() -> None:
    here, there = MemoryStorage(), MemoryStorage()
    begun(there)
    commits, _ = begun(here)
    pointer = close(here, moving.claim_to_move(commits), there.url)
    with pytest.raises(StorageRefused, match="was not moved there"):
        moving.open_here(there, pointer)


def test_of_two_movers_in_opposite_directions_one_fails() -> None:
    here, there = MemoryStorage(), MemoryStorage()
    commits, commit = begun(here)
    forth = close(here, moving.claim_to_move(commits), there.url)
    back = moving.close(there, None, forth, here.url, now=8.0)
    assert moving.open_here(here, back).commit == commit
    with pytest.raises(StorageRefused, match="by another move"):
        moving.open_here(there, forth)
    with pytest.raises(StorageMoved):
        Commits(there, "run").claim()


def test_a_run_comes_back_to_where_it_was() -> None:
    here, there = MemoryStorage(), MemoryStorage()
    commits, commit = begun(here)
    moving.open_here(there, close(here, moving.claim_to_move(commits), there.url))
    back = close(there, moving.claim_to_move(Commits(there, "run")), here.url)
    moving.open_here(here, back)
    claim = commits.claim()
    assert claim.commit == commit
    put_all(commits, claim.epoch, 9)
    assert commits.commit(Commit(claim.epoch, 9), claim.epoch)
    with pytest.raises(StorageMoved):
        Commits(there, "run").claim()


def test_pointers_are_stored_so_that_versions_which_do_not_know_them_refuse(
    tmp_path: Path,
) -> None:
    pointer = ForwardPointer(
        "run",
        2,
        Commit(1, 5),
        "mover-1",
        to="s3://there/run/checkpoints",
        region="us-west-2",
        moved_at=7.0,
    )
    storage = FolderStorage(tmp_path)
    assert LatestObject(storage).write(pointer, "")
    assert (tmp_path / LATEST).read_bytes() == STORED
    assert decoded(STORED) == pointer


@given(st.lists(st.sampled_from(["train", "stale", "claim", "close", "open", "back"]), max_size=20))
def test_whatever_the_order_at_most_one_storage_trains_and_no_commit_is_lost(
    moves: list[str],
) -> None:
    """`stale` is a writer that goes on with the last epoch that it had in either storage."""
    stores = [MemoryStorage(), MemoryStorage()]
    begun(stores[0], 1)
    acknowledged, source, step = Commit(1, 1), 0, 1
    held_back: Latest | None = None
    pointers: list[tuple[int, ForwardPointer]] = []
    held = {0: 1, 1: 0}

    def commit(at: int, epoch: int) -> Commit | None:
        nonlocal step
        step += 1
        commits = Commits(stores[at], "run")
        put_all(commits, epoch, step)
        try:
            return Commit(epoch, step) if commits.commit(Commit(epoch, step), epoch) else None
        except Fenced:
            return None

    def claimed(at: int) -> int | None:
        try:
            return Commits(stores[at], "run").claim().epoch
        except StorageRefused:
            return None

    def attempt(work: Callable[[], object]) -> None:
        with suppress(Fenced, StorageRefused):
            work()

    def pass_on(expected: Latest) -> None:
        pointers.append((1 - source, close(stores[source], expected, "there")))

    for move in moves:
        others = latest_of(stores[1 - source])
        match move:
            case "train":
                ready = [at for at in (0, 1) if latest_of(stores[at]) is not None]
                epochs = {at: epoch for at in ready if (epoch := claimed(at)) is not None}
                assert len(epochs) <= 1, "both storages can be claimed"
                for at, epoch in epochs.items():
                    held[at] = epoch
                    done = commit(at, epoch)
                    assert done is not None and done > acknowledged
                    acknowledged = done
            case "stale":
                for at, epoch in held.items():
                    if epoch and (done := commit(at, epoch)) is not None:
                        assert done > acknowledged
                        acknowledged = done
            case "claim":
                try:
                    held_back = moving.claim_to_move(Commits(stores[source], "run"))
                except StorageMoved:
                    held_back = None
            case "close" if held_back is not None:
                attempt(partial(pass_on, held_back))
            case "open":
                for at, pointer in pointers:  # movers that were slow, too
                    attempt(partial(moving.open_here, stores[at], pointer))
            case "back" if others is not None and not isinstance(others, ForwardPointer):
                source, held_back = 1 - source, None
    newest = [found.commit for each in stores if (found := latest_of(each)) and found.commit]
    # A step that a stale writer has completed may be recorded by a later claim, as always.
    assert max(newest) >= acknowledged
