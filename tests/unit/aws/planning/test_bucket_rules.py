"""What a bucket of the user's own does to objects that a cluster still needs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.aws.account import REGION, account
from support.aws.refused_calls import refuse

from spotelastic.aws.base.account import check_bucket
from spotelastic.aws.base.clients import Aws
from spotelastic.aws.planning.bucket_rules import warnings
from spotelastic.errors import UsageError

BUCKET = "of-the-company"


@pytest.fixture
def aws(tmp_path: Path) -> Iterator[Aws]:
    with account(tmp_path / "account"):
        made = Aws(REGION)
        made.s3.create_bucket(Bucket=BUCKET)
        yield made


def ruled(aws: Aws, **rule: Any) -> list[str]:
    its = {"ID": "tidy", "Status": "Enabled", "Filter": {"Prefix": ""}, **rule}
    aws.s3.put_bucket_lifecycle_configuration(
        Bucket=BUCKET, LifecycleConfiguration={"Rules": [its]}
    )
    return list(warnings(aws, BUCKET, "quokka"))


def test_a_rule_that_deletes_or_archives_what_nodes_read_is_told(aws: Aws) -> None:
    assert list(warnings(aws, BUCKET, "quokka")) == []
    days = {"Days": 30}
    (told,) = ruled(aws, Expiration=days)
    assert f"--bucket {BUCKET}: its lifecycle rule tidy deletes objects after 30 days" in told
    assert told.endswith("exclude quokka/")
    (told,) = ruled(aws, Transitions=[{"Days": 7, "StorageClass": "DEEP_ARCHIVE"}])
    assert "moves objects to DEEP_ARCHIVE" in told
    (told,) = ruled(aws, Expiration=days, Filter={"Prefix": "quokka/checkpoints/"})
    assert "deletes" in told


@pytest.mark.parametrize(
    "rule",
    [
        {"Status": "Disabled"},
        {"Filter": {"Prefix": "papers/"}},
        {"Filter": {"Tag": {"Key": "keep", "Value": "no"}}},
        {"Expiration": {"ExpiredObjectDeleteMarker": True}},
    ],
)
def test_a_rule_about_others_is_no_matter(aws: Aws, rule: dict[str, Any]) -> None:
    assert ruled(aws, **({"Expiration": {"Days": 30}} | rule)) == []


def test_storage_that_is_only_cheaper_is_no_matter(aws: Aws) -> None:
    assert ruled(aws, Transitions=[{"Days": 30, "StorageClass": "STANDARD_IA"}]) == []


def test_nothing_is_told_where_these_credentials_may_not_look(aws: Aws) -> None:
    ruled(aws, Expiration={"Days": 30})
    refuse(aws.s3, "GetBucketLifecycleConfiguration", "AccessDenied", status=403)
    assert list(warnings(aws, BUCKET, "quokka")) == []


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("s3://mine", "expected the name of a bucket"),
        ("mine/prefix", "expected the name of a bucket"),
        ("arn:aws:s3:::mine", "expected the name of a bucket"),
        ("arn:aws:s3:us-east-1:123456789012:accesspoint/x", "expected the name of a bucket"),
        ("x-abcdefghijkl-s3alias", "an access point or a directory bucket"),
        ("mine--use1-az4--x-s3", "an access point or a directory bucket"),
    ],
)
def test_what_is_no_bucket_of_the_usual_kind_is_refused_in_one_line(
    aws: Aws, name: str, why: str
) -> None:
    with pytest.raises(UsageError, match=f"--bucket .*: .*{why}") as refused:
        check_bucket(aws, name)
    assert "\n" not in str(refused.value)
