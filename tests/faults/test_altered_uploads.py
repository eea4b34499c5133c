"""What a proxy changes of an upload on its way is never committed.

The server of these tests compares no checksums, so that what went up is read back. How a store that
compares them answers is in the last test.
"""

import base64
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch
from spotelastic_checkpoints.catalog.catalog import Catalog
from spotelastic_checkpoints.commit.latest import LATEST
from spotelastic_checkpoints.errors import StorageUnavailable
from spotelastic_checkpoints.storage.open import open_storage
from support.draws import soaked
from support.saving.faulty_s3 import Fault, FaultyS3
from support.saving.s3_servers import use_s3

import spotelastic as se


@pytest.fixture
def proxy(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    bucket = use_s3(monkeypatch, s3_endpoint)
    with FaultyS3(s3_endpoint, f"s3://{bucket}/run") as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy


@pytest.mark.parametrize("size", [1, 4096, (4 << 20) + 3, *soaked([(64 << 20) + 5])])
def test_an_upload_that_was_changed_is_told_and_repeated(proxy: FaultyS3, size: int) -> None:
    storage, data = (
        open_storage(proxy.url),
        memoryview(bytes(range(256)) * (size // 256 + 1))[:size],
    )
    proxy.flip("PUT", "shard")
    with pytest.raises(StorageUnavailable, match="shard: what arrived is not what was sent"):
        storage.put("shard", data)
    storage.put("shard", data)
    found = bytearray(size)
    assert storage.read("shard", 0, memoryview(found)) == size and found == data


def test_conditional_writes_that_were_changed_are_written_again(proxy: FaultyS3) -> None:
    storage = open_storage(proxy.url)
    proxy.flip("PUT", "record")
    assert storage.create("record", b"first")
    blob = storage.get("record")
    assert blob is not None and blob.data == b"first"
    assert not storage.create("record", b"second")
    proxy.flip("PUT", "record")
    assert storage.swap("record", b"second", blob.etag)
    blob = storage.get("record")
    assert blob is not None and blob.data == b"second"


def test_a_save_is_committed_only_once_all_of_it_arrived_as_it_was_sent(
    proxy: FaultyS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first upload of each object is changed, and each second one of shards."""
    monkeypatch.setenv("SPOTELASTIC_RUN", "run")
    for part in ("manifests/0.json", ".metadata", LATEST):
        proxy.flip("PUT", part)
    proxy.strike_again(2, Fault("PUT", ".distcp", flip=True))
    state = {"weight": torch.arange(1000.0)}
    with se.Checkpointer(state, storage=proxy.url, checkpoint_every=1) as checkpoint:
        checkpoint.restore()
        for step in (1, 2, 3):
            state["weight"] += 1
            checkpoint.step(step)
            assert checkpoint.save() and checkpoint.wait()
    assert proxy.failed  # some were changed
    catalog = Catalog(open_storage(proxy.url))
    entries = catalog.entries()
    assert [(entry.step, entry.state) for entry in entries] == [
        (step, "committed") for step in (1, 2, 3)
    ]
    for entry in entries:
        assert catalog.verify(catalog.find(entry.step), lambda _: None) == []


class Compares(BaseHTTPRequestHandler):
    """Refuses what does not match its checksum, and keeps count of what is read."""

    read: list[str]
    sums: list[str | None]
    altered = 0

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        told = self.headers.get("x-amz-checksum-crc64nvme")
        wrong = told == base64.b64encode(bytes(8)).decode()
        if wrong or (Compares.altered and body):
            Compares.altered -= not wrong
            error = b"<Error><Code>BadDigest</Code><Message>no match</Message></Error>"
            return self.answer(400, error)
        self.sums.append(told)
        return self.answer(200, b"")

    def do_GET(self) -> None:
        self.read.append(self.path)
        self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_what_the_store_has_compared_is_not_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    Compares.read, Compares.sums, Compares.altered = [], [], 1
    server = ThreadingHTTPServer(("127.0.0.1", 0), Compares)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "key")
    storage = open_storage("s3://bucket/run")
    with pytest.raises(StorageUnavailable, match="400 BadDigest: what arrived is not"):
        storage.put("shard", memoryview(b"weights"))
    storage.put("shard", memoryview(b"weights"))
    assert storage.create("record", b"all")
    assert Compares.read == [] and len(Compares.sums) == 2 and all(Compares.sums)
    server.shutdown()
    server.server_close()
