"""Emulates Google Cloud Storage on loopback, as far as checkpoints use its XML interface.

It supports generations and conditions on them, multipart uploads, ranges, and listings in pages.
"""

import itertools
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from support.processes.http_proxy import serving

BUCKET = "bucket"


class Gcs:
    """One bucket: by name, what each object is and its generation."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()
        self._numbers = itertools.count(1)

    def put(self, name: str, data: bytes, wanted: str | None) -> int:
        """The new generation; 0 where it was not the one that was wanted."""
        with self.lock:
            _, there = self.objects.get(name, (b"", 0))
            if wanted is not None and int(wanted) != there:
                return 0
            self.objects[name] = data, next(self._numbers)
            return self.objects[name][1]

    def begin(self) -> str:
        upload = f"upload{next(self._numbers)}"
        self.uploads[upload] = {}
        return upload


@contextmanager
def gcs_server() -> Iterator[tuple[str, Gcs]]:
    """Its address, and what is in it."""
    store = Gcs()
    with serving(partial(_Handler, store)) as server:
        yield f"http://127.0.0.1:{server.server_port}", store


def use_gcs(patch: pytest.MonkeyPatch, folder: Path, endpoint: str) -> str:
    """The URL of a folder of its own in the bucket."""
    key = {"gcs_base_url": endpoint, "disable_oauth": True}
    empty = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    file = folder / "google.json"
    file.write_text(json.dumps(key | empty))
    patch.setenv("GOOGLE_SERVICE_ACCOUNT", str(file))
    return f"gs://{BUCKET}/{os.urandom(4).hex()}"


class _Handler(BaseHTTPRequestHandler):
    """Answers requests for what is in the self._store."""

    protocol_version = "HTTP/1.1"

    def __init__(self, store: Gcs, *connection: Any) -> None:
        self._store = store
        super().__init__(*connection)

    def do_GET(self) -> None:
        name, query = self._named()
        if not name:
            return self._list(query)
        if name not in self._store.objects:
            return self._answer(404, _error("NoSuchKey"))
        data, generation = self._store.objects[name]
        span = self.headers.get("Range")
        if span is None:
            return self._answer(200, data, generation)
        first, last = (int(end) for end in span.removeprefix("bytes=").split("-"))
        if first >= len(data):
            return self._answer(416, _error("InvalidRange"))
        last = min(last, len(data) - 1)
        found = f"bytes {first}-{last}/{len(data)}"
        return self._answer(206, data[first : last + 1], generation, {"Content-Range": found})

    def do_PUT(self) -> None:
        name, query = self._named()
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if "partNumber" in query:
            self._store.uploads[query["uploadId"]][int(query["partNumber"])] = body
            return self._answer(200, b"", 1)
        generation = self._store.put(name, body, self.headers.get("x-goog-if-generation-match"))
        if not generation:
            return self._answer(412, _error("PreconditionFailed"))
        return self._answer(200, b"", generation)

    def do_POST(self) -> None:
        name, query = self._named()
        self.rfile.read(int(self.headers["Content-Length"]))
        if "uploadId" in query:
            parts = self._store.uploads.pop(query["uploadId"])
            self._store.put(name, b"".join(parts[number] for number in sorted(parts)), None)
            inner = f"<Key>{name}</Key><ETag>1</ETag>"
            return self._answer(200, _xml("CompleteMultipartUploadResult", inner))
        inner = f"<UploadId>{self._store.begin()}</UploadId>"
        return self._answer(200, _xml("InitiateMultipartUploadResult", inner))

    def do_DELETE(self) -> None:
        name, query = self._named()
        if "uploadId" in query:
            del self._store.uploads[query["uploadId"]]
        elif self._store.objects.pop(name, None) is None:
            return self._answer(404, _error("NoSuchKey"))
        return self._answer(204, b"")

    def _list(self, query: dict[str, str]) -> None:
        names = sorted(n for n in self._store.objects if n.startswith(query.get("prefix", "")))
        names = [name for name in names if name > query.get("continuation-token", "")]
        page = names[: int(query.get("max-keys", 1000))]
        entries = "".join(map(self._entry, page))
        if len(page) < len(names):
            entries += f"<NextContinuationToken>{page[-1]}</NextContinuationToken>"
        self._answer(200, _xml("ListBucketResult", entries))

    def _entry(self, name: str) -> str:
        data, generation = self._store.objects[name]
        now = datetime.now(UTC).isoformat()
        return (
            f"<Contents><Key>{name}</Key><Size>{len(data)}</Size>"
            f'<LastModified>{now}</LastModified><ETag>"{generation}"</ETag></Contents>'
        )

    def _named(self) -> tuple[str, dict[str, str]]:
        url = urlsplit(self.path)
        bucket, _, name = unquote(url.path).lstrip("/").partition("/")
        assert bucket == BUCKET
        query = parse_qs(url.query, keep_blank_values=True)
        return name, {key: values[0] for key, values in query.items()}

    def _answer(
        self, status: int, data: bytes, generation: int = 0, more: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        headers = {"Content-Length": str(len(data)), "Last-Modified": self.date_time_string()}
        if generation:
            # As with Google, an ETag says what the content is, and not which write it is of.
            headers |= {"ETag": '"same"', "x-goog-generation": str(generation)}
        for name, value in (headers | (more or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


def _xml(name: str, inner: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?><{name}>{inner}</{name}>'.encode()


def _error(code: str) -> bytes:
    return _xml("Error", f"<Code>{code}</Code>")
