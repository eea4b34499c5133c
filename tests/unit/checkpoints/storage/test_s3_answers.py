"""Which answers of S3 end a save, and which are waited out."""

import errno
import subprocess

import pytest
import s3fs
from spotelastic_checkpoints.errors import StorageRefused, StorageUnavailable
from spotelastic_checkpoints.storage.filesystems import S3fsStorage
from spotelastic_checkpoints.storage.s3.s3_storage import S3Storage
from support.saving.fixed_answers import answering


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

    monkeypatch.setattr(subprocess, "run", run)
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


def test_it_can_with_s3fs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(_: object, method: str, *__: object, **___: object) -> dict[str, str]:
        if method == "create_multipart_upload":
            return {"UploadId": "u"}
        raise FileNotFoundError("NoSuchUpload")

    monkeypatch.setattr(s3fs.S3FileSystem, "call_s3", call)
    storage = S3fsStorage("s3://bucket/run", whole=0)
    with pytest.raises(StorageUnavailable, match="aborted"):
        storage.put("key", memoryview(bytes(6 << 20)))


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "ExpiredToken", StorageUnavailable),
        (503, "SlowDown", StorageUnavailable),
        (403, "AccessDenied", StorageRefused),
    ],
)
def test_s3fs_waits_out_and_refuses_the_same(
    status: int, code: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(status, code) as endpoint:
        storage_at(monkeypatch, endpoint)
        storage = S3fsStorage("s3://bucket/run", {"endpoint_url": endpoint})
        for call in (S3fsStorage.keys, lambda storage: storage.get("key")):
            with pytest.raises(kind, match=f"{status} {code}"):
                call(storage)
