"""Which answers of S3 end a save, and which are waited out."""

import errno

import pytest
from botocore.exceptions import ClientError
from obstore.exceptions import GenericError
from spotelastic_checkpoints.errors import StorageRefused, StorageUnavailable
from spotelastic_checkpoints.storage import s3
from spotelastic_checkpoints.storage.s3 import S3Storage


def answered(status: int, code: str) -> GenericError:
    """In obstore's words."""
    return GenericError(
        "Generic S3 error: Error performing GET http://s3/key in 1.5ms - Server returned non-2xx "
        f"status code: {status} Bad Request: <Error><Code>{code}</Code></Error>"
    )


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> S3Storage:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    return S3Storage("s3://bucket/run")


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
def test_what_passes_is_waited_out(storage: S3Storage, status: int, code: str) -> None:
    with pytest.raises(StorageUnavailable, match=f"{status} {code}"), storage._explained("key"):
        raise answered(status, code)


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "InvalidArgument"), (403, "AccessDenied"), (403, "SignatureDoesNotMatch")],
)
def test_what_will_be_answered_again_is_refused(storage: S3Storage, status: int, code: str) -> None:
    with pytest.raises(StorageRefused, match=f"{status} {code}"), storage._explained("key"):
        raise answered(status, code)


def test_a_machine_without_memory_for_a_process_is_waited_out(
    storage: S3Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(s3.subprocess, "run", run)
    with pytest.raises(StorageUnavailable, match=r"unfinished uploads: .*Cannot allocate memory"):
        storage.unfinished()
    with pytest.raises(StorageUnavailable, match="Cannot allocate memory"):
        storage.abort_uploads("1/")


def test_an_upload_that_somebody_has_aborted_can_be_made_again(
    storage: S3Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(*_: object, **__: object) -> None:
        raise FileNotFoundError(str(answered(404, "NoSuchUpload")))

    monkeypatch.setattr(s3.obstore, "put", put)
    with pytest.raises(StorageUnavailable, match="NoSuchUpload"):
        storage.put("key", memoryview(b"data"))


def test_it_can_with_s3fs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = pytest.importorskip("spotelastic_checkpoints.storage.s3fs_adapter")

    async def call(method: str, **_: object) -> dict[str, str]:
        if method == "create_multipart_upload":
            return {"UploadId": "u"}
        answer = {"Error": {"Code": "NoSuchUpload"}, "ResponseMetadata": {"HTTPStatusCode": 404}}
        raise ClientError(answer, method)

    monkeypatch.setattr(adapter, "WHOLE", 0)
    storage = adapter.S3fsStorage("s3://bucket/run")
    monkeypatch.setattr(storage, "_call", call)
    with pytest.raises(StorageUnavailable, match="aborted"):
        storage.put("key", memoryview(b"data"))
