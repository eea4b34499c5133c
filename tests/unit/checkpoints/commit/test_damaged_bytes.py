"""Every byte of every file of a small checkpoint, changed: it is found and named, or does no harm.

The oracle is what the two steps held before anything was changed: whatever is restored is exactly
one of them.
"""

import random
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from spotelastic_checkpoints import checksummed_json, provenance
from spotelastic_checkpoints.catalog.catalog import Catalog
from spotelastic_checkpoints.commit import retention, verification
from spotelastic_checkpoints.commit.commit_protocol import UNKNOWN_CLAIMS, Commits
from spotelastic_checkpoints.commit.latest import LATEST
from spotelastic_checkpoints.commit.tenancy import (
    KEY,
    InUse,
    Tenancy,
    TenancyPace,
    Tenant,
    tenant_here,
)
from spotelastic_checkpoints.errors import RestoreFailed, StorageRefused
from spotelastic_checkpoints.format import metadata
from spotelastic_checkpoints.storage.folder import FolderStorage
from spotelastic_checkpoints.types import Commit
from support.draws import part
from support.store.store_doubles import MemoryStorage

import spotelastic as se

Content = dict[tuple[str, tuple[int, ...]], bytes]
OWNER = "whole"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a run that has committed two steps, the newer one verified."""
    root = tmp_path_factory.mktemp("saved")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPOTELASTIC_RUN", OWNER)
        state: dict[str, Any] = {"weight": torch.zeros(3, 2), "note": ["kept", 1, 2.5]}
        with se.Checkpointer(state, storage=str(root), checkpoint_every=1) as checkpoint:
            checkpoint.restore()
            for step in (1, 2):
                state["weight"] += step
                checkpoint.step(step)
                assert checkpoint.save() and checkpoint.wait()
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not path.name.endswith(".lock")
    }


def stored(files: dict[str, bytes]) -> MemoryStorage:
    storage = MemoryStorage()
    for key, data in files.items():
        storage.put(key, memoryview(data))
    return storage


def changed(data: bytes) -> Iterator[bytes]:
    """Each byte once, by a drawn bit or by any other byte."""
    draw = random.Random(len(data))
    for at, byte in enumerate(data):
        other = byte ^ draw.choice((1 << draw.randrange(8), draw.randrange(1, 256)))
        yield data[:at] + bytes([other]) + data[at + 1 :]


def content(catalog: Catalog, commit: Commit) -> Content:
    found = catalog.find(commit.step, commit.epoch)
    return {each.item.key: bytes(catalog.read(each)) for each in found.items}


def restored(storage: MemoryStorage) -> tuple[Content, list[str]]:
    """What a run goes on from, as it goes back where a step cannot be read; and what it says."""
    catalog, commits, told = Catalog(storage), Commits(storage, OWNER), []
    commit = commits.latest()
    if commits.damage:
        told.append(commits.damage)
    while commit is not None:
        try:
            return content(catalog, commit), told
        except RestoreFailed as error:
            told.append(str(error))
            commit = commits.newest(before=commit)
    raise AssertionError(told)


def steps(saved: dict[str, bytes]) -> list[Commit]:
    return sorted({Commit(1, int(key.split("-")[1][:8])) for key in saved if key.startswith("1/")})


def test_each_file_has_a_test_here(saved: dict[str, bytes]) -> None:
    names = {key.rpartition("/")[2].partition("0_0.")[0] for key in saved}
    notes = {metadata.NAME, LATEST, KEY, provenance.NAME, "conditional-writes"}
    assert names == {"__", "0.json", *notes}


@pytest.mark.in_part
@pytest.mark.parametrize("kind", ["manifests/0.json", metadata.NAME, LATEST])
def test_each_changed_byte_is_named_or_does_no_harm(saved: dict[str, bytes], kind: str) -> None:
    older, newest = steps(saved)[-2:]
    whole = Catalog(stored(saved))
    before, after = content(whole, older), content(whole, newest)
    assert before != after
    key = kind if kind == LATEST else f"1/step-{newest.step:08d}/{kind}"
    found = 0
    tried = part([*changed(saved[key])])
    for data in tried:
        storage = stored(saved | {key: data})
        try:
            what, told = restored(storage)
        except StorageRefused as error:  # it may be another run's, or have been moved
            assert kind == LATEST and f"{LATEST} is damaged" in str(error)
            continue
        assert what == after if not told else what in (before, after)
        assert all(kind in line and "begin afresh" not in line for line in told), told
        catalog = Catalog(storage)
        try:
            complaints = catalog.verify(catalog.find(newest.step, newest.epoch), lambda _: None)
        except RestoreFailed as error:
            complaints = [str(error)]
        assert complaints or not told, data
        assert all(kind in line for line in complaints)
        found += bool(complaints)
    # Padding, and names of fields that tell nothing, are all that may pass.
    assert found > 0.9 * len(tried)


def test_a_run_goes_back_a_step_and_says_why(
    saved: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With the real daemon, where several files are damaged at once."""
    monkeypatch.setenv("SPOTELASTIC_RUN", OWNER)
    for key, data in saved.items():
        path = tmp_path / key
        path.parent.mkdir(parents=True, exist_ok=True)
        is_damaged = key in (LATEST, provenance.NAME) or key.endswith("2/manifests/0.json")
        path.write_bytes(data.replace(b"0", b"\xff", 1) if is_damaged else data)
    state: dict[str, Any] = {"weight": torch.zeros(3, 2), "note": []}
    with se.Checkpointer(state, storage=str(tmp_path), checkpoint_every=1) as checkpoint:
        assert checkpoint.restore() == 1
        assert state["weight"].unique().tolist() == [1.0] and state["note"] == ["kept", 1, 2.5]
        checkpoint.step(2)
        assert checkpoint.save() and checkpoint.wait()
    told = capsys.readouterr().err
    assert f"{LATEST} is damaged" in told
    assert "step-00000002/manifests/0.json is damaged" in told and "going back to 1" in told
    newest = Commits(FolderStorage(tmp_path), OWNER).latest()
    assert newest is not None and newest.step == 2 and newest.epoch > 1


def test_each_changed_byte_of_an_item_is_found(saved: dict[str, bytes]) -> None:
    storage = stored(saved)
    catalog = Catalog(storage)
    for placed in catalog.find(None).items:
        whole, begin = bytes(catalog.read(placed)), placed.item.offset
        for data in changed(whole):
            file = saved[placed.key]
            storage.put(placed.key, memoryview(file[:begin] + data + file[begin + len(data) :]))
            with pytest.raises(RestoreFailed, match="does not match its checksum"):
                catalog.read(placed)


def test_a_damaged_latest_is_written_anew_by_a_claim_beyond_all_that_may_have_been(
    saved: dict[str, bytes],
) -> None:
    newest = steps(saved)[-1]
    refused = 0
    for data in changed(saved[LATEST]):
        commits = Commits(stored(saved | {LATEST: data}), OWNER)
        try:
            claim = commits.claim()
        except StorageRefused as error:
            assert "damaged" in str(error)
            refused += 1
            continue
        assert claim.commit == newest
        assert claim.epoch in (2, 2 + UNKNOWN_CLAIMS)
        assert Commits(commits.storage, OWNER).latest() == newest
        assert bool(commits.damage) == (claim.epoch > 2) or b'"epoch":1,' in data
    assert refused < 0.1 * len(saved[LATEST])


def test_latest_of_another_run_or_of_one_that_was_moved_is_not_taken_for_a_damaged_one(
    saved: dict[str, bytes],
) -> None:
    data = saved[LATEST].replace(b'"nonce"', b'"nonse"')
    with pytest.raises(StorageRefused, match="seems to be of the run whole, not of other"):
        Commits(stored({LATEST: data}), "other").claim()
    moved = data.replace(b'"version":1', b'"version":2').replace(b"}", b',"moved_at":1.0}')
    with pytest.raises(StorageRefused, match="may go on elsewhere"):
        Commits(stored({LATEST: moved}), OWNER).claim()
    foreign = b'{"file":"checkpoint-100"'
    with pytest.raises(StorageRefused, match="not written by spotelastic"):
        Commits(stored({LATEST: foreign}), OWNER).claim()


def test_a_damaged_note_stops_nobody(saved: dict[str, bytes]) -> None:
    """Each is read in one process, so that all bytes can be tried."""
    note = saved[provenance.NAME]
    wanted = provenance.StoredRun(stored(saved), OWNER).record()
    for data in changed(note):
        storage = stored(saved | {provenance.NAME: data})
        assert provenance.StoredRun(storage, OWNER).record() in (None, wanted)
    commit = steps(saved)[-1]
    storage = stored(saved)
    catalog = Catalog(storage)
    catalog.note(catalog.find(None), [], verified := datetime.now(UTC))
    blob = storage.get(verification.key(commit))
    assert blob is not None
    for data in changed(blob.data):
        storage.put(verification.key(commit), memoryview(data))
        assert verification.since(storage, commit) in (None, verified)


def test_a_pin_of_which_a_byte_has_changed_still_keeps_its_step(saved: dict[str, bytes]) -> None:
    older = steps(saved)[-2]
    storage = stored(saved)
    retention.pin(Commits(storage, OWNER), older)
    blob = storage.get(f"1/step-{older.step:08d}/{metadata.NAME}")
    assert blob is not None and metadata.is_pinned(blob.data) and metadata.is_whole(blob.data)
    assert all(metadata.is_pinned(data) for data in changed(blob.data))


def test_a_tombstone_of_which_a_byte_has_changed_is_one_still() -> None:
    assert all(metadata.is_tombstone(data) for data in changed(metadata.TOMBSTONE))


def test_records_without_a_checksum_are_whole() -> None:
    old = metadata.write([]).partition(b"spotelastic: ")[0]
    assert metadata.is_whole(old) and not metadata.is_pinned(old)
    assert metadata.agrees(old, metadata.write([]))
    assert metadata.is_pinned(metadata.pinned(old)) and metadata.is_whole(metadata.pinned(old))


def test_a_damaged_tenant_is_asked_and_replaced_when_it_is_silent(saved: dict[str, bytes]) -> None:
    pace = TenancyPace(look_every=0.02, ask_every=0.01, answer_within=0.1)
    damaged = [data for data in changed(saved[KEY]) if not checksummed_json.is_readable(data)]
    assert len(damaged) > 0.8 * len(saved[KEY])
    for data in random.Random(1).sample(damaged, 5):
        with closing(Living(stored({KEY: data}), tenant_here("mine", "b"), pace)) as living:
            assert not living.gone


def test_a_tenant_that_lives_writes_anew_who_it_is() -> None:
    pace = TenancyPace(look_every=0.01, ask_every=0.01, answer_within=5.0)
    storage = MemoryStorage()
    with closing(Living(storage, tenant_here("mine", "a"), pace)) as living:
        blob = storage.get(KEY)
        assert blob is not None
        storage.put(KEY, memoryview(blob.data.replace(b'"mine"', b'"mime"')))
        with pytest.raises(InUse, match="another job uses it: a"):
            Living(storage, tenant_here("other", "b"), pace)
        assert not living.gone


class Living:
    def __init__(self, storage: MemoryStorage, mine: Tenant, pace: TenancyPace) -> None:
        self.gone: list[Tenant] = []
        self._tenancy = Tenancy(lambda: storage, mine, displaced=self.gone.append, pace=pace)
        assert self._tenancy.settle(5) == "first"
        self._tenancy.prepared()

    def close(self) -> None:
        self._tenancy.release(over=True)
