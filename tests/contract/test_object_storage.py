"""The contract of the object store port.

Held by a folder, S3 through obstore and s3fs, obstore's stores in memory and in a folder, and
through fsspec memory and a file system without conditions. Google Cloud Storage and Azure are
tried where SPOTELASTIC_TEST_GS and SPOTELASTIC_TEST_AZ name a place to write to, as
`gs://bucket/prefix`; emulators of them will do.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
import pytest
from obstore.store import LocalStore, MemoryStore
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.errors import StorageRefused, StorageUnavailable
from spotelastic_checkpoints.storage.filesystems import FsspecStorage, S3fsStorage
from spotelastic_checkpoints.storage.folder import FolderStorage
from spotelastic_checkpoints.storage.google_azure import HangingObstoreStorage, open_google_or_azure
from spotelastic_checkpoints.storage.limits import Limits
from spotelastic_checkpoints.storage.object_store import Storage
from spotelastic_checkpoints.storage.obstore_storage import Wording
from spotelastic_checkpoints.storage.open import open_storage
from spotelastic_checkpoints.storage.parts import PART
from spotelastic_checkpoints.storage.s3.s3_storage import S3Storage
from support.draws import soaked
from support.processes.patience import PATIENT, eventually
from support.saving.faulty_s3 import Fault, FaultyS3
from support.saving.gcs import Gcs, gcs_server, use_gcs
from support.saving.plain_files import PlainFileSystem
from support.saving.s3_servers import use_s3

LIMITS = Limits(page=4)
"""Listings are of several pages."""
SOON = Limits(answer=0.1, part=0.1, silence=0.1)
GOOGLE_AND_AZURE = {"gs": "SPOTELASTIC_TEST_GS", "az": "SPOTELASTIC_TEST_AZ"}


@pytest.fixture(
    params=[
        *("folder", "s3", "s3fs", "memory", "plain", "google", "obstore-memory", "obstore-folder"),
        *(pytest.param(scheme, marks=pytest.mark.clouds) for scheme in GOOGLE_AND_AZURE),
    ]
)
def storage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Storage]:
    opened: Storage
    if request.param == "folder":
        opened = open_storage(str(tmp_path / "store"))
    elif request.param == "memory":
        opened = open_storage(f"memory://{os.urandom(4).hex()}/run")
    elif request.param == "plain":
        opened = open_storage(f"{PlainFileSystem.protocol}://{tmp_path}/store")
    elif request.param.startswith("obstore"):
        memory = request.param == "obstore-memory"
        made = MemoryStore() if memory else LocalStore(tmp_path)
        opened = HangingObstoreStorage(
            request.param, "here", lambda _: made, Wording(), limits=LIMITS
        )
    elif request.param == "google":
        endpoint, _ = request.getfixturevalue("gcs")
        opened = open_google_or_azure(use_gcs(monkeypatch, tmp_path, endpoint), LIMITS)
    elif request.param in GOOGLE_AND_AZURE:
        opened = cloud(GOOGLE_AND_AZURE[request.param])
    else:
        bucket = use_s3(monkeypatch, request.getfixturevalue("s3_endpoint"))
        url = f"s3://{bucket}/run/checkpoints"
        kind: type[S3Storage | S3fsStorage] = S3Storage if request.param == "s3" else S3fsStorage
        opened = kind(url, limits=LIMITS)
    yield opened
    if request.param in GOOGLE_AND_AZURE:
        opened.delete(opened.keys())
    opened.close()


@pytest.fixture
def gcs() -> Iterator[tuple[str, Gcs]]:
    with gcs_server() as server:
        yield server


@pytest.fixture
def swapping(storage: Storage) -> Storage:
    if storage.url == "obstore-folder":
        pytest.skip("obstore has no conditional update of files: it is there for the rest")
    return storage


def cloud(variable: str) -> Storage:
    """A new folder of the place that the variable of the environment names."""
    if variable not in os.environ:
        pytest.skip(f"{variable} names no place to write to")
    return open_google_or_azure(f"{os.environ[variable]}/{os.urandom(4).hex()}", LIMITS)


def read(storage: Storage, key: str, offset: int, length: int) -> bytes:
    target = bytearray(length)
    return bytes(target[: storage.read(key, offset, memoryview(target))])


@pytest.fixture
def faulty(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    bucket = use_s3(monkeypatch, s3_endpoint)
    with FaultyS3(s3_endpoint, f"s3://{bucket}/run") as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy


def race(attempts: int, attempt: Callable[[int], bool]) -> list[int]:
    """Who of several threads that start together succeeded."""
    barrier = threading.Barrier(attempts)

    def run(number: int) -> bool:
        barrier.wait(PATIENT)
        return attempt(number)

    with ThreadPoolExecutor(attempts) as pool:
        return [number for number, won in enumerate(pool.map(run, range(attempts))) if won]


def test_what_was_put_is_read_and_listed(storage: Storage) -> None:
    assert storage.get("1/step-00000001/a") is None
    assert read(storage, "1/step-00000001/a", 0, 4) == b""
    storage.put("1/step-00000001/a", memoryview(b"0123456789"))
    storage.put("1/step-00000001/b", memoryview(b""))
    storage.put("2/step-00000001/a", memoryview(b"other"))

    blob = storage.get("1/step-00000001/a")
    assert blob is not None
    assert blob.data == b"0123456789"
    assert read(storage, "1/step-00000001/a", 3, 4) == b"3456"
    assert read(storage, "1/step-00000001/a", 8, 4) == b"89"
    assert read(storage, "1/step-00000001/a", 10, 4) == b""
    assert storage.keys() == ["1/step-00000001/a", "1/step-00000001/b", "2/step-00000001/a"]
    assert storage.keys("1/") == ["1/step-00000001/a", "1/step-00000001/b"]
    assert storage.keys("3/") == []


def test_it_is_told_when_each_object_was_written(storage: Storage) -> None:
    before = time.time()
    storage.put("1/step-00000001/a", memoryview(b"0123456789"))
    assert storage.create("1/step-00000001/.metadata", b"record")
    after = time.time()

    times = storage.times("1/")
    assert sorted(times) == storage.keys("1/")
    # Stores tell whole seconds, and the kernel's clock for files ticks a little behind.
    assert all(before - 1.1 <= at <= after + 1.1 for at in times.values())
    assert storage.times("2/") == {}


def test_deleted_keys_are_gone_and_missing_ones_are_ignored(storage: Storage) -> None:
    storage.put("a", memoryview(b"1"))
    storage.delete(["a", "b"])
    assert storage.keys() == []


def test_an_object_of_several_parts_is_whole(storage: Storage) -> None:
    data = os.urandom(1 << 16) * (5 * PART // (1 << 16)) + b"end"
    told: list[int] = []
    storage.put("large", memoryview(data), told.append)
    assert sum(told) == len(data)
    assert read(storage, "large", len(data) - 5, 5) == data[-5:]
    assert read(storage, "large", PART - 2, 4) == data[PART - 2 : PART + 2]
    assert storage.unfinished() == []


def test_of_many_creators_exactly_one_wins(storage: Storage) -> None:
    winners = race(8, lambda number: storage.create("LATEST", str(number).encode()))
    assert len(winners) == 1
    blob = storage.get("LATEST")
    assert blob is not None
    assert blob.data == str(winners[0]).encode()


def test_of_many_swappers_exactly_one_wins(swapping: Storage) -> None:
    storage = swapping
    assert storage.create("LATEST", b"first")
    blob = storage.get("LATEST")
    assert blob is not None
    winners = race(8, lambda number: storage.swap("LATEST", str(number).encode(), blob.etag))
    assert len(winners) == 1
    after = storage.get("LATEST")
    assert after is not None
    assert after.data == str(winners[0]).encode()


def test_a_swap_of_what_is_missing_fails(swapping: Storage) -> None:
    storage = swapping
    assert storage.create("LATEST", b"first")
    blob = storage.get("LATEST")
    assert blob is not None
    storage.delete(["LATEST"])
    assert not storage.swap("LATEST", b"second", blob.etag)
    assert storage.get("LATEST") is None


def test_a_listing_of_several_pages_is_complete(storage: Storage) -> None:
    names = [f"many/{number}" for number in range(10)]
    for name in names:
        storage.put(name, memoryview(b""))
    assert storage.keys("many/") == names
    storage.delete(names)
    assert storage.keys("many/") == []


def test_only_a_store_without_a_swap_of_its_own_is_weaker(storage: Storage) -> None:
    if isinstance(storage, FsspecStorage) and not isinstance(storage, S3fsStorage):
        missing = "conditional writes" if "plain://" in storage.url else "compare-and-swap"
        assert f"has no {missing} through fsspec" in storage.weaker
    else:
        assert storage.weaker == ""


def test_an_upload_that_was_left_is_seen_and_ended(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = use_s3(monkeypatch, s3_endpoint)
    client = boto3.client("s3")
    for key in ("run/3/step-00000001/__0_0.distcp", "run/4/step-00000009/__0_0.distcp", "else"):
        client.create_multipart_upload(Bucket=bucket, Key=key)
    for storage in (S3Storage(f"s3://{bucket}/run"), S3fsStorage(f"s3://{bucket}/run")):
        assert [key[0] for key in sorted(storage.unfinished())] == ["3", "4"]
        assert storage.abort_uploads("3/") == 1
        [left] = storage.unfinished()
        assert left == "4/step-00000009/__0_0.distcp"
        assert storage.abort_uploads(left) == 1
        client.create_multipart_upload(Bucket=bucket, Key=f"run/{left}")
        client.create_multipart_upload(Bucket=bucket, Key="run/3/step-00000001/__0_0.distcp")
        storage.close()


KILLED_AT_ITS_FIRST_BYTES = """
import os, signal, sys
from pathlib import Path
from spotelastic_checkpoints.storage.folder import FolderStorage

def die(nbytes: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)

FolderStorage(Path(sys.argv[1])).put(sys.argv[2], memoryview(b"data"), die)
"""


def test_what_a_writer_that_was_killed_left_in_a_folder_is_seen_and_ended(tmp_path: Path) -> None:
    storage = FolderStorage(tmp_path)
    names = ("LATEST", "3/step-00000001/__0_0.distcp", "4/step-00000009/__0_0.distcp")
    for name in names:
        writer = [sys.executable, "-c", KILLED_AT_ITS_FIRST_BYTES, str(tmp_path), name]
        assert subprocess.run(writer, check=False).returncode == -signal.SIGKILL
    assert storage.unfinished() == sorted(names)
    assert storage.abort_uploads("3/") == 1
    assert storage.abort_uploads(names[2]) == 1
    assert storage.unfinished() == ["LATEST"]
    assert storage.create("LATEST", b"one") and storage.swap("LATEST", b"two", etag_of(storage))
    assert storage.unfinished() == []


def etag_of(storage: FolderStorage) -> str:
    found = storage.get("LATEST")
    assert found is not None
    return found.etag


@pytest.mark.parametrize("kind", [S3Storage, S3fsStorage])
def test_a_part_that_fails_leaves_neither_object_nor_upload(
    kind: type[S3Storage | S3fsStorage], faulty: FaultyS3
) -> None:
    storage = kind(faulty.url)
    faulty.answer("PUT", "partNumber=2", 503)
    with pytest.raises(StorageUnavailable):
        storage.put("large", memoryview(bytes(5 * PART)))
    assert storage.get("large") is None
    eventually(lambda: storage.unfinished() == [], "the end of the upload, which is not waited for")
    storage.close()


@pytest.mark.parametrize("kind", [S3Storage, S3fsStorage])
def test_a_conflict_is_neither_won_nor_lost(
    kind: type[S3Storage | S3fsStorage], faulty: FaultyS3
) -> None:
    storage = kind(faulty.url)
    faulty.answer("PUT", "shard", 409)
    with pytest.raises(StorageUnavailable):
        storage.put("shard", memoryview(b"data"))
    faulty.answer("PUT", "LATEST", 409)
    with pytest.raises(StorageUnavailable):
        storage.create("LATEST", b"first")
    assert storage.create("LATEST", b"first")
    blob = storage.get("LATEST")
    assert blob is not None
    faulty.answer("PUT", "LATEST", 409)
    with pytest.raises(StorageUnavailable):
        storage.swap("LATEST", b"second", blob.etag)
    assert storage.swap("LATEST", b"second", blob.etag)
    storage.close()


def test_a_claim_whose_answer_was_lost_is_recognised_by_its_nonce(faulty: FaultyS3) -> None:
    """The write came through, the answer did not: the repeated write meets 412."""
    commits = Commits(open_storage(faulty.url), "me")
    assert commits.claim().epoch == 1
    faulty.lose_answer("PUT", "LATEST")
    with pytest.raises(StorageUnavailable):
        commits.claim()
    assert commits.claim().epoch == 2


@pytest.mark.parametrize("kind", [S3Storage, S3fsStorage])
def test_a_read_that_is_cut_short_is_unavailable_not_short(
    kind: type[S3Storage | S3fsStorage], faulty: FaultyS3
) -> None:
    storage = kind(faulty.url)
    data = os.urandom(1 << 20)
    storage.put("shard", memoryview(data))
    faulty.truncate("GET", "shard", 1000)
    with pytest.raises(StorageUnavailable):
        read(storage, "shard", 0, len(data))
    assert read(storage, "shard", 0, len(data)) == data
    storage.close()


def test_a_bucket_of_another_region_is_refused(faulty: FaultyS3) -> None:
    storage = open_storage(faulty.url)
    faulty.answer("GET", "LATEST", 301)
    with pytest.raises(StorageRefused, match="AWS_REGION"):
        storage.get("LATEST")
    storage.close()


def test_no_permission_is_refused(faulty: FaultyS3) -> None:
    storage = open_storage(faulty.url)
    faulty.answer("PUT", "LATEST", 403)
    with pytest.raises(StorageRefused, match="403"):
        storage.create("LATEST", b"first")
    storage.close()


class Careless(FolderStorage):
    """Ignores conditions, as `rclone serve s3` does."""

    def create(self, key: str, data: bytes) -> bool:
        self.put(key, memoryview(data))
        return True


def test_a_store_that_ignores_conditions_is_refused_unless_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Careless(tmp_path)
    with pytest.raises(StorageRefused, match="SPOTELASTIC_WEAK_STORAGE=1"):
        Commits(storage, "me").claim()
    monkeypatch.setenv("SPOTELASTIC_WEAK_STORAGE", "1")
    assert Commits(storage, "me").claim().epoch == 1


def test_a_missing_bucket_is_refused_by_name(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_s3(monkeypatch, s3_endpoint)
    storage = open_storage("s3://nobody-made-this/run")
    with pytest.raises(StorageRefused, match="no bucket nobody-made-this"):
        storage.keys()
    storage.close()


def test_a_store_that_is_away_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    storage = open_storage("s3://bucket/run")
    said = set()
    for _ in range(3):
        with pytest.raises(StorageUnavailable) as caught:
            storage.get("LATEST")
        said.add(str(caught.value))
    assert len(said) == 1, "an outage is told once"
    storage.close()


def test_a_folder_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StorageRefused):
        open_storage(str(tmp_path / "file" / "store"))


CALLS: dict[str, Callable[[Storage, str], object]] = {
    "get": lambda storage, _: storage.get("LATEST"),
    "read": lambda storage, _: read(storage, "LATEST", 0, 4),
    "put": lambda storage, _: storage.put("shard", memoryview(b"data")),
    "put in parts": lambda storage, _: storage.put("large", memoryview(bytes(3 * PART))),
    "create": lambda storage, _: storage.create("new", b"first"),
    "swap": lambda storage, etag: storage.swap("LATEST", b"second", etag),
    "keys": lambda storage, _: storage.keys(),
    "delete": lambda storage, _: storage.delete(["shard"]),
}
"""One of each, on a store whose LATEST has the etag."""
PARTS = {
    "get": "LATEST",
    "read": "LATEST",
    "put": "shard",
    "put in parts": "large",
    "create": "new",
    "swap": "LATEST",
    "keys": "list-type",
    "delete": "delete",
}
"""By what a request of the call's own is known: an upload that was given up is still aborted."""


def with_latest(storage: Storage) -> str:
    """Its etag."""
    assert storage.create("LATEST", b"first")
    blob = storage.get("LATEST")
    assert blob is not None
    return blob.etag


@pytest.mark.parametrize("kind", [S3Storage, *soaked([S3fsStorage])])
def test_any_call_that_is_refused_for_now_or_cut_is_unavailable(
    kind: type[S3Storage | S3fsStorage], faulty: FaultyS3
) -> None:
    storage = kind(faulty.url)
    etag = with_latest(storage)
    for name, call in CALLS.items():
        for fault in (*(Fault(status=status) for status in (400, 409, 500, 503)), Fault(deaf=True)):
            faulty.strike(0, fault)
            try:
                call(storage, etag)
                assert fault.deaf, f"{name} passes over {fault}"  # which a client may ask again
            except StorageUnavailable:
                pass
            assert faulty.struck, (name, fault)
    storage.close()


@pytest.mark.parametrize("kind", [S3Storage, S3fsStorage])
def test_a_server_that_does_not_answer_is_given_up(
    kind: type[S3Storage | S3fsStorage], faulty: FaultyS3
) -> None:
    patient = kind(faulty.url)
    etag = with_latest(patient)
    patient.close()
    storage = kind(faulty.url, limits=SOON)
    for name, call in CALLS.items():
        # On a slow machine a request of the call before may come only now, and take one of them.
        holds = [faulty.hold("", PARTS[name]) for _ in range(2)]
        with pytest.raises(StorageUnavailable):
            call(storage, etag)
        for hold in holds:
            hold.go_on.set()
        faulty.forget()  # or this one may have given up before its request was there
    storage.close()
