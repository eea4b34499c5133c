"""What a local cluster has left is read where no local cloud runs any more."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from spotelastic_checkpoints.commit.commit_protocol import folder
from spotelastic_checkpoints.types import Commit
from support.clusters.published_cluster import BEGAN, EVENTS, REPORT, STATUS

from spotelastic import client
from spotelastic.cli.main import main
from spotelastic.client.cluster import Cluster
from spotelastic.client.targets import find
from spotelastic.client.targets.cloud_target import CloudEnded, ClusterTarget
from spotelastic.client.targets.shown_cluster import ShownCluster
from spotelastic.clock import wall
from spotelastic.cloud.bucket import EVENTS as EVENTS_JSON
from spotelastic.cloud.bucket import JOB, USAGE, ClusterBucket
from spotelastic.cloud.bucket import REPORT as REPORT_JSON
from spotelastic.cloud.bucket import STATUS as STATUS_JSON
from spotelastic.controller.accounting.usage import Usage
from spotelastic.errors import UsageError
from spotelastic.local import cloud
from spotelastic.model.job import JobSpec, Settings
from spotelastic.web.page.render import clusters_section
from spotelastic.web.reading import ClusterReader
from spotelastic.web.server.feed import list_facts
from spotelastic.web.server.source import TargetSource

NAME, RUN = "quokka", "our-run"


@pytest.fixture(autouse=True)
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bucket of a local cloud that has ended, with a cluster that was taken down."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPOTELASTIC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(find, "aws_is_configured", lambda: False)
    bucket = cloud.buckets() / f"spotelastic-{cloud.ACCOUNT}-us-east-1"
    storage = bucket / RUN / "checkpoints"
    url = f"s3://{bucket.name}/{RUN}/checkpoints/"
    spec = JobSpec(NAME, RUN, "train.py", (), "", Settings(1, 2), url, ())
    put(bucket, JOB, msgspec.json.encode(spec))
    put(bucket, STATUS_JSON, msgspec.json.encode(replace(STATUS, name=NAME, at=wall())))
    put(bucket, REPORT_JSON, msgspec.json.encode(REPORT))
    put(bucket, EVENTS_JSON, b"".join(msgspec.json.encode(each) + b"\n" for each in EVENTS))
    used = (Usage("i-1", "g6.xlarge", True, BEGAN, None, 0.25, 1.0),)
    put(bucket, USAGE, msgspec.json.encode(used))
    commit = storage / folder(Commit(1, 130))
    commit.mkdir(parents=True)
    (commit / ".metadata").write_bytes(b"a record")
    return bucket


def put(bucket: Path, name: str, data: bytes) -> None:
    (bucket / NAME).mkdir(parents=True, exist_ok=True)
    (bucket / NAME / name).write_bytes(data)


def command(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    monkeypatch.setattr(sys, "argv", ["spotelastic", *args])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("where", [(), ("--local",)])
def test_all_that_shows_a_cluster_reads_what_it_has_left(
    where: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    shown = {
        "status": "taken down, its checkpoints stay: the same `spotelastic up` goes on from step",
        "events": "launch",
        "report --cost": "node-hours",
        "report": "taken down",
    }
    for look, text in shown.items():
        assert command(monkeypatch, *look.split(), NAME, *where) == 0
        out, err = capsys.readouterr()
        assert f"{NAME} is gone: this is its last report" in err
        assert text in out
    page = tmp_path / "report.html"
    assert command(monkeypatch, "report", NAME, "--html", str(page), *where) == 0
    assert "This cluster is gone" in page.read_text() and "taken down" in page.read_text()


def test_a_program_finds_it_too() -> None:
    its = client.find(NAME, gone=True)
    assert its.status().committed == its.status().step == 130
    assert its.report().total_usd_per_hour == 0.0
    assert [event.kind for event in its.events()] == [event.kind for event in EVENTS]
    with pytest.raises(UsageError, match="is gone, and no local cloud is running"):
        its.stop()
    with pytest.raises(UsageError, match="no local cloud is running"):
        client.find(NAME)


def test_one_that_aws_has_not_is_found_where_an_account_is_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nowhere(*_: object, **__: object) -> None:
        raise UsageError("there is no cluster of that name")

    monkeypatch.setattr(find, "aws_is_configured", lambda: True)
    monkeypatch.setattr(find, "located", nowhere)
    assert client.find(NAME, gone=True).status().state == "taken down"
    for elsewhere in ({"local": False}, {"region": "us-west-2"}):
        with pytest.raises(UsageError, match="there is no cluster of that name"):
            client.find(NAME, gone=True, **elsewhere)


def test_of_one_that_was_moved_the_newest_counts(bucket: Path) -> None:
    there = cloud.buckets() / f"spotelastic-{cloud.ACCOUNT}-us-west-2"
    put(there, JOB, (bucket / NAME / JOB).read_bytes())
    put(
        there,
        STATUS_JSON,
        msgspec.json.encode(replace(STATUS, name=NAME, state="succeeded", at=wall())),
    )
    assert client.find(NAME, gone=True).status().state == "succeeded"


def test_down_tells_that_it_is_gone_and_what_deletes_its_data(
    bucket: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "down", NAME) == 0
    told = "".join(capsys.readouterr())
    assert f"{NAME} is gone" in told
    assert f"`spotelastic down {NAME} --local --delete-data` deletes" in told
    assert (bucket / NAME / JOB).exists()
    assert command(monkeypatch, "down", "wallaby") == 2
    assert "no local cloud is running" in capsys.readouterr().err


def test_a_page_of_one_whose_local_cloud_ends_shows_what_it_has_left() -> None:
    its, clock = client.find(NAME, gone=True), [0.0]
    left, ended = its.target, [False]

    def check() -> None:
        if ended[0]:
            raise CloudEnded("the local cloud has ended")

    record = SimpleNamespace(
        name=NAME, spec=its.record.spec, objects=ThatOfARunningCloud(its.record.objects)
    )
    running: Any = SimpleNamespace(
        check=check,
        known=lambda _: record,
        storage=left.storage,
        arguments_of=left.arguments_of,
    )
    reader = ClusterReader(Cluster(running, cast(ShownCluster, record)), lambda: clock[0])
    seen = reader.read()
    assert (seen.status.state, seen.is_gone) == ("running", False)
    assert seen.cost is not None and seen.cost.total_usd_per_hour > 0
    ended[0] = True
    gone = reader.read()
    assert (gone.status.state, gone.is_gone) == ("taken down", True)
    assert gone.cost is not None and gone.cost.total_usd_per_hour == 0
    assert reader.read().status == gone.status


def test_a_page_that_is_opened_after_the_end_of_the_local_cloud_shows_it_too() -> None:
    def ended() -> None:
        raise CloudEnded("the local cloud has ended")

    source = TargetSource(cast(ClusterTarget, SimpleNamespace(check=ended)))
    look = source.look(NAME)
    assert (look.trouble, look.facts["gone"]) == ("", True)
    assert "taken down" in look.sections["head"]
    assert [each.name for each in source.clusters()] == [NAME], "and so does the list"
    with pytest.raises(UsageError, match="no local cluster wallaby has left anything"):
        source.look("wallaby")


def test_what_has_ended_stays_in_lists_with_outcome_age_and_cost(
    bucket: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    day, now = 86_400.0, wall()
    others = {
        "late": replace(STATUS, state="failed", error="OutOfMemoryError: CUDA", at=now - day / 3),
        "old": replace(STATUS, state="failed", error="OutOfMemoryError: CUDA", at=now - 3 * day),
        "fine": replace(STATUS, state="succeeded", at=now - 2 * day, usd=1234.5, usd_per_hour=7.0),
        "forgotten": replace(STATUS, state="failed", at=now - 15 * day),
    }
    for name, status in others.items():
        job = JobSpec(name, name, "train.py", (), "", Settings(1, 2), "", (), created_at=now - 60)
        for object_name, value in ((JOB, job), (STATUS_JSON, replace(status, name=name))):
            (bucket / name).mkdir(exist_ok=True)
            (bucket / name / object_name).write_bytes(msgspec.json.encode(value))
    source = TargetSource(find.looked_at(True, None, lambda _: None))
    found = source.clusters()
    assert [(each.name, each.state) for each in found] == [
        ("late", "failed"),  # within a day
        (NAME, "taken down"),
        ("fine", "succeeded"),
        ("old", "failed"),
    ]
    assert all(each.is_gone and not each.nodes and not each.usd_per_hour for each in found)
    assert list_facts(found) == {"title": "late: failed – spotelastic", "tone": "bad"}
    listed = clusters_section(found, "/x/", now)
    for text in ('href="/x/c/late"', "OutOfMemoryError: CUDA", "8 h ago", "$1,234.50"):
        assert text in listed
    assert "taken down" in source.look(NAME).sections["head"], "and its page works"
    assert client.clusters(local=True, gone=True) == tuple(found)
    assert command(monkeypatch, "ls", "--all", "--local") == 0
    told = capsys.readouterr().out
    names = {NAME, *others}
    lines = [word for line in told.splitlines() for word in line.split()[:1] if word in names]
    assert lines == ["late", NAME, "fine", "old"] and "OutOfMemoryError:" in told
    assert command(monkeypatch, "ls", "--local") == 2


def test_a_page_of_what_is_gone_says_how_it_goes_on() -> None:
    its = client.find(NAME, gone=True)
    look = TargetSource(its.target).look(NAME)
    told = f"spotelastic up --name {NAME} --local … train.py …"
    assert f"goes on from step 130: {told}" in look.sections["warnings"]


class ThatOfARunningCloud:
    """The same objects, of which the controllers write more."""

    is_left = False

    def __init__(self, objects: ClusterBucket) -> None:
        self._objects = objects

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)
