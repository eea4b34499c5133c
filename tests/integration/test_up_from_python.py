"""The Python client on AWS: what it asks before it acts, what it raises, and what it leaves up."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from support.aws.account import CTRL_C, EXPIRED, Fault, Laptop, account
from support.aws.cluster_requests import request

import spotelastic
from spotelastic import JobConfig, client
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.client import Cluster, watch
from spotelastic.client.targets import aws_target, find
from spotelastic.client.targets.aws_target import AwsTarget
from spotelastic.cloud.bucket import EVENTS, JOB, REPORT, STATUS
from spotelastic.model.progress import Event, NodeStatus, Report, ReportJob, Status

NAME = "quokka"
NODE = NodeStatus("i-1", "worker", "training", "us-east-1a", "10.0.0.1", (0,))
RUNNING = Status(NAME, "running", 0.0, nodes=(NODE,))


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    with account(tmp_path_factory.mktemp("account")):
        laptop = Laptop()
        clusters.create(request(NAME, 2), lambda _: None, laptop.aws)
        yield laptop


@pytest.fixture
def record(
    laptop: Laptop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ClusterRecord]:
    """The cluster that is up, and trains the script of the current folder."""
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(find, "in_region", lambda _: AwsTarget(laptop.aws))
    monkeypatch.setattr(find, "aws_is_configured", lambda: True)
    monkeypatch.setattr(aws_target, "ETCD", None)  # it would be fetched
    monkeypatch.setattr(watch, "EVERY", 0.01)
    found = clusters.find(NAME, laptop.aws)
    assert found is not None
    spec = replace(found.spec, folder=str(tmp_path), script="train.py")
    found.objects.put(JOB, msgspec.json.encode(spec))
    publish(found, RUNNING)
    write(found)
    yield replace(found, spec=spec)
    assert clusters.all_names(laptop.aws) == (NAME,), "it is still there, and no other"


def publish(record: ClusterRecord, status: Status, report: Report | None = None) -> None:
    record.objects.put(STATUS, msgspec.json.encode(status))
    if report is not None:
        record.objects.put(REPORT, msgspec.json.encode(report))


def write(record: ClusterRecord, *events: Event) -> None:
    record.objects.put(EVENTS, b"".join(msgspec.json.encode(event) + b"\n" for event in events))


def new(**more: object) -> JobConfig:
    return JobConfig("train.py", name="numbat", instance_types=["c5.large"], **more)  # type: ignore[arg-type]


@pytest.mark.usefixtures("record")
def test_a_plan_is_a_value_and_makes_nothing(laptop: Laptop) -> None:
    plan = client.plan(new(min=2, max=8))
    assert (plan.name, plan.is_up, plan.instance_types) == ("numbat", False, ("c5.large",))
    assert 0 < plan.usd_per_hour_at_min < plan.usd_per_hour_at_max
    again = client.plan(JobConfig("train.py", name=NAME, max=3))
    assert again.is_up and "max 2 -> 3" in again.changes


@pytest.mark.usefixtures("record")
def test_nothing_that_costs_money_is_made_unasked(laptop: Laptop) -> None:
    with laptop.trial(), pytest.raises(client.NotConfirmed) as refused:
        spotelastic.up(new())
    assert "creating numbat costs money, up to " in str(refused.value)
    assert str(refused.value).endswith(" USD an hour: pass yes=True if that is meant")
    asked: list[client.ConfirmationRequest] = []

    def refuse(about: client.ConfirmationRequest) -> bool:
        asked.append(about)
        return False

    with laptop.trial(), pytest.raises(client.NotConfirmed, match=r"^nothing was created$"):
        spotelastic.up(new(), confirm=refuse)
    assert [each.about for each in asked] == ["price"]
    assert not any(".Create" in call or ".Put" in call for call in laptop.calls)


def test_what_another_folder_has_made_is_not_changed_unasked(
    laptop: Laptop, record: ClusterRecord
) -> None:
    spec = replace(record.spec, folder="/elsewhere")
    record.objects.put(JOB, msgspec.json.encode(spec))
    with pytest.raises(client.NotConfirmed, match="or pass yes=True if that is meant"):
        spotelastic.up(JobConfig("train.py", name=NAME, max=2))
    assert record.objects.job() == spec
    cluster = spotelastic.up(JobConfig("train.py", name=NAME, max=2), yes=True)
    assert cluster.record.spec.folder == str(Path.cwd())


def test_up_again_returns_the_cluster_that_is_up_and_tells_what_is_new(
    record: ClusterRecord,
) -> None:
    old, fresh = (Event(at, "round", f"round {at:g}") for at in (1.0, 2.0))
    write(record, old)
    told: list[object] = []
    cluster = spotelastic.up(JobConfig("train.py", name=NAME, max=2), on_update=told.append)
    assert isinstance(cluster, Cluster) and cluster.name == NAME
    assert RUNNING in told and old not in told
    assert any("is up already" in str(each) for each in told)
    write(record, old, fresh)
    done = replace(RUNNING, state="succeeded")
    publish(record, done, Report(ReportJob("succeeded", 7, 7), (), 1.0, 0.0, 0.0, 0.0))
    assert cluster.wait(on_update=told.append) == done
    assert told.count(fresh) == 1 and old not in told
    assert cluster.report().job.final_step == 7


def test_a_job_that_fails_or_goes_on_is_an_exception_of_its_own(record: ClusterRecord) -> None:
    cluster = client.find(NAME, local=False)
    with pytest.raises(client.Unavailable, match=r"quokka has not ended within 0\.05 s"):
        cluster.wait(timeout=0.05)
    failed = replace(RUNNING, state="failed", reason="rank 0 on i-1: ValueError")
    publish(record, failed, Report(ReportJob("failed", 7, 7), (), 1.0, 0.0, 0.0, 0.0))
    with pytest.raises(
        spotelastic.errors.JobFailed, match="the job failed: rank 0 on i-1: ValueError"
    ):
        cluster.wait()


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ("rank 7", "no node with rank 7 of quokka trains now: its job is running"),
        ("i-2", "quokka has no node i-2; it has i-1"),
    ],
)
@pytest.mark.usefixtures("record")
def test_a_node_that_is_not_there_is_not_interrupted(node: str, why: str) -> None:
    with pytest.raises(client.UsageError, match=f"^{why}$"):
        client.find(NAME, local=False).interrupt(node)


@pytest.mark.parametrize("fault", [CTRL_C, EXPIRED], ids=["ctrl-c", "expired"])
def test_what_interrupts_up_on_aws_leaves_the_cluster_and_says_so(
    laptop: Laptop, record: ClusterRecord, fault: Fault
) -> None:
    publish(record, Status(NAME, "pending", 0.0))  # so that it waits
    with (
        pytest.raises((KeyboardInterrupt, client.EnvironmentFailure)) as ended,
        laptop.trial(fault, at=40, of="s3.GetObject"),
    ):
        spotelastic.up(JobConfig("train.py", name=NAME, max=2))
    (note,) = ended.value.__notes__
    assert note.startswith("quokka stays up: spotelastic.client.find('quokka') finds it again")


@pytest.mark.parametrize("field", ["plan", "json", "drill", "report", "curve"])
@pytest.mark.usefixtures("record")
def test_what_only_the_command_line_does_is_refused(field: str) -> None:
    given = "file" if field in ("report", "curve") else True
    with pytest.raises(client.UsageError, match=rf"^JobConfig\({field}=...\) is for the command"):
        spotelastic.up(new(**{field: given}))


def test_a_with_statement_takes_the_cluster_down(
    record: ClusterRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[tuple[str | None, bool]] = []

    def down(_: AwsTarget, name: str | None, *__: object, keep_data: bool = True) -> None:
        taken.append((name, keep_data))

    monkeypatch.setattr(AwsTarget, "down", down)
    with pytest.raises(ZeroDivisionError), client.find(NAME, local=False):
        _ = 1 / 0
    with client.find(NAME, local=False) as cluster:
        cluster.down()
    assert taken == [(NAME, True), (NAME, True)], "once each"
    with pytest.raises(client.NotConfirmed, match="deletes all checkpoints of the run quokka"):
        cluster.down(delete_data=True)
    assert len(taken) == 2
    cluster.down(delete_data=True, yes=True)
    assert taken[-1] == (NAME, False)
