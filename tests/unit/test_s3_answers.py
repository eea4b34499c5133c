"""Which answers of S3 end a save, and which are waited out."""

import pytest
from obstore.exceptions import GenericError
from spotelastic_checkpoints.errors import StorageRefused, StorageUnavailable
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
