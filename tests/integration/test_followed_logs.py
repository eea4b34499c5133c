"""`logs -f`: what arrives later, what arrives late, and when it ends."""

from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest
from support.account import REGION, account
from support.asked import request

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.client import logs as client_logs
from spotelastic.clock import wall
from spotelastic.cloud.bucket import STATUS
from spotelastic.model.progress import Status

NAME = "quokka"
RUNNING = Status(NAME, "running", 0.0, round=1)


@pytest.fixture
def cluster(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ClusterRecord]:
    """One whose job runs."""
    monkeypatch.setattr(client_logs, "EVERY", 0.01)
    with account(tmp_path_factory.mktemp("account")):
        cluster = clusters.create(request(NAME), lambda _: None, Aws(REGION))
        tell(cluster, RUNNING)
        yield cluster


def tell(cluster: ClusterRecord, status: Status) -> None:
    cluster.objects.put(STATUS, msgspec.json.encode(status))


def write(cluster: ClusterRecord, stream: str, *lines: str, ago: float = 0.0) -> None:
    logs, group = cluster.aws.logs, cluster.spec.log_group
    found = logs.describe_log_streams(logGroupName=group, logStreamNamePrefix=stream)
    if not found["logStreams"]:
        logs.create_log_stream(logGroupName=group, logStreamName=stream)
    at = int((wall() - ago) * 1000)
    events = [{"timestamp": at, "message": f"{line}\n"} for line in lines]
    logs.put_log_events(logGroupName=group, logStreamName=stream, logEvents=events)


def follow(cluster: ClusterRecord, rank: int | None = None) -> Iterator[str]:
    return map(str, client_logs.tail(cluster, client_logs.Wanted(rank), follow=True))


def test_lines_are_told_once_as_they_arrive_also_those_that_are_late(
    cluster: ClusterRecord,
) -> None:
    lines = follow(cluster)
    write(cluster, "i-1/rank-0", "one", "two")
    write(cluster, "i-1/agent", "of no rank")
    assert [next(lines), next(lines)] == ["i-1 rank 0: one", "i-1 rank 0: two"]
    write(cluster, "i-2/rank-1", "written before", ago=2.0)
    assert next(lines) == "i-2 rank 1: written before"
    write(cluster, "i-1/rank-0", "three")
    assert next(lines) == "i-1 rank 0: three"


def test_of_one_rank_nothing_else_is_told(cluster: ClusterRecord) -> None:
    lines = follow(cluster, rank=1)
    write(cluster, "i-1/rank-0", "other")
    write(cluster, "i-2/rank-1", "its")
    assert next(lines) == "i-2 rank 1: its"


def test_the_last_lines_may_come_after_the_end(
    cluster: ClusterRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_logs, "LATE", 500)
    lines = follow(cluster)
    write(cluster, "i-1/rank-0", "one")
    assert next(lines) == "i-1 rank 0: one"
    write(cluster, "i-1/rank-0", "two")
    tell(cluster, replace(RUNNING, state="succeeded"))
    assert next(lines) == "i-1 rank 0: two"
    write(cluster, "i-1/rank-0", "last")
    assert list(lines) == ["i-1 rank 0: last"]
    assert list(follow(cluster))[-1] == "i-1 rank 0: last", "again, after the end"


def test_it_ends_with_a_cluster_that_is_taken_down_while_its_job_runs(
    cluster: ClusterRecord,
) -> None:
    lines = follow(cluster)
    write(cluster, "i-1/rank-0", "one")
    assert next(lines) == "i-1 rank 0: one"
    clusters.delete(NAME, aws=cluster.aws)
    assert cluster.objects.status() == RUNNING
    assert list(lines) == []
