"""Ranges of objects come the way that the S3 client takes: through the proxy that is named."""

import base64
import os
import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from spotelastic_checkpoints.errors import StorageRefused
from spotelastic_checkpoints.storage.open import open_storage
from spotelastic_checkpoints.storage.s3.access import find_access
from spotelastic_checkpoints.storage.s3.ranges import Ranges, proxy_of
from support.processes.http_proxy import http_proxy, serving
from support.store.certificates import certificates

DATA = os.urandom(1 << 16)
BASIC = f"Basic {base64.b64encode(b'me:p@ss').decode()}"
SIGNED = "run/shard?signed=yes"


class Object(BaseHTTPRequestHandler):
    """Answers to ranges of one object, under its signed URL."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        found = self.path == f"/{SIGNED}" and "Proxy-Authorization" not in self.headers
        data = DATA[int(first) : int(last) + 1] if found else b""
        self.send_response_only(206 if found else 404)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


class Through(Object):
    """What the proxy passes on has its own header still."""

    def do_GET(self) -> None:
        del self.headers["Proxy-Authorization"]
        super().do_GET()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def origin() -> Iterator[ThreadingHTTPServer]:
    with serving(Through) as server:
        yield server


def read(base: str, times: int = 1) -> None:
    found = Ranges(lambda _: f"{base}/{SIGNED}")
    try:
        for _ in range(times):
            target = memoryview(bytearray(1000))
            assert found.read("shard", 500, target) == 1000
            assert target == DATA[500:1500]
    finally:
        found.close()


def test_an_http_endpoint_is_asked_through_the_proxy(
    origin: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with http_proxy(origin.server_port) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://me:p%40ss@{proxy.address}")
        read("http://store.invalid:9000", times=2)
    assert proxy.asked == [f"GET http://store.invalid:9000/{SIGNED}"] * 2
    assert proxy.allowed == [BASIC] * 2


def test_an_https_endpoint_is_asked_through_a_tunnel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = certificates(tmp_path / "tls")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(files.cert), str(files.key))
    monkeypatch.setenv("SSL_CERT_FILE", str(files.cacert))
    with serving(Object, context) as origin, http_proxy(origin.server_port) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"me:p%40ss@{proxy.address}")
        read("https://localhost:1", times=2)
    assert proxy.asked == ["CONNECT localhost:1"], "kept for the next range"
    assert proxy.allowed == [BASIC]


@pytest.mark.parametrize("exempt", ["127.0.0.1", "example.com, 127.0.0.0/8", "*"])
def test_what_no_proxy_names_is_asked_directly(
    exempt: str, origin: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", exempt)
    read(f"http://127.0.0.1:{origin.server_port}")


def test_another_host_is_not_exempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", "example.com,10.0.0.0/8")
    for host in ("store.invalid", "11.0.0.1", "[::1]"):
        found = proxy_of(urlsplit(f"https://{host}/"))
        assert found is not None and found.netloc == "proxy:3128"
    assert proxy_of(urlsplit("https://s3.example.com/")) is None


@pytest.mark.parametrize("scheme", ["https", "socks5"])
def test_a_proxy_of_another_kind_is_refused_without_its_password(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"{scheme}://me:secret@proxy:3128")
    with pytest.raises(StorageRefused, match=f"one of {scheme}://.*NO_PROXY") as caught:
        read("https://localhost:1")
    assert "secret" not in str(caught.value)


def test_a_proxy_that_no_restore_could_use_is_refused_when_the_storage_is_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("HTTPS_PROXY", "https://proxy:3128")
    with pytest.raises(StorageRefused, match=r"one of https://.*s3\.eu-west-1\.amazonaws\.com in"):
        open_storage("s3://bucket/run")
    monkeypatch.setenv("NO_PROXY", "s3.eu-west-1.amazonaws.com")
    open_storage("s3://bucket/run").close()
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio:9000")
    open_storage("s3://bucket/run").close()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 407 Who are you\r\n\r\n", b"nonsense\r\n\r\n", b""])
def test_a_proxy_that_lets_nobody_through_is_an_error_of_the_connection(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    with serving(Refusing) as server:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(OSError):
            read("https://localhost:1")


def test_the_region_is_asked_for_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")

    class Nobody(BaseHTTPRequestHandler):
        pass

    with serving(Nobody) as server, http_proxy(server.server_port) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy.address}")
        assert find_access("bucket").config["region"] == "us-east-1", "no TLS is spoken there"
    assert proxy.asked == ["CONNECT s3.amazonaws.com:443"]
