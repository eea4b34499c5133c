"""A cluster is brought up, looked at and taken down from a Mac, to which the cloud is AWS's.

The cloud runs beside it as a process of its own, with instances that do nothing. What nodes do
then, other tests show.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from support.aws.own_network import Own
from support.clusters.local_cloud import IDLE, running_cloud, until
from support.processes import mac

from spotelastic.aws.artifacts import boot_artifacts, wheel
from spotelastic.aws.base import account
from spotelastic.aws.base.clients import Aws
from spotelastic.aws.clusters import lifecycle
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.cloud.bucket import STATUS
from spotelastic.local import cloud
from spotelastic.local.cloud import CloudInfo
from spotelastic.local.local_session import LocalSession
from spotelastic.model.progress import NodeStatus, Status

NAME = "quokka"
NODE = NodeStatus("i-1", "worker", "training", "us-east-1a", "10.0.0.1", (0,))
TRAINS = Status(NAME, "running", 0.0, nodes=(NODE,))
"""What the leading controller publishes."""


class Mac:
    """Types commands there."""

    def __init__(self, info: CloudInfo, folder: Path) -> None:
        self.folder = folder
        self.environment = cloud.environment(info) | {"SPOTELASTIC_HOME": str(folder / "home")}

    def begin(self, *args: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            mac.command("spotelastic", *args),
            cwd=self.folder,
            env=os.environ | self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *args: str) -> str:
        with self.begin(*args) as process:
            return finished(process)


def finished(process: "subprocess.Popen[str]") -> str:
    try:
        told, complaint = process.communicate(timeout=100)
    finally:
        process.kill()
    assert process.returncode == 0, complaint
    return told


@pytest.fixture
def info(tmp_path: Path) -> Iterator[CloudInfo]:
    with running_cloud(tmp_path / "of-the-cloud", IDLE) as info:
        yield info


@pytest.mark.soak
def test_a_cluster_from_its_up_to_its_end(info: CloudInfo, tmp_path: Path) -> None:
    aws = Aws(info.region, session=LocalSession(info))
    own = Own(aws, info.net)
    bucket = account.default_bucket(aws)
    account.ensure_bucket(aws, bucket)
    objects = BucketObjects(aws, bucket, NAME)
    objects.put(boot_artifacts.ETCD.object, b"which would be fetched from its publisher")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    (folder / ".DS_Store").write_bytes(b"of the Finder")
    laptop = Mac(info, folder)

    up = ("up", "--yes", "--detach", "--name", NAME, "--min", "1", "--max", "2")
    network = ("--vpc", own.vpc, "--subnets", ",".join(own.subnets))
    with laptop.begin(*up, *network, "--instance-types", "c5.large", "train.py") as process:
        until(lambda: process.poll() is not None or lifecycle.find(NAME, aws) is not None)
        objects.put(STATUS, msgspec.json.encode(TRAINS))
        told = finished(process)
    assert f"{NAME} stays up" in told
    known = lifecycle.find(NAME, aws)
    assert known is not None
    assert known.spec.etcd_version == boot_artifacts.ETCD.version
    shipped = objects.get(boot_artifacts.CURRENT) or b""
    assert objects.get(f"boot/{shipped.decode()}") == wheel.build().data

    assert NAME in laptop("ls")
    assert "running" in laptop("status", NAME)
    assert f"{NAME} is gone" in laptop("down", NAME).splitlines()
    assert lifecycle.all_names(aws) == ()
