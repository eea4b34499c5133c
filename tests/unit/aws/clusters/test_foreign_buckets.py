"""A bucket's name is one for all of AWS: whoever has it first, or later, gets nothing of ours.

The other account's bucket lets everybody in, as that of somebody who waits for our objects would.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest
from support.aws.account import REGION, account
from support.aws.cluster_remains import remains
from support.aws.cluster_requests import request

from spotelastic.aws.base.account import default_bucket, ensure_bucket
from spotelastic.aws.base.clients import Aws, Rejected
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.cli.main import main
from spotelastic.errors import UsageError

NAME = "quokka"


@pytest.fixture
def aws(tmp_path: Path) -> Iterator[Aws]:
    with account(tmp_path / "account"):
        yield Aws(REGION)


def taken_by_another_account(bucket: str) -> None:
    from moto.s3.models import s3_backends

    s3_backends["111111111111"]["aws"].create_bucket(bucket, REGION)


def in_it(bucket: str) -> list[str]:
    found = boto3.client("s3", region_name=REGION).list_objects_v2(Bucket=bucket)
    return [each["Key"] for each in found.get("Contents", ())]


def test_up_says_that_the_shared_buckets_name_is_taken_and_makes_nothing(
    aws: Aws,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bucket = default_bucket(aws)
    taken_by_another_account(bucket)
    roles = aws.iam.list_roles()["Roles"]
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPOTELASTIC_HOME", str(tmp_path / "home"))
    types = ("--instance-types", "c5.large", "--region", REGION, "--name", NAME)
    for flags in ((), ("--plan",)):
        monkeypatch.setattr(sys, "argv", ["spotelastic", "up", *types, *flags])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr().err
        assert (ended.value.code, told.count("\n")) == (2, 1), told
        assert (
            f"the bucket {bucket}, which clusters share by default, belongs to another account"
            in told
        )
        assert "name your own with --bucket" in told
    assert (remains(NAME), in_it(bucket)) == ([], [])
    assert aws.iam.list_roles()["Roles"] == roles


def test_one_that_is_quicker_than_up_is_told_alike(aws: Aws) -> None:
    """Between the look and the attempt to make it."""
    bucket = default_bucket(aws)
    taken_by_another_account(bucket)
    with pytest.raises(UsageError, match="belongs to another account"):
        ensure_bucket(aws, bucket)


USES: dict[str, Callable[[BucketObjects, Path], object]] = {
    "write": lambda objects, _: objects.put("job.json", b"{}"),
    "create": lambda objects, _: objects.create("job.json", b"{}"),
    "upload": lambda objects, file: objects.create_from("code/1.tar.gz", file),
    "read": lambda objects, _: objects.get("job.json"),
    "download": lambda objects, file: objects.download("job.json", file),
    "look for": lambda objects, _: objects.has("job.json"),
    "list": lambda objects, _: objects.names(""),
    "measure": lambda objects, _: objects.size(""),
    "delete": lambda objects, _: objects.delete("job.json"),
    "delete all": lambda objects, _: objects.delete_all(),
    "end uploads": lambda objects, _: objects.abort_uploads(""),
}


def test_a_bucket_that_another_account_made_after_ours_went_is_not_used(
    aws: Aws, tmp_path: Path
) -> None:
    cluster = BucketObjects(aws, default_bucket(aws), NAME)
    taken_by_another_account(cluster.bucket)
    boto3.client("s3", region_name=REGION).put_object(
        Bucket=cluster.bucket, Key=f"{NAME}/job.json", Body=b"a job of theirs"
    )
    file = tmp_path / "file"
    file.write_bytes(b"ours")
    for what, use in USES.items():
        with pytest.raises(Rejected, match="not permitted"):
            use(cluster, file)
        assert in_it(cluster.bucket) == [f"{NAME}/job.json"], what
        assert file.read_bytes() == b"ours", what


def test_up_again_does_not_go_on_in_it(aws: Aws) -> None:
    cluster = clusters.create(request(NAME), lambda _: None, aws)
    cluster.objects.delete_all()
    aws.s3.delete_bucket(Bucket=cluster.bucket)
    taken_by_another_account(cluster.bucket)
    with pytest.raises(UsageError, match="belongs to another account"):
        clusters.create(request(NAME), lambda _: None, aws)
    assert in_it(cluster.bucket) == []
