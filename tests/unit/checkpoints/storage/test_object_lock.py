"""A bucket with object lock refuses uploads that come without a checksum."""

import base64
import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from spotelastic_checkpoints.errors import StorageUnavailable
from spotelastic_checkpoints.storage.open import open_storage

REFUSED = (
    b"<Error><Code>InvalidRequest</Code><Message>Content-MD5 OR x-amz-checksum- HTTP header is "
    b"required for Put Object requests with Object Lock parameters</Message></Error>"
)


class Locked(BaseHTTPRequestHandler):
    """Keeps what has its SHA-256, as S3 does for such a bucket."""

    kept: dict[str, bytes]

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
        if self.headers.get("x-amz-checksum-sha256") != digest:
            return self.answer(400, REFUSED)
        self.kept[self.path] = body
        return self.answer(200, b"")

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    Locked.kept = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Locked)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "key")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    yield Locked.kept
    server.shutdown()
    server.server_close()


def test_the_next_try_of_an_upload_has_the_checksum_that_the_bucket_wants(
    kept: dict[str, bytes],
) -> None:
    storage = open_storage("s3://locked/run")
    with pytest.raises(StorageUnavailable, match="wants another checksum"):
        storage.put("shard", memoryview(b"weights"))
    assert not kept
    storage.put("shard", memoryview(b"weights"))
    assert storage.create("record", b"all")
    assert kept == {"/locked/run/shard": b"weights", "/locked/run/record": b"all"}
