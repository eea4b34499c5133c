"""An S3 server that costs almost nothing: large objects are discarded as they arrive.

Real S3 runs elsewhere and takes nothing from a training job. `python s3_sink.py` prints its
address. It keeps objects up to `KEPT` bytes, conditional writes, and multipart uploads as far as
clients need them. Of larger objects it keeps the size, and refuses to return them.
"""

import socket
import sys
import threading
import uuid
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

KEPT = 8 << 20
PROBE = "checksums"
"""Key that the product uploads with a wrong checksum, to see whether that is refused."""
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Object:
    size: int
    etag: str
    data: bytes | None


class Objects:
    """All objects by bucket and key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[str, Object] = {}
        self._parts: dict[str, dict[int, Object]] = {}

    def put(self, key: str, size: int, data: bytes | None, match: str, none_match: str) -> str:
        """Store an object; return its tag, or "" if a condition failed."""
        etag = f'"{uuid.uuid4().hex}"'
        with self._lock:
            there = self._objects.get(key)
            if (none_match and there) or (match and (there is None or there.etag != match)):
                return ""
            self._objects[key] = Object(size, etag, data)
        return etag

    def get(self, key: str) -> Object | None:
        return self._objects.get(key)

    def delete(self, key: str) -> None:
        with self._lock:
            self._objects.pop(key, None)

    def under(self, prefix: str) -> list[tuple[str, Object]]:
        with self._lock:
            return sorted(
                (key, found) for key, found in self._objects.items() if key.startswith(prefix)
            )

    def begin(self) -> str:
        upload = uuid.uuid4().hex
        with self._lock:
            self._parts[upload] = {}
        return upload

    def put_part(self, upload: str, number: int, size: int, data: bytes | None) -> str:
        etag = f'"{uuid.uuid4().hex}"'
        with self._lock:
            self._parts[upload][number] = Object(size, etag, data)
        return etag

    def complete(self, upload: str, key: str) -> str:
        with self._lock:
            parts = [part for _, part in sorted(self._parts.pop(upload).items())]
        blobs = [part.data for part in parts if part.data is not None]
        size = sum(part.size for part in parts)
        whole = len(blobs) == len(parts) and size <= KEPT
        return self.put(key, size, b"".join(blobs) if whole else None, "", "")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects: ClassVar[Objects]

    def log_message(self, *_: Any) -> None:
        pass

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        place = urlsplit(self.path)
        self._key = unquote(place.path).strip("/")
        self._query = {k: v[0] for k, v in parse_qs(place.query, keep_blank_values=True).items()}
        return True

    def do_PUT(self) -> None:
        size, data = self._body()
        if self._key.endswith(f"/{PROBE}"):  # as S3 does; to compare each checksum is its own work
            self._refuse(400, "BadDigest")
            return
        if "uploadId" in self._query:
            number = int(self._query["partNumber"])
            etag = self.objects.put_part(self._query["uploadId"], number, size, data)
        else:
            conditions = self.headers.get("If-Match", ""), self.headers.get("If-None-Match", "")
            etag = self.objects.put(self._key, size, data, *conditions)
        if etag:
            self._answer(200, headers={"ETag": etag})
        else:
            self._refuse(412, "PreconditionFailed")

    def do_POST(self) -> None:
        _, data = self._body()
        if "uploads" in self._query:
            bucket, _, key = self._key.partition("/")
            self._xml(
                "InitiateMultipartUploadResult",
                f"<Bucket>{bucket}</Bucket><Key>{escape(key)}</Key>"
                f"<UploadId>{self.objects.begin()}</UploadId>",
            )
        elif "uploadId" in self._query:
            etag = self.objects.complete(self._query["uploadId"], self._key)
            bucket, _, key = self._key.partition("/")
            self._xml(
                "CompleteMultipartUploadResult",
                f"<Bucket>{bucket}</Bucket><Key>{escape(key)}</Key><ETag>{escape(etag)}</ETag>",
            )
        else:
            names = [e.text or "" for e in ElementTree.fromstring(data or b"").iter() if
                     e.tag.endswith("Key")]  # fmt: skip
            for name in names:
                self.objects.delete(f"{self._key}/{name}")
            gone = (f"<Deleted><Key>{escape(name)}</Key></Deleted>" for name in names)
            self._xml("DeleteResult", "".join(gone))

    def do_GET(self) -> None:
        if "/" not in self._key:
            self._list()
            return
        found = self.objects.get(self._key)
        if found is None:
            self._refuse(404, "NoSuchKey")
        elif found.data is None and self.command == "GET":
            self._refuse(410, "ThrownAway")
        else:
            self._give(found)

    do_HEAD = do_GET

    def do_DELETE(self) -> None:
        if "uploadId" not in self._query:
            self.objects.delete(self._key)
        self._answer(204)

    def _give(self, found: Object) -> None:
        data, status, headers = found.data or b"", 200, {"ETag": found.etag}
        asked = self.headers.get("Range", "").removeprefix("bytes=")
        if asked:
            start, _, end = asked.partition("-")
            first = int(start) if start else len(data) - int(end)
            last = min(int(end) if start and end else len(data) - 1, len(data) - 1)
            status, headers["Content-Range"] = 206, f"bytes {first}-{last}/{len(data)}"
            data = data[first : last + 1]
        headers["Last-Modified"] = self.date_time_string()
        self._answer(status, data, headers, size=found.size if self.command == "HEAD" else None)

    def _list(self) -> None:
        prefix = self._query.get("prefix", "")
        bucket = self._key
        entries, folders = [], set()
        for name, found in self.objects.under(f"{bucket}/{prefix}"):
            key = name.partition("/")[2]
            rest = key[len(prefix) :]
            if self._query.get("delimiter") and "/" in rest:
                folders.add(prefix + rest.partition("/")[0] + "/")
                continue
            entries.append(
                f"<Contents><Key>{escape(key)}</Key><Size>{found.size}</Size>"
                f"<ETag>{escape(found.etag)}</ETag>"
                "<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
            )
        common = "".join(
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
            for name in sorted(folders)
        )
        self._xml(
            "ListBucketResult",
            f"<Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix><MaxKeys>100000</MaxKeys>"
            f"<KeyCount>{len(entries) + len(folders)}</KeyCount><IsTruncated>false</IsTruncated>"
            + "".join(entries)
            + common,
        )

    # -- bytes ------------------------------------------------------------------------------------

    def _body(self) -> tuple[int, bytes | None]:
        """Read the body; return its size, and its bytes if they are kept."""
        length = int(self.headers.get("Content-Length", 0))
        chunked = "aws-chunked" in self.headers.get("Content-Encoding", "")
        size = int(self.headers.get("x-amz-decoded-content-length", length))
        if length <= KEPT:
            data = self.rfile.read(length)
            return size, _unchunked(data) if chunked else data
        # Drain what has been buffered; the kernel drops the rest without copying it.
        left = length - len(self.rfile.read(min(length, len(self.rfile.peek()))))  # type: ignore[attr-defined]
        buffer = bytearray(_PIECE)
        while left:
            count = self.connection.recv_into(buffer, min(left, _PIECE), socket.MSG_TRUNC)
            if not count:
                raise ConnectionError("the client went away")
            left -= count
        return size, None

    def _answer(
        self,
        status: int,
        data: bytes = b"",
        headers: dict[str, str] | None = None,
        size: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data) if size is None else size))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _xml(self, root: str, content: str) -> None:
        text = f'<?xml version="1.0" encoding="UTF-8"?><{root}>{content}</{root}>'
        self._answer(200, text.encode(), {"Content-Type": "application/xml"})

    def _refuse(self, status: int, code: str) -> None:
        data = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
        self._answer(status, data, {"Content-Type": "application/xml"})


def _unchunked(data: bytes) -> bytes:
    """Decode `aws-chunked`: lines with a size in hexadecimal, each followed by that many bytes."""
    parts: list[bytes] = []
    at = 0
    while True:
        line, _, _ = data[at:].partition(b"\r\n")
        size = int(line.partition(b";")[0], 16)
        if not size:
            return b"".join(parts)
        at += len(line) + 2
        parts.append(data[at : at + size])
        at += size + 2


class Server(ThreadingHTTPServer):
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: clients close connections when they end."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def main() -> None:
    Handler.objects = Objects()
    server = Server(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
