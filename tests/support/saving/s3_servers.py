"""Starts S3 servers for tests, and provides the environment variables that point to them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import boto3
import pytest
import s3fs
from moto.server import ThreadedMotoServer


@contextmanager
def s3_server() -> Iterator[str]:
    """Its endpoint."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new one, which this process finds without being told where."""
    return use_s3(monkeypatch, s3_endpoint)


def use_s3(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> str:
    """A new bucket."""
    # fsspec keeps file systems by their arguments, and the endpoint is not one of them.
    s3fs.S3FileSystem.clear_instance_cache()
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    bucket = f"bucket-{os.urandom(4).hex()}"
    boto3.client("s3").create_bucket(Bucket=bucket)
    return bucket
