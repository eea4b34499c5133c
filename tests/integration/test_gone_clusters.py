"""What commands tell of a cluster that is gone, or of which something is left."""

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from support.aws.account import REGION, account
from support.aws.cluster_requests import request
from support.draws import soaked

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.identity import CLUSTER
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.clusters import teardown
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.cli.main import main
from spotelastic.client.targets.aws_target import AwsTarget
from spotelastic.cloud.bucket import STATUS
from spotelastic.errors import UsageError
from spotelastic.model.progress import Status

NAME, BUCKET = "quokka", "our-team"


@pytest.fixture
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aws]:
    with account(tmp_path_factory.mktemp("account")):
        aws = Aws(REGION)
        aws.s3.create_bucket(Bucket=BUCKET)
        yield aws


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def gone(aws: Aws, bucket: str = BUCKET) -> BucketObjects:
    """The objects of a cluster that has been there."""
    cluster = clusters.create(request(NAME, bucket=bucket), lambda _: None, aws)
    cluster.objects.put(
        STATUS, msgspec.json.encode(Status(NAME, "succeeded", 0.0, round=1, step=7))
    )
    cluster.objects.put("checkpoints/1/step-7/.metadata", b"weights")
    teardown.delete(NAME, aws=aws)
    return cluster.objects


def command(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    monkeypatch.setattr(sys, "argv", ["spotelastic", *args, "--aws"])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("told", ["file", *soaked(["variable"])])
def test_the_last_account_is_found_in_the_bucket_that_up_is_told(
    told: str,
    aws: Aws,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    gone(aws)
    assert command(monkeypatch, "status", NAME) == 2
    assert f"there is no cluster named {NAME}" in capsys.readouterr().err
    if told == "file":
        (folder / "spotelastic.toml").write_text(f"bucket = {BUCKET!r}")
    else:
        monkeypatch.setenv("SPOTELASTIC_BUCKET", BUCKET)
    for look in (("status", NAME), ("events", NAME), ("report", NAME, "--cost")):
        assert command(monkeypatch, *look) == 0
        out, err = capsys.readouterr()
        assert err.startswith(f"{NAME} is gone: this is its last report")
        assert err.count("\n") == 1
        assert "status" not in look or "step 7" in out
    assert command(monkeypatch, "logs", NAME) == 0
    assert capsys.readouterr().err == (
        f"{NAME} is gone: these are its last logs\n"
        "the workers: no output; lines are deleted 14 days after they came\n"
    )
    assert command(monkeypatch, "report", NAME) == 2
    told = capsys.readouterr().err
    assert f"{NAME} is gone: this is its last report\n" in told
    assert f"{NAME} has no report yet" in told
    assert AwsTarget(aws).data(NAME).url == f"s3://{BUCKET}/{NAME}/checkpoints/"


def test_down_of_one_that_is_gone_tells_what_deletes_its_data(
    aws: Aws, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = gone(aws)
    (folder / "spotelastic.toml").write_text(f"bucket = {BUCKET!r}")
    assert command(monkeypatch, "down", NAME) == 0
    told = "".join(capsys.readouterr())
    assert f"{NAME} is gone; `spotelastic down {NAME} --delete-data` deletes what it has" in told
    assert objects.job() is not None
    assert command(monkeypatch, "down", "koala") == 2
    assert "there is no cluster named koala" in capsys.readouterr().err


def test_one_of_the_shared_bucket_is_found_where_up_is_told_another(aws: Aws, folder: Path) -> None:
    objects = gone(aws, bucket="")
    place, notes = AwsTarget(aws), list[str]()
    for bucket in (BUCKET, "never-made"):
        (folder / "spotelastic.toml").write_text(f"bucket = {bucket!r}")
        assert place.cluster_or_gone(NAME, notes.append).objects == objects
        assert place.data(NAME).cluster == objects


def test_what_is_left_of_a_cluster_is_told_with_what_removes_it(aws: Aws) -> None:
    objects, place, notes = gone(aws, bucket=""), AwsTarget(aws), list[str]()
    aws.ec2.create_volume(
        AvailabilityZone=f"{REGION}a",
        Size=1,
        TagSpecifications=[
            {"ResourceType": "volume", "Tags": [{"Key": CLUSTER, "Value": NAME}]},
        ],
    )
    left = (
        f"{NAME} is incomplete, and may cost money: `spotelastic down {NAME}` removes what is left"
    )
    with pytest.raises(UsageError) as told:
        place.cluster(NAME)
    assert str(told.value) == left
    assert place.cluster_or_gone(NAME, notes.append).objects == objects
    assert notes == [left, f"{NAME} is gone: this is its last report"]
    place.down(NAME, notes.append)
    with pytest.raises(UsageError, match=f"^there is no cluster named {NAME}$"):
        place.cluster(NAME)


def test_a_cluster_whose_job_was_deleted_is_told_by_all_that_runs(aws: Aws) -> None:
    cluster = clusters.create(request(NAME), lambda _: None, aws)
    cluster.objects.delete_all()
    with pytest.raises(UsageError, match="is incomplete, and may cost money"):
        AwsTarget(aws).cluster_or_gone(NAME, print)
    teardown.delete(NAME, aws=aws)
