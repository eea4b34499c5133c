"""`--bucket`: a bucket of the user's is used as it is, and only what is the run's is deleted."""

import io
import sys
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from support.aws.account import REGION, account
from support.aws.cluster_remains import remains
from support.aws.cluster_requests import changed, request

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.names import Names
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.clusters import teardown
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.network import cloudformation
from spotelastic.cli.main import main
from spotelastic.client.targets.aws_target import AwsTarget
from spotelastic.errors import UsageError

NAME, BUCKET, FOREIGN = "quokka", "our-team", "their-team"
REQUEST = request(NAME, bucket=BUCKET)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsTarget]:
    with account(tmp_path_factory.mktemp("account")):
        aws = Aws(REGION)
        aws.s3.create_bucket(Bucket=BUCKET)
        aws.s3.put_object(Bucket=BUCKET, Key="papers/draft.tex", Body=b"ours")
        yield AwsTarget(aws)


def up(place: AwsTarget, **changes: Any) -> ClusterRecord:
    cluster = clusters.create(changed(REQUEST, **changes), lambda _: None, place.aws)
    cluster.objects.put("checkpoints/1/step-1/.metadata", b"weights")
    place.aws.s3.create_multipart_upload(Bucket=BUCKET, Key=f"{cluster.name}/checkpoints/half")
    return cluster


def keys(place: AwsTarget) -> set[str]:
    listed = place.aws.s3.list_objects_v2(Bucket=BUCKET)
    return {item["Key"] for item in listed.get("Contents", ())}


def uploads(place: AwsTarget) -> set[str]:
    listed = place.aws.s3.list_multipart_uploads(Bucket=BUCKET)
    return {item["Key"] for item in listed.get("Uploads", ())}


def command(monkeypatch: pytest.MonkeyPatch, *args: str, typed: str) -> int:
    monkeypatch.setattr(sys, "argv", ["spotelastic", *args])
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_a_bucket_of_ones_own_keeps_all_but_the_run(
    place: AwsTarget, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    up(place)
    again = up(place, bucket="")
    assert again.bucket == BUCKET
    with pytest.raises(UsageError, match=f"{NAME} has its objects in {BUCKET}"):
        up(place, bucket=FOREIGN)
    for untouched in ("get_bucket_tagging", "get_bucket_policy"):
        with pytest.raises(ClientError, match="NoSuch"):
            getattr(place.aws.s3, untouched)(Bucket=BUCKET)
    assert f"spotelastic-123456789012-{REGION}" not in buckets(place)

    assert command(monkeypatch, "down", NAME, typed="") == 0
    told = capsys.readouterr().out
    assert f"`spotelastic down {NAME} --delete-data --bucket {BUCKET}` deletes it all" in told
    assert f"{NAME}/checkpoints/1/step-1/.metadata" in keys(place)

    other = f"{NAME}-2/checkpoints/1/step-1/.metadata"
    place.aws.s3.put_object(Bucket=BUCKET, Key=other, Body=b"of another run")
    deletion = ("down", NAME, "--delete-data", "--bucket", BUCKET)
    assert command(monkeypatch, *deletion, typed="qoukka\n") == 2
    assert "'qoukka' is not 'quokka'; nothing was deleted" in capsys.readouterr().err
    assert command(monkeypatch, *deletion, typed="") == 2
    told = capsys.readouterr().err
    assert told == "spotelastic: --delete-data: no name was typed; nothing was deleted\n"
    assert f"{NAME}/checkpoints/1/step-1/.metadata" in keys(place)
    assert command(monkeypatch, *deletion, typed=f"{NAME}\n") == 0
    assert keys(place) == {"papers/draft.tex", other}
    assert uploads(place) == set()
    assert command(monkeypatch, "down", NAME, "--delete-data", "--yes", typed="") == 0
    assert "nothing was found; if the cluster used your own bucket" in capsys.readouterr().out


def buckets(place: AwsTarget) -> set[str]:
    return {each["Name"] for each in place.aws.s3.list_buckets()["Buckets"]}


@pytest.mark.soak
def test_a_run_goes_with_the_cluster_that_trains_it_and_with_no_other(place: AwsTarget) -> None:
    up(place)
    place.down(NAME, lambda _: None)
    up(place, name="wombat", run=NAME)
    with pytest.raises(UsageError, match=f"the cluster wombat trains the run {NAME}: end it first"):
        place.data(NAME, BUCKET)
    assert place.data("wombat").url == f"s3://{BUCKET}/{NAME}/checkpoints/"
    told: list[str] = []
    place.down("wombat", told.append, keep_data=False)
    left = {key for key in keys(place) if key.startswith((f"{NAME}/", "wombat/"))}
    assert f"{NAME}/job.json" in left
    assert not any("checkpoints" in key or key.startswith("wombat/") for key in left)


def test_a_stack_that_only_has_the_name_of_a_cluster_is_left_as_it_is(
    place: AwsTarget, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its bucket as well: anybody's template may have such a parameter."""
    place.aws.cloudformation.create_stack(
        StackName="spotelastic-numbat",
        TemplateBody='{"Parameters": {"Bucket": {"Type": "String"}}, '
        '"Resources": {"Queue": {"Type": "AWS::SQS::Queue"}}}',
        Parameters=[{"ParameterKey": "Bucket", "ParameterValue": BUCKET}],
    )
    place.aws.s3.put_object(Bucket=BUCKET, Key="numbat/checkpoints/LATEST", Body=b"of another run")
    for args in (("down", "numbat"), ("down", "numbat", "--delete-data")):
        assert command(monkeypatch, *args, typed="numbat\n") == 2
        told = capsys.readouterr().err
        assert "numbat: the stack spotelastic-numbat was not made by spotelastic" in told
        assert told.count("\n") == 1
    with pytest.raises(UsageError, match="the stack spotelastic-numbat was not made"):
        teardown.delete("numbat", bucket=BUCKET, keep_data=False, aws=place.aws)
    assert cloudformation.describe(place.aws, "spotelastic-numbat") is not None
    assert {key for key in keys(place) if key.startswith("numbat/")} == {
        "numbat/checkpoints/LATEST"
    }


def test_a_bucket_of_another_account_is_refused_though_it_lets_us_in(place: AwsTarget) -> None:
    from moto.s3.models import s3_backends

    s3_backends["111111111111"]["aws"].create_bucket(FOREIGN, REGION)
    anybody = boto3.client("s3", region_name=REGION)
    anybody.put_object(Bucket=FOREIGN, Key="note", Body=b"they let us in")
    before = remains("platypus")
    with pytest.raises(
        UsageError, match=f"--bucket {FOREIGN}: it does not belong to the account"
    ) as told:
        clusters.create(request("platypus", bucket=FOREIGN), lambda _: None, place.aws)
    assert "\n" not in str(told.value)
    assert remains("platypus") == before == []


def test_secrets_that_an_up_left_which_was_killed_go_with_down(place: AwsTarget) -> None:
    token = Names("ghost").token
    place.aws.ssm.put_parameter(Name=token, Type="SecureString", Value="left")
    place.down("ghost", lambda _: None)
    with pytest.raises(ClientError, match="ParameterNotFound"):
        place.aws.ssm.get_parameter(Name=token)
    with pytest.raises(UsageError, match="ghost"):
        place.down("ghost", lambda _: None)
