"""The contract of the object store port, on a folder and on an S3 server."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer
from spotelastic_checkpoints.errors import StorageRefused, StorageUnavailable
from spotelastic_checkpoints.storage import s3
from spotelastic_checkpoints.storage.open import open_storage
from spotelastic_checkpoints.storage.port import Storage
from spotelastic_checkpoints.storage.s3 import PART


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(params=["folder", "s3"])
def storage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Storage]:
    if request.param == "folder":
        opened = open_storage(str(tmp_path / "store"))
    else:
        bucket = use_s3(monkeypatch, request.getfixturevalue("s3_endpoint"))
        opened = open_storage(f"s3://{bucket}/run/checkpoints")
    yield opened
    opened.close()


def use_s3(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    bucket = f"bucket-{os.urandom(4).hex()}"
    boto3.client("s3").create_bucket(Bucket=bucket)
    return bucket


def race(attempts: int, attempt: Callable[[int], bool]) -> list[int]:
    """Who of several threads that start together succeeded."""
    barrier = threading.Barrier(attempts)

    def run(number: int) -> bool:
        barrier.wait(20)
        return attempt(number)

    with ThreadPoolExecutor(attempts) as pool:
        return [number for number, won in enumerate(pool.map(run, range(attempts))) if won]


def test_what_was_put_is_read_and_listed(storage: Storage) -> None:
    assert storage.get("1/step-00000001/a") is None
    assert storage.read("1/step-00000001/a", 0, 4) == b""
    storage.put("1/step-00000001/a", memoryview(b"0123456789"))
    storage.put("1/step-00000001/b", memoryview(b""))
    storage.put("2/step-00000001/a", memoryview(b"other"))

    blob = storage.get("1/step-00000001/a")
    assert blob is not None
    assert blob.data == b"0123456789"
    assert storage.read("1/step-00000001/a", 3, 4) == b"3456"
    assert storage.read("1/step-00000001/a", 8, 4) == b"89"
    assert storage.keys() == ["1/step-00000001/a", "1/step-00000001/b", "2/step-00000001/a"]
    assert storage.keys("1/") == ["1/step-00000001/a", "1/step-00000001/b"]
    assert storage.keys("3/") == []


def test_deleted_keys_are_gone_and_missing_ones_are_ignored(storage: Storage) -> None:
    storage.put("a", memoryview(b"1"))
    storage.delete(["a", "b"])
    assert storage.keys() == []


def test_an_object_of_several_parts_is_whole(storage: Storage) -> None:
    data = os.urandom(1 << 16) * (3 * PART // (1 << 16)) + b"end"
    storage.put("large", memoryview(data))
    assert storage.read("large", len(data) - 5, 5) == data[-5:]
    assert storage.read("large", PART - 2, 4) == data[PART - 2 : PART + 2]
    assert storage.abort_uploads("") == 0


def test_of_many_creators_exactly_one_wins(storage: Storage) -> None:
    winners = race(8, lambda number: storage.create("LATEST", str(number).encode()))
    assert len(winners) == 1
    blob = storage.get("LATEST")
    assert blob is not None
    assert blob.data == str(winners[0]).encode()


def test_of_many_swappers_exactly_one_wins(storage: Storage) -> None:
    assert storage.create("LATEST", b"first")
    blob = storage.get("LATEST")
    assert blob is not None
    winners = race(8, lambda number: storage.swap("LATEST", str(number).encode(), blob.etag))
    assert len(winners) == 1
    after = storage.get("LATEST")
    assert after is not None
    assert after.data == str(winners[0]).encode()


def test_a_swap_of_what_is_missing_fails(storage: Storage) -> None:
    assert storage.create("LATEST", b"first")
    blob = storage.get("LATEST")
    assert blob is not None
    storage.delete(["LATEST"])
    assert not storage.swap("LATEST", b"second", blob.etag)
    assert storage.get("LATEST") is None


def test_a_listing_of_several_pages_is_complete(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "PAGE", 4)
    names = [f"many/{number}" for number in range(10)]
    for name in names:
        storage.put(name, memoryview(b""))
    assert storage.keys("many/") == names


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
    with pytest.raises(StorageUnavailable):
        storage.get("LATEST")
    storage.close()


def test_a_folder_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StorageRefused):
        open_storage(str(tmp_path / "file" / "store"))


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(StorageRefused, match="ftp://host"):
        open_storage("ftp://host/folder")
