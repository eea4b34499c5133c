"""Commits, pins, tombstones and epochs on a folder. What races and fails is in tests/sim."""

import json
import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from spotelastic_checkpoints.catalog.catalog import Catalog
from spotelastic_checkpoints.commit import retention
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.commit.latest import LATEST
from spotelastic_checkpoints.commit.retention import Keep
from spotelastic_checkpoints.errors import Fenced, RestoreFailed, StorageRefused
from spotelastic_checkpoints.format import metadata
from spotelastic_checkpoints.format.manifest import Manifest
from spotelastic_checkpoints.storage.folder import FolderStorage
from spotelastic_checkpoints.storage.object_store import Blob
from spotelastic_checkpoints.types import Commit
from support.processes.patience import PATIENT
from support.saving.commit_protocol import put_all


def test_a_step_that_was_swept_can_no_longer_be_committed(tmp_path: Path) -> None:
    commits = Commits(FolderStorage(tmp_path), "me")
    old = commits.claim().epoch
    put_all(commits, old, 5, ranks=[0])
    new = commits.claim().epoch
    put_all(commits, new, 5)
    assert commits.commit(Commit(new, 5), new)
    retention.collect(commits, Commit(new, 5), new, Keep())
    # The missing rank of the old round comes late.
    put_all(commits, old, 5, ranks=[0, 1])
    with pytest.raises(Fenced, match="retired"):
        commits.commit(Commit(old, 5), old)
    assert commits.latest() == Commit(new, 5)


def committed(commits: Commits, epoch: int, *steps: int) -> None:
    for step in steps:
        put_all(commits, epoch, step)
        assert commits.commit(Commit(epoch, step), epoch)


def test_pinned_commits_and_multiples_stay_until_they_are_let_go(tmp_path: Path) -> None:
    commits = Commits(FolderStorage(tmp_path), "me")
    epoch = commits.claim().epoch
    committed(commits, epoch, 10, 15, 20, 25, 30)
    retention.pin(commits, Commit(epoch, 15))
    retention.pin(commits, Commit(epoch, 15))
    latest = Commit(epoch, 30)
    retention.collect(commits, latest, epoch, Keep(last=1, every=20))
    entries = Catalog(commits.storage).entries()
    assert [(e.step, e.pinned) for e in entries] == [(15, True), (20, False), (30, False)]
    commits.checkpoint(Commit(epoch, 15))
    # Writing it again is still a no-op.
    assert commits.commit(Commit(epoch, 15), epoch)

    with pytest.raises(StorageRefused, match="pinned"):
        retention.remove(commits, Commit(epoch, 15))
    with pytest.raises(StorageRefused, match="LATEST"):
        retention.remove(commits, latest)
    retention.unpin(commits, Commit(epoch, 15))
    retention.collect(commits, latest, epoch, Keep(last=1, every=20))
    retention.remove(commits, Commit(epoch, 20))
    assert [e.step for e in Catalog(commits.storage).entries()] == [30]
    with pytest.raises(RestoreFailed):
        retention.pin(commits, Commit(epoch, 15))


class Asked(FolderStorage):
    """Notes the steps whose record is read, also by a swap."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.steps: list[int] = []

    def get(self, key: str) -> Blob | None:
        if key.endswith("/" + metadata.NAME):
            self.steps.append(int(key.split("/")[1].removeprefix("step-")))
        return super().get(key)


def interrupted_removal(commits: Commits, commit: Commit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves a tombstone with all the shards."""

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(FolderStorage, "delete", die)
        retention.remove(commits, commit)


def test_a_removal_that_was_interrupted_is_finished_of_steps_that_are_always_kept_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = Commits(FolderStorage(tmp_path), "me")
    epoch = commits.claim().epoch
    committed(commits, epoch, 10, 15, 20, 25)
    interrupted_removal(commits, Commit(epoch, 20), monkeypatch)
    retention.collect(commits, Commit(epoch, 25), epoch, Keep(last=2, every=20))
    assert [e.step for e in Catalog(commits.storage).entries()] == [15, 25]


def test_records_of_older_steps_that_are_always_kept_are_read_only_when_thorough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = Commits(Asked(tmp_path), "me")
    storage = commits.storage
    assert isinstance(storage, Asked)
    epoch = commits.claim().epoch
    committed(commits, epoch, 10, 20, 25, 30, 40, 45)
    interrupted_removal(commits, Commit(epoch, 10), monkeypatch)
    interrupted_removal(commits, Commit(epoch, 40), monkeypatch)
    storage.steps.clear()
    retention.collect(commits, Commit(epoch, 45), epoch, Keep(2, every=10), thorough=False)
    assert list(dict.fromkeys(storage.steps)) == [45, 40, 30, 25]
    assert [e.step for e in Catalog(storage).entries() if e.state == "committed"] == [20, 30, 45]
    assert (tmp_path / "1/step-00000010/__0_0.distcp").exists()
    storage.steps.clear()
    retention.collect(commits, Commit(epoch, 45), epoch, Keep(2, every=10))
    assert storage.steps == [45, 30, 20, 10]
    assert not (tmp_path / "1/step-00000010/__0_0.distcp").exists()


def test_of_a_pin_and_a_burial_that_race_the_first_wins(tmp_path: Path) -> None:
    commits = Commits(FolderStorage(tmp_path), "me")
    epoch = commits.claim().epoch
    committed(commits, epoch, 1, 2)

    class PinsMeanwhile(FolderStorage):
        """Between the collector's look at a record and its swap."""

        def swap(self, key: str, data: bytes, etag: str) -> bool:
            if metadata.is_tombstone(data):
                retention.pin(commits, Commit(epoch, 1))
            return super().swap(key, data, etag)

    late = Commits(PinsMeanwhile(tmp_path), "me")
    retention.collect(late, Commit(epoch, 2), epoch, Keep(last=1))
    commits.checkpoint(Commit(epoch, 1))


def test_uploads_that_earlier_epochs_left_are_ended(tmp_path: Path) -> None:
    folder = FolderStorage(tmp_path)
    commits = Commits(folder, "me")
    left = [tmp_path / f"{epoch}/step-00000001/.writing-x" for epoch in (1, 2, 3)]
    others = tmp_path / "2/1/step-00000001/.writing-x"  # of a run that is kept below this one
    for path in (*left, others):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"half")
    assert retention.sweep_uploads(commits, 3) == 2
    assert [path.exists() for path in (*left, others)] == [False, False, True, True]


def test_latest_never_goes_back(tmp_path: Path) -> None:
    commits = Commits(FolderStorage(tmp_path), "me")
    epoch = commits.claim().epoch
    for step in (2, 1):
        put_all(commits, epoch, step)
        assert commits.commit(Commit(epoch, step), epoch)
        assert commits.latest() == Commit(epoch, 2)


def test_a_step_without_all_manifests_is_not_committed(tmp_path: Path) -> None:
    commits = Commits(FolderStorage(tmp_path), "me")
    epoch = commits.claim().epoch
    put_all(commits, epoch, 1, ranks=[0])
    assert not commits.commit(Commit(epoch, 1), epoch)
    assert commits.claim().commit is None


def test_what_the_last_round_completed_is_adopted_by_the_next(tmp_path: Path) -> None:
    commits = Commits(FolderStorage(tmp_path), "me")
    epoch = commits.claim().epoch
    put_all(commits, epoch, 1)
    assert commits.claim().commit == Commit(epoch, 1)


def test_what_was_completed_after_a_claim_counts_until_a_later_round_has_saved(
    tmp_path: Path,
) -> None:
    commits = Commits(FolderStorage(tmp_path), "me")
    first = commits.claim().epoch
    committed(commits, first, 1)
    for _ in range(2):  # rounds that were replaced at once
        commits.claim()
    put_all(commits, first, 2)
    claim = commits.claim()
    assert claim.commit == commits.latest() == Commit(first, 2)
    # From here on it may be another history.
    put_all(commits, claim.epoch, 2, ranks=[0])
    put_all(commits, first, 3)
    assert commits.claim().commit == Commit(first, 2)
    assert commits.claim().commit == Commit(first, 2)


@pytest.mark.parametrize(
    ("last", "counts"), [(math.inf, True), (2.0, True), (1.0, False)], ids=["own", "in", "beyond"]
)
def test_what_was_completed_after_later_rounds_have_saved_counts_if_it_is_their_history(
    tmp_path: Path, last: float, counts: bool
) -> None:
    """The last of its writers is in no round any more, and the others have left it."""
    commits = Commits(FolderStorage(tmp_path), "me")
    first = commits.claim().epoch
    put_all(commits, first, 2, ranks=[0])
    second = commits.claim(history={first: math.inf}).epoch
    put_all(commits, second, 3, ranks=[0])
    put_all(commits, first, 2, ranks=[1])
    history = {first: last, second: math.inf}
    claim = commits.claim(history=history)
    assert claim.commit == commits.latest() == (Commit(first, 2) if counts else None)
    # What is newer is not hidden by it.
    put_all(commits, second, 3, ranks=[1])
    assert commits.claim(history=history).commit == Commit(second, 3)


def test_what_a_run_that_began_afresh_left_behind_is_no_history(tmp_path: Path) -> None:
    commits = Commits(FolderStorage(tmp_path), "me")
    first = commits.claim().epoch
    put_all(commits, first, 2)
    commits.begin_afresh()
    second = commits.claim().epoch
    put_all(commits, second, 3, ranks=[0])
    assert commits.claim(history={first: math.inf, second: math.inf}).commit is None


def test_a_run_sent_back_by_hand_stays_there_once_the_later_step_is_removed(
    tmp_path: Path,
) -> None:
    commits = Commits(FolderStorage(tmp_path), "me")
    epoch = commits.claim().epoch
    committed(commits, epoch, 1, 2)
    latest = tmp_path / LATEST
    content = json.loads(latest.read_bytes())
    del content["checksum"]
    content["commit"]["step"] = 1
    latest.write_text(json.dumps(content))
    retention.remove(commits, Commit(epoch, 2))
    assert commits.claim().commit == Commit(epoch, 1)


def test_a_damaged_manifest_of_an_unfinished_step_holds_up_no_claim(tmp_path: Path) -> None:
    commits = Commits(FolderStorage(tmp_path), "me")
    epoch = commits.claim().epoch
    committed(commits, epoch, 1)
    put_all(commits, epoch, 2)
    (tmp_path / str(epoch) / "step-00000002" / "manifests/1.json").write_bytes(b"{")
    assert commits.claim().commit == Commit(epoch, 1)


def test_claims_of_one_daemon_that_meet_each_have_an_epoch(tmp_path: Path) -> None:
    commits = Commits(FolderStorage(tmp_path), "me")
    with ThreadPoolExecutor(4) as pool:
        claims = [pool.submit(commits.claim) for _ in range(40)]
        epochs = [claim.result().epoch for claim in claims]
    assert sorted(epochs) == list(range(1, 41))


class Meeting(FolderStorage):
    """Each request for one of ranks 1 to 8's manifests waits until as many are there."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked: Counter[str] = Counter()
        self._all = Barrier(8)

    def get(self, key: str) -> Blob | None:
        folder, _, name = key.rpartition("/")
        if folder.endswith("manifests"):
            self.asked[name] += 1
            if name != "0.json":
                self._all.wait(PATIENT)
        return super().get(key)


def put_manifests(commits: Commits, *ranks: int) -> None:
    """Of nine that save nothing."""
    for rank in ranks:
        commits.put_manifest(Manifest(1, 1, 5, "r1", "layout", rank, 9, 0, ()))


def test_manifests_are_read_side_by_side_once_all_are_there(tmp_path: Path) -> None:
    storage = Meeting(tmp_path)
    commits = Commits(storage, "me")
    assert commits.claim().epoch == 1
    put_manifests(commits, *range(8))
    for _ in range(3):
        assert not commits.commit(Commit(1, 5), 1)
    assert storage.asked == {"0.json": 3}, "one says how many there are to be"
    put_manifests(commits, 8)
    assert commits.commit(Commit(1, 5), 1)
    assert set(storage.asked.values()) == {4, 1}


def test_what_was_before_a_run_began_afresh_counts_no_more_and_stays(tmp_path: Path) -> None:
    commits = Commits(FolderStorage(tmp_path), "me")
    old = commits.claim().epoch
    committed(commits, old, 10, 20)
    put_all(commits, old, 30)  # complete, but not recorded
    there = commits.storage.keys("1/")
    assert commits.begin_afresh() == Commit(old, 20)
    with pytest.raises(Fenced):
        commits.commit(Commit(old, 30), old)
    commits.storage.delete(["1/step-00000030/.metadata"])
    claim = Commits(FolderStorage(tmp_path), "me").claim()
    assert claim.commit is None
    assert commits.latest() is None and commits.newest() is None and commits.newest(step=20) is None
    for step in (1, 2, 3):
        committed(commits, claim.epoch, step)
        retention.collect(commits, Commit(claim.epoch, step), claim.epoch, Keep(last=1))
    assert commits.newest() == Commit(claim.epoch, 3)
    assert commits.newest(before=Commit(claim.epoch, 3)) is None
    assert commits.storage.keys("1/") == there
    again = commits.claim()
    assert again.commit == Commit(claim.epoch, 3)
    assert commits.begins() == old + 1


def test_a_run_has_one_id_until_it_begins_afresh(tmp_path: Path) -> None:
    commits = Commits(FolderStorage(tmp_path), "me")
    committed(commits, commits.claim(run_id="one").epoch, 10)
    assert Commits(FolderStorage(tmp_path), "me").claim(run_id="two").run_id == "one"
    commits.begin_afresh()
    claim = commits.claim(run_id="two")
    committed(commits, claim.epoch, 10)
    assert claim.run_id == commits.claim(run_id="three").run_id == "two"


def test_an_owner_begins_afresh_only_what_is_its_own(tmp_path: Path) -> None:
    commits = Commits(FolderStorage(tmp_path), "me")
    committed(commits, commits.claim().epoch, 10)
    with pytest.raises(StorageRefused, match="belongs to the run me"):
        Commits(FolderStorage(tmp_path), "you").begin_afresh()
    with pytest.raises(StorageRefused, match="belongs to the run me: use another"):
        Commits(FolderStorage(tmp_path), "").claim()  # an import, which is no run
    assert commits.latest() is not None
    Commits(FolderStorage(tmp_path), "you").begin_afresh(take_over=True)
    assert commits.latest() is None
    assert Commits(FolderStorage(tmp_path / "new"), "me").begin_afresh() is None
