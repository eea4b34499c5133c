"""`logs`: what arrives later, what arrives late, when it ends, and what is kept for how long."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import msgspec
import pytest
from support.aws.account import REGION, account
from support.aws.cluster_requests import request

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.clusters import teardown
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.messaging import log_group
from spotelastic.client import logs as client_logs
from spotelastic.client.targets.aws_target import AwsTarget
from spotelastic.clock import wall
from spotelastic.cloud.bucket import STATUS
from spotelastic.errors import UsageError
from spotelastic.model.job import JobSpec
from spotelastic.model.progress import Status

NAME = "quokka"
RUNNING = Status(NAME, "running", 0.0, round=1)


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRecord]:
    """One whose job runs."""
    with account(tmp_path_factory.mktemp("account")):
        cluster = clusters.create(request(NAME), lambda _: None, Aws(REGION))
        tell(cluster, RUNNING)
        yield cluster


def tell(cluster: ClusterRecord, status: Status) -> None:
    cluster.objects.put(STATUS, msgspec.json.encode(status))


def write(cluster: ClusterRecord, stream: str, *lines: str, ago: float = 0.0) -> None:
    logs, group = cluster.aws.logs, cluster.spec.log_group
    stream = log_group.prefix(log_group.born(cluster.spec.born_at)) + stream
    found = logs.describe_log_streams(logGroupName=group, logStreamNamePrefix=stream)
    if not found["logStreams"]:
        logs.create_log_stream(logGroupName=group, logStreamName=stream)
    at = int((wall() - ago) * 1000)
    events = [{"timestamp": at, "message": f"{line}\n"} for line in lines]
    logs.put_log_events(logGroupName=group, logStreamName=stream, logEvents=events)


def follow(cluster: ClusterRecord, rank: int | None = None, late: float = 5.0) -> Iterator[str]:
    polling = client_logs.Polling(every=0.01, late=late, quiet=0.0)
    return map(
        str, client_logs.tail(cluster, client_logs.Wanted(rank), follow=True, polling=polling)
    )


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


def test_the_last_lines_may_come_after_the_end(cluster: ClusterRecord) -> None:
    lines = follow(cluster, late=0.1)
    write(cluster, "i-1/rank-0", "one")
    assert next(lines) == "i-1 rank 0: one"
    write(cluster, "i-1/rank-0", "two")
    tell(cluster, replace(RUNNING, state="succeeded"))
    assert next(lines) == "i-1 rank 0: two"
    write(cluster, "i-1/rank-0", "last")
    threading.Event().wait(0.2)  # whoever reads the lines may be slow
    assert list(lines) == ["i-1 rank 0: last"]
    assert list(follow(cluster))[-1] == "i-1 rank 0: last", "again, after the end"


def test_it_ends_with_a_cluster_that_is_taken_down_while_its_job_runs(
    cluster: ClusterRecord,
) -> None:
    lines = follow(cluster)
    write(cluster, "i-1/rank-0", "one")
    assert next(lines) == "i-1 rank 0: one"
    teardown.delete(NAME, aws=cluster.aws)
    assert cluster.objects.status() == RUNNING
    assert list(lines) == []


def test_a_cluster_that_is_gone_has_its_logs_whoever_took_it_down(
    cluster: ClusterRecord,
) -> None:
    write(cluster, "i-1/rank-0", "one", "two")
    teardown.delete_from_within(cluster.aws, NAME, cluster.bucket, cluster.spec.service_role)
    teardown.delete(NAME, aws=cluster.aws)  # what the leader has left, if anything
    gone = AwsTarget(cluster.aws).cluster_or_gone(NAME, lambda _: None)
    assert all_of(gone) == ["i-1 rank 0: one", "i-1 rank 0: two"]
    assert list(follow(gone)) == all_of(gone), "it does not wait for more"
    tagged = cluster.aws.logs.list_tags_log_group(logGroupName=cluster.spec.log_group)["tags"]
    assert tagged == {"spotelastic:cluster": NAME}
    (group,) = cluster.aws.logs.describe_log_groups()["logGroups"]
    assert group["retentionInDays"] == log_group.KEPT_DAYS


def later(seconds: float, job: JobSpec) -> JobSpec:
    return replace(job, born_at=job.born_at + seconds)


def test_logs_of_an_earlier_cluster_stay_apart_and_can_be_chosen(cluster: ClusterRecord) -> None:
    made: list[ClusterRecord] = []
    for number, line in enumerate(("of the first", "of the second", "of the third")):
        if made:
            teardown.delete(NAME, aws=cluster.aws)
            cluster = clusters.create(request(NAME), lambda _: None, cluster.aws)
        made.append(replace(cluster, spec=cluster.change(partial(later, 60.0 * number))))
        write(made[-1], "i-1/rank-0", line)
    newest = made[-1]
    assert all_of(newest) == ["i-1 rank 0: of the third"]
    others = sorted(made[:-1], key=lambda each: each.spec.born_at, reverse=True)
    for previous, other in enumerate(others, start=1):
        assert all_of(newest, previous=previous) == all_of(other)
    with pytest.raises(UsageError) as refused:
        all_of(newest, previous=3)
    times = [log_group.born(each.spec.born_at) for each in others]
    assert str(refused.value) == (
        "--previous 3: there are logs of 2 earlier clusters named quokka, created "
        f"{times[0]}, {times[1]} (UTC), the newest first"
    )
    newest_only = client_logs.Wanted(node="i-2")
    with pytest.raises(
        UsageError, match=r"^--node i-2 is not a node of quokka; the nodes are: i-1"
    ):
        list(client_logs.tail(newest, newest_only, previous=1))


def all_of(cluster: ClusterRecord, previous: int = 0) -> list[str]:
    return list(map(str, client_logs.tail(cluster, previous=previous, note=print)))


def test_lines_before_a_time_are_left_out(cluster: ClusterRecord) -> None:
    write(cluster, "i-1/rank-0", "long ago", ago=600.0)
    write(cluster, "i-1/rank-0", "now")
    tell(cluster, replace(RUNNING, state="succeeded"))
    recent = client_logs.Wanted(since=wall() - 60.0)
    assert [line.text for line in client_logs.tail(cluster, recent)] == ["now"]


def test_deleting_the_data_deletes_the_logs_and_an_empty_group_does_not_stay(
    cluster: ClusterRecord,
) -> None:
    groups = cluster.aws.logs.describe_log_groups
    teardown.delete(NAME, aws=cluster.aws)
    assert groups()["logGroups"] == []
    again = clusters.create(request(NAME), lambda _: None, cluster.aws)
    write(again, "i-1/rank-0", "one")
    teardown.delete(NAME, keep_data=False, aws=cluster.aws)
    assert groups()["logGroups"] == []


def test_a_retention_that_its_owner_has_set_stays(cluster: ClusterRecord) -> None:
    logs, name = cluster.aws.logs, cluster.spec.log_group
    logs.put_retention_policy(logGroupName=name, retentionInDays=90)
    clusters.create(request(NAME), lambda _: None, cluster.aws)
    (group,) = logs.describe_log_groups()["logGroups"]
    assert group["retentionInDays"] == 90
