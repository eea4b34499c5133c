"""The local cloud lives as long as a command or a cluster needs it, and its buckets live longer."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.aws.cluster_requests import request
from support.clusters.local_cloud import IDLE, Laptop, environment, until

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.clusters import teardown
from spotelastic.errors import Unavailable
from spotelastic.local import cloud, joining
from spotelastic.local.base import processes
from spotelastic.local.cloud import CloudInfo
from spotelastic.local.joining import CloudUse

JOINS = """
import sys
from spotelastic.local import joining
use = joining.enter()
use.works_on(sys.argv[1], stays=False)
print("in", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def first(tmp_path: Path) -> Iterator[CloudUse]:
    """Of a command that has started the cloud."""
    with environment(SPOTELASTIC_HOME=str(tmp_path)):
        use = started()
        with environment(**cloud.environment(use.info)):
            yield use
        if not ended(use.info):
            cloud.stop(use.info)


def started() -> CloudUse:
    ours, theirs = socket.socketpair()
    with theirs:
        return CloudUse(cloud.start(user=theirs, boot_command=IDLE), ours)


def ended(info: CloudInfo) -> bool:
    return processes.started_at(info.pid) != info.started


def make(name: str, info: CloudInfo) -> Aws:
    aws = Aws(info.region)
    clusters.create(request(name, network=info.net), lambda _: None, aws)
    return aws


def silent(_: str) -> None: ...


@pytest.mark.soak
def test_a_cluster_goes_with_the_last_command_that_works_on_it_and_the_cloud_with_the_last_cluster(
    first: CloudUse,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", JOINS, "a"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as second:
        assert second.stdout is not None and second.stdout.readline() == b"in\n"
        first.works_on("b", stays=False)
        aws = make("a", first.info)
        make("b", first.info)
        beside = joining.enter()
        assert beside is not None
        beside.works_on("b")
        first.works_on("b", stays=True)
        told: list[str] = []
        assert first.leave(told.append) == beside.leave(told.append) == "nothing" and not told
        second.kill()
    until(lambda: clusters.all_names(aws) == ("b",))
    assert not ended(first.info)
    with suppress(Unavailable):  # the cloud may go before its last answer
        teardown.delete("b", aws=aws)  # as its leader does
    until(lambda: ended(first.info))
    assert joining.enter() is None


@pytest.mark.soak
def test_the_cluster_that_two_commands_show_ends_with_the_second(first: CloudUse) -> None:
    first.works_on("a", stays=False)
    make("a", first.info)
    beside = joining.enter()
    assert beside is not None
    beside.works_on("a")
    told: list[str] = []
    assert first.leave(told.append) == "nothing"
    assert told == ["a keeps running: another command works on it"]
    assert beside.leave(told.append) == "cloud"
    assert told[1:] == ["ending the local cloud"] and ended(first.info)


def test_what_is_in_a_bucket_is_there_for_the_next_cloud_also_after_it_was_killed(
    first: CloudUse,
) -> None:
    def s3(info: CloudInfo) -> Any:
        return Laptop(info).client("s3")

    of_before, large = s3(first.info), os.urandom(6 << 20)
    of_before.create_bucket(Bucket="bucket")
    for key in ("run/1", "run/2", "run", "run//odd/"):
        of_before.put_object(Bucket="bucket", Key=key, Body=large + key.encode())
    of_before.put_object(Bucket="bucket", Key="run/1", Body=b"anew")
    of_before.delete_object(Bucket="bucket", Key="run/2")
    of_before.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": "run//odd/"}]})
    upload = of_before.create_multipart_upload(Bucket="bucket", Key="parts")["UploadId"]
    name = {"Bucket": "bucket", "Key": "parts", "UploadId": upload}
    etags = [
        of_before.upload_part(PartNumber=number, Body=part, **name)["ETag"]
        for number, part in enumerate((large, b"end"), 1)
    ]
    parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
    of_before.complete_multipart_upload(MultipartUpload={"Parts": parts}, **name)
    os.kill(first.info.pid, signal.SIGKILL)
    until(lambda: ended(first.info))
    assert (cloud.buckets() / "bucket/run/1").read_bytes() == b"anew"
    use = started()
    now = s3(use.info)
    found = {item["Key"] for item in now.list_objects_v2(Bucket="bucket")["Contents"]}
    assert found == {"run/1", "run", "parts"}
    for key, data in {"run/1": b"anew", "run": large + b"run", "parts": large + b"end"}.items():
        assert now.get_object(Bucket="bucket", Key=key)["Body"].read() == data
    now.put_object(Bucket="bucket", Key="run/1", Body=b"once more")
    assert now.get_object(Bucket="bucket", Key="run/1")["Body"].read() == b"once more"
    assert use.leave(silent) == "cloud", "nothing needs it"
