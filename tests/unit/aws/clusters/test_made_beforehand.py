"""What an administrator has made in the account is used by those who may not make it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.aws.account import REGION, account
from support.aws.refused_calls import refuse

from spotelastic.aws.base.account import default_bucket, ensure_bucket, ensure_service_role
from spotelastic.aws.base.clients import Aws, Rejected


@pytest.fixture
def aws(tmp_path: Path) -> Iterator[Aws]:
    with account(tmp_path / "account"):
        yield Aws(REGION)


def test_a_bucket_that_is_there_need_not_be_made(aws: Aws) -> None:
    bucket = default_bucket(aws)
    refuse(aws.s3, "CreateBucket", "AccessDenied", status=403)
    with pytest.raises(Rejected, match=r"not permitted .*: or name a bucket .*, --bucket"):
        ensure_bucket(aws, bucket)
    Aws(REGION).s3.create_bucket(Bucket=bucket)
    ensure_bucket(aws, bucket)
    asked = refuse(aws.s3, "PutBucketPolicy", "AccessDenied", status=403)
    ensure_bucket(aws, bucket)
    assert not asked, "it is protected"


def test_a_protection_that_s3_gives_all_buckets_need_not_be_set(aws: Aws) -> None:
    """Policies of organizations deny to change it, whatever is set."""
    bucket = default_bucket(aws)
    admin = Aws(REGION).s3
    admin.create_bucket(Bucket=bucket)
    refuse(aws.s3, "PutPublicAccessBlock", "AccessDenied", status=403)
    refuse(aws.s3, "PutBucketEncryption", "AccessDenied", status=403)
    blocks = {
        "BlockPublicAcls": True,
        "IgnorePublicAcls": True,
        "BlockPublicPolicy": True,
        "RestrictPublicBuckets": False,
    }
    admin.put_public_access_block(Bucket=bucket, PublicAccessBlockConfiguration=blocks)
    with pytest.raises(Rejected, match=r"cannot protect the bucket .*--bucket"):
        ensure_bucket(aws, bucket)
    blocks["RestrictPublicBuckets"] = True
    admin.put_public_access_block(Bucket=bucket, PublicAccessBlockConfiguration=blocks)
    rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
    admin.put_bucket_encryption(Bucket=bucket, ServerSideEncryptionConfiguration={"Rules": [rule]})
    ensure_bucket(aws, bucket)


def test_a_role_that_may_not_be_looked_at_is_known_by_its_name(aws: Aws) -> None:
    made = ensure_service_role(Aws(REGION))
    refuse(aws.iam, "GetRole", "AccessDenied", status=403)
    asked = refuse(aws.iam, "PutRolePolicy", "AccessDenied", status=403)
    assert ensure_service_role(aws) == made
    assert not asked, "whoever has made it keeps it"
