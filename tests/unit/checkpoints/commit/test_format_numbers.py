"""What lies beside checkpoints and was written by a newer version is left alone, and named."""

import json
from pathlib import Path

import pytest
from spotelastic_checkpoints import provenance
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.commit.latest import LATEST, POINTER_FORMAT
from spotelastic_checkpoints.commit.tenancy import KEY, Tenancy, tenant_here
from spotelastic_checkpoints.errors import RestoreFailed, StorageRefused
from spotelastic_checkpoints.format import manifest
from spotelastic_checkpoints.format.manifest import Manifest
from spotelastic_checkpoints.protocol_version import FORMAT
from spotelastic_checkpoints.provenance import StoredRun, made_by
from spotelastic_checkpoints.storage.folder import FolderStorage
from support.processes.patience import PATIENT

NEWER = FORMAT + 1
READABLE: dict[str, object] = {"version": NEWER}
UNREADABLE: dict[str, object] = {"version": NEWER, "epoch": "the first", "job": 7, "step": []}


def written(path: Path, change: dict[str, object]) -> bytes:
    """The object of that path, as a newer version has written it."""
    content = json.loads(path.read_bytes()) | change
    path.write_text(json.dumps(content))
    return path.read_bytes()


@pytest.mark.parametrize("change", [READABLE, UNREADABLE], ids=["alike", "unlike"])
def test_a_storage_of_a_newer_format_is_refused_and_stays_as_it_is(
    tmp_path: Path, change: dict[str, object]
) -> None:
    commits = Commits(FolderStorage(tmp_path), "run")
    commits.claim()
    newer = POINTER_FORMAT + 1
    before = written(tmp_path / LATEST, change | {"version": newer})
    for refused in (commits.claim, commits.latest, commits.begin_afresh, commits.newest):
        with pytest.raises(StorageRefused) as error:
            refused()
        assert str(error.value).endswith(
            f"{LATEST} has format {newer}, of a newer version of spotelastic; this installation "
            f"reads formats up to {POINTER_FORMAT}: install the newer one"
        )
    assert (tmp_path / LATEST).read_bytes() == before


@pytest.mark.parametrize("change", [READABLE, UNREADABLE], ids=["alike", "unlike"])
def test_a_manifest_of_a_newer_format_is_named(change: dict[str, object]) -> None:
    ours = Manifest(FORMAT, 1, 5, "r1", "layout", 0, 1, 0, ())
    assert manifest.decode(manifest.encode(ours), "0.json") == ours
    data = json.dumps(json.loads(manifest.encode(ours)) | change).encode()
    with pytest.raises(RestoreFailed, match=rf"0\.json has format {NEWER}, of a newer version"):
        manifest.decode(data, "0.json")


def test_what_is_no_manifest_at_all_is_not_taken_for_a_newer_one() -> None:
    for data in (b"", b"{}", b"[1]", b'{"version":"two"}', b"\xff\xfe"):
        with pytest.raises(RestoreFailed, match=r"0\.json is damaged: "):
            manifest.decode(data, "0.json")


def test_a_tenant_of_a_newer_format_is_not_asked_and_not_replaced(tmp_path: Path) -> None:
    storage = FolderStorage(tmp_path)
    first = Tenancy(lambda: storage, tenant_here("a", "a.py"), displaced=print)
    assert first.settle(PATIENT) == "first"
    first.release(over=False)
    before = written(tmp_path / KEY, READABLE)
    second = Tenancy(lambda: storage, tenant_here("b", "b.py"), displaced=print)
    with pytest.raises(StorageRefused, match=f"{KEY} has format {NEWER}"):
        second.settle(PATIENT)
    second.release(over=False)
    assert (tmp_path / KEY).read_bytes() == before


def test_what_made_a_run_is_not_told_by_guessing(tmp_path: Path) -> None:
    kept = StoredRun(FolderStorage(tmp_path), "run")
    kept.write(made_by("train.py", ()))
    found = kept.record()
    assert found is not None and found.version == FORMAT
    (tmp_path / provenance.NAME).write_text('{"version":2,"script":["many"]}')
    assert kept.record() is None
