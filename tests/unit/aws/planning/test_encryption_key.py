"""A KMS key of the user's own, which has to be there and of the right kind."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from spotelastic_checkpoints.storage.s3.s3_storage import S3Storage
from support.aws.account import REGION, account
from support.aws.fake_services import Hooks, fake_aws, refusal

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.planning.encryption_key import (
    bucket_obstacles,
    denies_plain_object,
    find_key,
    unfit,
)
from spotelastic.errors import UsageError

ARN = "arn:aws:kms:us-east-1:123456789012:key/1"


def test_a_key_is_found_by_each_of_its_names(tmp_path_factory: pytest.TempPathFactory) -> None:
    with account(tmp_path_factory.mktemp("account")):
        aws = Aws(REGION)
        made = aws.kms.create_key()["KeyMetadata"]
        aws.kms.create_alias(AliasName="alias/training", TargetKeyId=made["KeyId"])
        for name in (made["KeyId"], made["Arn"], "alias/training"):
            assert find_key(aws, name) == made["Arn"]
        with pytest.raises(UsageError, match="--kms-key alias/none: there is no such key in us-ea"):
            find_key(aws, "alias/none")
        aws.kms.disable_key(KeyId=made["KeyId"])
        with pytest.raises(UsageError, match="--kms-key alias/training: it is Disabled: enable it"):
            find_key(aws, "alias/training")


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ({"KeyState": "PendingDeletion"}, "it is about to be deleted"),
        ({"KeySpec": "RSA_2048"}, "disks need a symmetric one"),
        ({"KeyManager": "AWS"}, "leave it out"),
        ({"KeyState": "Enabled", "KeySpec": "SYMMETRIC_DEFAULT", "KeyManager": "CUSTOMER"}, ""),
    ],
)
def test_a_key_that_encrypts_no_disk_is_none(key: dict[str, str], why: str) -> None:
    assert why in unfit(key) and bool(why) == bool(unfit(key))


def test_one_that_may_not_be_seen_is_told_with_awss_reason() -> None:
    class Kms:
        def describe_key(self, KeyId: str) -> None:
            raise refusal("AccessDeniedException", "DescribeKey", "no policy allows it")

    with pytest.raises(UsageError, match=r"--kms-key k: .*no policy allows it.*own-key\.md"):
        find_key(fake_aws(kms=Kms()), "k")


# -- what the policy of a bucket demands of each object ------------------------------------------

HEADER = "s3:x-amz-server-side-encryption"
OBJECT = "arn:aws:s3:::mine/quokka/job.json"


def test_a_policy_that_demands_a_header_is_told_before_anything_is_made(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    denies = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:PutObject",
        "Resource": "arn:aws:s3:::mine/*",
        "Condition": {"StringNotEquals": {HEADER: "aws:kms"}},
    }
    with account(tmp_path_factory.mktemp("account")):
        aws = Aws(REGION)
        aws.s3.create_bucket(Bucket="mine")
        assert [*bucket_obstacles(aws, "mine", "quokka", "")] == []
        policy = {"Version": "2012-10-17", "Statement": [denies]}
        aws.s3.put_bucket_policy(Bucket="mine", Policy=json.dumps(policy))
        (why,) = bucket_obstacles(aws, "mine", "quokka", "")
        assert why.startswith("--bucket mine: its policy denies objects whose requests do not")


@pytest.mark.parametrize(
    ("changed", "denied"),
    [
        ({}, True),
        ({"Condition": {"StringNotEquals": {HEADER.upper(): "aws:kms"}}}, True),
        ({"Effect": "Allow"}, False),
        ({"Principal": {"AWS": "arn:aws:iam::123456789012:role/other"}}, False),
        ({"Resource": ["arn:aws:s3:::mine/data/*"]}, False),
        ({"Condition": {"Bool": {"aws:SecureTransport": "false"}}}, False),
        ({"Condition": {"Null": {HEADER: "false"}, "StringNotEquals": {HEADER: "AES256"}}}, False),
    ],
)
def test_what_a_policy_denies_is_known_by_its_words(changed: dict[str, Any], denied: bool) -> None:
    its = {"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": "arn:aws:s3:::mine/*"}
    statement = {**its, "Condition": {"Null": {HEADER: "true"}}, **changed}
    assert denies_plain_object(statement, OBJECT) == denied


def test_what_is_stored_names_the_encryption_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By boto3, and by the checkpoints' own client, which takes the same variables."""
    asked: dict[str, dict[str, str]] = {}

    class Store(BaseHTTPRequestHandler):
        """Stores what it is sent, and refuses a checksum that is wrong, as it is asked for one."""

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            its = {name.lower(): value for name, value in self.headers.items()}
            key = self.path.rpartition("/run/")[2].rpartition("/mine/")[2].partition("?")[0]
            asked[key] = {name: value for name, value in its.items() if "encryption" in name}
            self.send_response(400 if key == "checksums" else 200)
            self.send_header("ETag", '"e"')
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    for name, value in {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_SERVER_SIDE_ENCRYPTION": "aws:kms",
        "AWS_SSE_KMS_KEY_ID": ARN,
    }.items():
        monkeypatch.setenv(name, value)
    with ThreadingHTTPServer(("127.0.0.1", 0), Store) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        Aws(REGION, account="123456789012").s3.put_object(Bucket="mine", Key="by-boto3", Body=b"x")
        S3Storage("s3://mine/run").put("by-obstore", memoryview(b"x"))
        server.shutdown()
    headers = {
        "x-amz-server-side-encryption": "aws:kms",
        "x-amz-server-side-encryption-aws-kms-key-id": ARN,
    }
    assert asked["by-boto3"] == asked["by-obstore"] == headers


def test_who_names_the_encryption_may_use_such_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    class S3:
        meta = SimpleNamespace(events=Hooks())

        def get_bucket_encryption(self, Bucket: str) -> None:
            raise refusal("AccessDenied")

        def get_bucket_policy(self, Bucket: str) -> dict[str, str]:
            denies = {
                "Effect": "Deny",
                "Principal": "*",
                "Action": "s3:*",
                "Resource": "*",
                "Condition": {"Null": {HEADER: True}},
            }
            return {"Policy": json.dumps({"Statement": denies})}

    aws = fake_aws(s3=S3())
    monkeypatch.delenv("AWS_SERVER_SIDE_ENCRYPTION", raising=False)
    (why,) = bucket_obstacles(aws, "mine", "quokka", "")
    assert "set AWS_SERVER_SIDE_ENCRYPTION=aws:kms" in why
    monkeypatch.setenv("AWS_SERVER_SIDE_ENCRYPTION", "AES256")
    assert [*bucket_obstacles(aws, "mine", "quokka", "")] == []
