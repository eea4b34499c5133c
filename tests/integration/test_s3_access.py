"""Where S3's credentials come from."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from spotelastic_checkpoints.storage.open import open_storage
from support.saving.s3_servers import s3_server, use_s3

CREDENTIALS = {
    "Code": "Success",
    "Type": "AWS-HMAC",
    "AccessKeyId": "ASIATEST",
    "SecretAccessKey": "secret",
    "Token": "token",
    "LastUpdated": "2026-01-01T00:00:00Z",
    "Expiration": "2100-01-01T00:00:00Z",
}


@pytest.fixture
def metadata() -> Iterator[tuple[str, list[str]]]:
    """A metadata service with a role, and what was asked of it."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            asked.append(self.path)
            if self.path.endswith("/token"):
                text = "token"
            elif self.path.endswith("/worker"):
                text = json.dumps(CREDENTIALS)
            else:
                text = "worker"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_PUT = answer

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", asked
        server.shutdown()
        thread.join()


def test_an_instance_uses_its_role_from_the_metadata_service_it_was_told(
    monkeypatch: pytest.MonkeyPatch, metadata: tuple[str, list[str]]
) -> None:
    endpoint, asked = metadata
    with s3_server() as s3:
        bucket = use_s3(monkeypatch, s3)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", endpoint)
        monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        storage = open_storage(f"s3://{bucket}/run")
        assert storage.create("LATEST", b"{}")
        storage.close()
    assert any(path.endswith("/worker") for path in asked)
