"""Which answers of S3 end a save, and which are waited out."""

import asyncio
import errno
import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError
from spotelastic_checkpoints.errors import StorageRefused, StorageUnavailable
from spotelastic_checkpoints.storage.hanging import Copies
from spotelastic_checkpoints.storage.limits import Limits
from spotelastic_checkpoints.storage.s3 import s3_storage
from spotelastic_checkpoints.storage.s3.s3_storage import S3Storage
from support.answering import answering
from support.patience import PATIENT, eventually


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> S3Storage:
    return storage_at(monkeypatch, "http://127.0.0.1:1")


def storage_at(patch: pytest.MonkeyPatch, endpoint: str) -> S3Storage:
    patch.setenv("AWS_ENDPOINT_URL", endpoint)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        patch.setenv(name, "test")
    return S3Storage("s3://bucket/run")


def put(storage: S3Storage) -> None:
    storage.put("key", memoryview(b"data"))


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "RequestTimeout"),
        (400, "ExpiredToken"),
        (400, "IncompleteBody"),
        (403, "RequestTimeTooSkewed"),
        (409, "OperationAborted"),
        (503, "SlowDown"),
    ],
)
def test_what_passes_is_waited_out(status: int, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(status, code) as endpoint:
        storage = storage_at(monkeypatch, endpoint)
        for call in (put, S3Storage.keys, lambda storage: storage.get("key")):
            with pytest.raises(StorageUnavailable, match=f"{status} {code}"):
                call(storage)


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "InvalidArgument"), (403, "AccessDenied"), (403, "SignatureDoesNotMatch")],
)
def test_what_will_be_answered_again_is_refused(
    status: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(status, code) as endpoint:
        storage = storage_at(monkeypatch, endpoint)
        for call in (put, S3Storage.keys, lambda storage: storage.get("key")):
            with pytest.raises(StorageRefused, match=f"{status} {code}"):
                call(storage)


def test_a_machine_without_memory_for_a_process_is_waited_out(
    storage: S3Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(s3_storage.subprocess, "run", run)
    with pytest.raises(StorageUnavailable, match=r"unfinished uploads: .*Cannot allocate memory"):
        storage.unfinished()
    with pytest.raises(StorageUnavailable, match="Cannot allocate memory"):
        storage.abort_uploads("1/")


def test_an_upload_that_somebody_has_aborted_can_be_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with answering(404, "NoSuchUpload") as endpoint:
        storage = storage_at(monkeypatch, endpoint)
        with pytest.raises(StorageUnavailable, match="NoSuchUpload"):
            put(storage)


def test_it_can_with_s3fs_too() -> None:
    adapter = pytest.importorskip("spotelastic_checkpoints.storage.s3.s3fs_storage")

    async def call(method: str, **_: object) -> dict[str, str]:
        if method == "create_multipart_upload":
            return {"UploadId": "u"}
        answer = {"Error": {"Code": "NoSuchUpload"}, "ResponseMetadata": {"HTTPStatusCode": 404}}
        raise ClientError(answer, method)

    storage = adapter.S3fsStorage("s3://bucket/run", whole=0, request=call)
    with pytest.raises(StorageUnavailable, match="aborted"):
        storage.put("key", memoryview(b"data"))


class Counted(Copies):
    """How often it was asked for room."""

    asked = 0

    def room(self, nbytes: int, seconds: float) -> Callable[[], None]:
        self.asked += 1
        return super().room(nbytes, seconds)


class Uploading:
    """s3fs's requests to write, answered when the test says so."""

    def __init__(self, room: int, **options: Any) -> None:
        adapter = pytest.importorskip("spotelastic_checkpoints.storage.s3.s3fs_storage")
        self.copies = Counted(room, small=0)
        options |= {"copies": self.copies, "request": self._request}
        self.storage = adapter.S3fsStorage("s3://bucket/run", **options)
        self.hasty = adapter.S3fsStorage("s3://bucket/run", limits=Limits(answer=0.05), **options)
        """The same with little time for an answer."""
        self.at_once = self.most = 0
        self.until: Callable[[], bool] = lambda: True
        """What a request waits for,"""
        self.blocks = threading.Event()
        """and what the whole event loop does."""
        self.blocks.set()

    async def _request(self, method: str, **arguments: Any) -> dict[str, str]:
        nbytes = len(arguments.get("Body", b""))
        self.at_once += nbytes
        self.most = max(self.most, self.at_once)
        assert self.blocks.wait(PATIENT)
        try:
            while nbytes and not self.until():
                await asyncio.sleep(0)
        finally:
            self.at_once -= nbytes
        return {"ETag": "e", "UploadId": "u"}

    def is_free(self, nbytes: int) -> bool:
        try:
            give_back = self.copies.room(nbytes, 0.01)
        except TimeoutError:
            return False
        give_back()
        return True


def test_with_s3fs_no_more_is_copied_at_a_time_than_there_is_room_for() -> None:
    uploading = Uploading(3000)
    uploading.until = lambda: uploading.copies.asked >= 12 and uploading.most >= 3000
    data = memoryview(bytes(1000))
    with ThreadPoolExecutor(12) as pool:
        for put in [pool.submit(uploading.storage.put, f"s{n}", data) for n in range(12)]:
            put.result(PATIENT)
    assert uploading.most == 3000
    uploading.storage.put("larger", memoryview(bytes(5000)))
    assert uploading.is_free(3000)


@pytest.mark.parametrize("whole", [1000, 0])
def test_with_s3fs_a_copy_keeps_its_room_until_its_request_ends(whole: int) -> None:
    uploading = Uploading(1000, whole=whole)
    data = memoryview(bytes(1000))
    uploading.blocks.clear()
    with pytest.raises(StorageUnavailable):
        uploading.hasty.put("shard", data)
    assert not uploading.is_free(1)
    with pytest.raises(StorageUnavailable, match="shard: no room within"):
        uploading.hasty.put("shard", data)
    uploading.blocks.set()
    eventually(lambda: uploading.is_free(1000))
    uploading.until = lambda: False
    with pytest.raises(StorageUnavailable):
        uploading.hasty.put("shard", data)
    eventually(lambda: uploading.is_free(1000))
    uploading.until = lambda: True
    uploading.storage.put("shard", data)


@pytest.mark.parametrize("whole", [1000, 0])
def test_with_s3fs_an_error_that_somebody_keeps_does_not_keep_what_could_not_be_written(
    whole: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = pytest.importorskip("spotelastic_checkpoints.storage.s3.s3fs_storage")

    class Copy(bytes):
        def __del__(self) -> None:
            freed.append(len(self))

    async def call(method: str, **arguments: Any) -> dict[str, str]:
        await asyncio.sleep(0)  # until all parts are on their way
        if "Body" in arguments:
            raise OSError("away")
        return {"UploadId": "u"}

    freed: list[int] = []
    monkeypatch.setattr(adapter, "part_size", lambda _: 250)
    monkeypatch.setattr(adapter, "bytes", Copy, raising=False)
    storage = adapter.S3fsStorage("s3://bucket/run", whole=whole, request=call)
    gc.disable()
    try:
        with pytest.raises(StorageUnavailable, match="shard: away") as caught:
            storage.put("shard", memoryview(bytes(1000)))
        eventually(lambda: sum(freed) == 1000)
        del caught
    finally:
        gc.enable()
