"""What the dashboard and `report --html` read from a cluster's bucket and log group."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from spotelastic_checkpoints.storage.object_store import Storage
from spotelastic_checkpoints.storage.open import open_storage
from support.aws.account import REGION, account
from support.aws.cluster_requests import request
from support.clusters.published_cluster import EVENTS, POINTS, REPORT, STATUS

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.messaging import log_group
from spotelastic.cli.commands import found_cluster
from spotelastic.cli.main import main
from spotelastic.client.targets import find
from spotelastic.client.targets.aws_target import AwsTarget
from spotelastic.clock import wall
from spotelastic.cloud.bucket import CURVE
from spotelastic.cloud.bucket import EVENTS as EVENTS_OBJECT
from spotelastic.cloud.bucket import REPORT as REPORT_OBJECT
from spotelastic.cloud.bucket import STATUS as STATUS_OBJECT
from spotelastic.errors import UsageError
from spotelastic.web.server.source import TargetSource

NAME = "quokka"


class AccountTarget(AwsTarget):
    """The account, with checkpoints in a folder."""

    folder: Path

    def storage(self, url: str) -> Storage:
        return open_storage(str(self.folder))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRecord]:
    """One whose job runs; the last test takes it down."""
    with account(tmp_path_factory.mktemp("account")):
        cluster = clusters.create(request(NAME), lambda _: None, Aws(REGION))
        status = replace(STATUS, name=NAME, at=wall())
        lines = b"\n".join(map(msgspec.json.encode, EVENTS))
        cluster.objects.put(STATUS_OBJECT, msgspec.json.encode(status))
        cluster.objects.put(EVENTS_OBJECT, lines)
        cluster.objects.put(CURVE, msgspec.json.encode(POINTS))
        cluster.objects.put(REPORT_OBJECT, msgspec.json.encode(REPORT))
        yield cluster


@pytest.fixture
def target(cluster: ClusterRecord, tmp_path: Path) -> AccountTarget:
    target = AccountTarget(cluster.aws)
    target.folder = tmp_path
    return target


def write(cluster: ClusterRecord, stream: str, *texts: str) -> None:
    logs, group = cluster.aws.logs, cluster.spec.log_group
    stream = log_group.prefix(log_group.born(cluster.spec.born_at)) + stream
    found = logs.describe_log_streams(logGroupName=group, logStreamNamePrefix=stream)
    if not found["logStreams"]:
        logs.create_log_stream(logGroupName=group, logStreamName=stream)
    events = [{"timestamp": int(wall() * 1000), "message": text} for text in texts]
    logs.put_log_events(logGroupName=group, logStreamName=stream, logEvents=events)


def test_metrics_of_all_clusters_are_one_page(target: AccountTarget) -> None:
    page, content_type = TargetSource(target).metrics("")
    assert content_type.startswith("text/plain")
    step = f'spotelastic_job_step{{cluster="{NAME}"}} {STATUS.step:.1f}'
    assert step in page.decode().splitlines()


def test_output_comes_once_with_what_is_late(cluster: ClusterRecord, target: AccountTarget) -> None:
    source = TargetSource(target)
    write(cluster, "i-1/rank-0", "step 1", "step 2\x1b[31m")
    write(cluster, "i-2/rank-1", "hello")
    first = source.output(NAME, None, 0)
    assert sorted((line["rank"], line["text"]) for line in first["lines"]) == [
        (0, "step 1"),
        (0, "step 2�[31m"),
        (1, "hello"),
    ]
    write(cluster, "i-1/rank-0", "step 3")
    again = source.output(NAME, None, first["next"])
    known = {line["id"] for line in first["lines"]}
    assert [line["text"] for line in again["lines"] if line["id"] not in known] == ["step 3"]
    assert [line["text"] for line in source.output(NAME, 1, 0)["lines"]] == ["hello"]


def test_the_report_is_written_as_a_page(
    cluster: ClusterRecord,
    target: AccountTarget,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(find, "find", lambda *_: target)
    assert found_cluster.found_cluster(NAME, None, None).name == NAME
    page = tmp_path / "out/report.html"
    assert command(monkeypatch, "report", NAME, "--html", str(page)) == 0
    assert capsys.readouterr() == ("", f"the report of {NAME} is in {page}\n")
    assert "node lost" in page.read_text()
    assert command(monkeypatch, "report", NAME, "--html", str(page), "--json") == 0
    assert msgspec.json.decode(capsys.readouterr().out)["goodput"] == REPORT.goodput
    assert command(monkeypatch, "report", NAME, "--html", str(tmp_path)) == 2
    assert f"--html {tmp_path}: cannot be written" in capsys.readouterr().err


def test_a_cluster_is_seen_and_taken_down(cluster: ClusterRecord, target: AccountTarget) -> None:
    source = TargetSource(target)
    assert [(each.name, each.state) for each in source.clusters()] == [(NAME, "running")]
    look = source.look(NAME)
    assert (look.trouble, look.facts["nodes"], look.facts["sizes"]) == ("", ("i-3",), (1, 1))
    for section, text in (
        ("head", NAME),
        ("chart", "<svg"),
        ("timeline", "i-3"),
        ("interruptions", "node lost"),
        ("checkpoints", "None is stored yet."),
    ):
        assert text in look.sections[section]
    with pytest.raises(UsageError, match="there is no cluster named koala"):
        source.look("koala")
    with pytest.raises(UsageError, match="there is no command 'explode'"):
        source.act(NAME, "explode", {}, lambda _: None)
    told: list[str] = []
    assert "taken down" in source.act(NAME, "down", {"typed": NAME}, told.append)
    assert f"{NAME} is gone" in told
    gone = source.look(NAME)
    assert (gone.trouble, gone.facts["gone"]) == ("", True)
    assert "This cluster is gone." in gone.sections["warnings"]
    assert "taken down" in gone.sections["head"] and "running" not in gone.sections["head"]
    listed = source.clusters()
    assert [(each.name, each.state, each.is_gone) for each in listed] == [
        (NAME, "taken down", True)
    ]
    assert not list(target.listing()) and not target.ended(wall() + 1.0), "it was seen before"


def command(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    monkeypatch.setattr(sys, "argv", ["spotelastic", *args])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)
