"""Nodes install what was tested: infra/boot/packages.txt has what they need, and nothing else."""

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from lock_nodes import LOCK, locked


def test_the_file_is_what_make_lock_writes() -> None:
    written = re.findall(r"^([\w.-]+==\S+)", LOCK.read_text(), re.MULTILINE)
    assert written == list(locked("")), "run `make lock`"
    names = {each.partition("==")[0] for each in written}
    assert {"boto3", "aiohttp", "grpcio", "etcd-sdk-python"} <= names
    assert not {"torch", "moto", "pytest", "spotelastic"} & names


@contextmanager
def index(files: dict[str, bool]) -> Iterator[str]:
    """A package index, whose releases have these files: by hash, whether it was withdrawn."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told = [{"digests": {"sha256": each}, "yanked": gone} for each, gone in files.items()]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"urls": told}).encode())

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/{{name}}/{{version}}"
    server.shutdown()
    server.server_close()


def test_pip_takes_no_file_that_has_another_hash(tmp_path: Path) -> None:
    """In a release, in which each entry has the hashes of all files that were not withdrawn."""
    wheel = tmp_path / "idna-3.20-py3-none-any.whl"
    wheel.write_bytes(b"another file of that name")
    right, gone = hashlib.sha256(b"right").hexdigest(), hashlib.sha256(b"gone").hexdigest()
    with index({right: False, gone: True}) as url:
        entries = list(locked(url))
    (entry,) = (each for each in entries if each.startswith("idna=="))
    assert entry.count("--hash=sha256:") == 1 and right in entry
    wanted = tmp_path / "packages.txt"
    wanted.write_text(entry.replace(entry.split()[0], "idna==3.20") + "\n")
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--find-links", str(tmp_path)]
    command += ["--no-deps", "--target", str(tmp_path / "into"), "-r", str(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in done.stderr
