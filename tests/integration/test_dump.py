"""What a dump has of a cluster, of one that is gone, and when nothing runs any more."""

import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from support.aws.account import REGION, account
from support.aws.cluster_requests import request
from support.clusters.local_cloud import environment

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.clusters import teardown
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.messaging import log_group
from spotelastic.aws.messaging.log_group import LogStream
from spotelastic.client import find
from spotelastic.client.dump_archive import Dump
from spotelastic.clock import wall
from spotelastic.cloud.bucket import EVENTS, STATUS
from spotelastic.errors import UsageError
from spotelastic.local import cloud
from spotelastic.model.progress import NodeStatus, Status

NAME = "quokka"
PLANTED, TYPED = "postgres://me:pw@db", "typed-by-mistake"
NODES = (
    NodeStatus("i-1", "worker", "training", "z", "10.0.0.4"),
    NodeStatus("i-2", "worker", "pending", "z", ""),
    NodeStatus("i-3", "control", "leading", "z", "10.0.0.5"),
)


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRecord]:
    with account(tmp_path_factory.mktemp("account")):
        aws = Aws(REGION)
        spec = request(NAME, args=("--api-key", TYPED, "--db", PLANTED), env={"DB": PLANTED})
        made = clusters.create(spec, lambda _: None, aws)
        made.objects.put(STATUS, msgspec.json.encode(Status(NAME, "running", 1.0, nodes=NODES)))
        made.objects.put(EVENTS, f'{{"message": "connects to {PLANTED}"}}\n'.encode())
        yield made


def dump(folder: Path) -> Dump:
    return find(NAME, local=False, region=REGION, gone=True).dump(file=folder / "dump.tar.gz")


def files(made: Dump) -> dict[str, bytes]:
    with tarfile.open(made.file) as tar:
        found = {each.name: tar.extractfile(each) for each in tar}
        told = {name: file.read() for name, file in found.items() if file is not None}
    assert all(name.startswith("dump/") and ".." not in name for name in told)
    for planted in (PLANTED, TYPED):
        assert [name for name, data in told.items() if planted.encode() in data] == []
    assert Path(made.file).stat().st_mode & 0o077 == 0
    return {name.removeprefix("dump/"): data for name, data in told.items()}


def test_what_cannot_be_had_is_named_and_the_rest_is_there(
    cluster: ClusterRecord, tmp_path: Path
) -> None:
    stream = str(LogStream(log_group.born(cluster.spec.born_at), "i-1", 0))
    cluster.aws.logs.create_log_stream(logGroupName=cluster.spec.log_group, logStreamName=stream)
    event = {"timestamp": int(wall() * 1000), "message": f"uses {PLANTED}"}
    cluster.aws.logs.put_log_events(
        logGroupName=cluster.spec.log_group, logStreamName=stream, logEvents=[event]
    )
    (tmp_path / "dump.tar.gz").write_text("of another time, which anybody may read")
    made = dump(tmp_path)
    told = files(made)
    assert told["output.log"] == b"i-1 rank 0: uses ***\n"
    assert told["events.jsonl"] == b'{"message": "connects to ***"}\n'
    assert json.loads(told["job.json"])["args"] == ["--api-key", "***", "--db", "***"]
    assert "report.json: it was never written" in made.missing
    assert any(line.startswith("console-i-1.log: ") for line in made.missing)
    assert told["index.txt"].decode().splitlines()[1:] == list(made.missing)
    with pytest.raises(UsageError, match="No such file"):
        dump(tmp_path / "none")


def test_a_cluster_that_is_gone_tells_what_it_has_left(
    cluster: ClusterRecord, tmp_path: Path
) -> None:
    teardown.delete(NAME, aws=cluster.aws)
    assert {"status.json", "events.jsonl"} <= files(dump(tmp_path)).keys()


@pytest.mark.soak
def test_a_local_cluster_that_is_gone_tells_it_without_any_cloud(
    cluster: ClusterRecord, tmp_path: Path
) -> None:
    spec = msgspec.json.decode(msgspec.json.encode(cluster.spec))
    with environment(SPOTELASTIC_HOME=str(tmp_path)):
        its = cloud.buckets() / "spotelastic-bucket" / NAME
        its.mkdir(parents=True)
        (its / "job.json").write_bytes(msgspec.json.encode(spec | {"secrets": {"API": 1}}))
        (its / "status.json").write_bytes(cluster.objects.get(STATUS) or b"")
        made = find(NAME, local=True, gone=True).dump(file=tmp_path / "dump.tar.gz")
        shutil.rmtree(cloud.buckets())
    assert "left out" in json.loads(files(made)["job.json"])["args"], "it may hold the secret"
