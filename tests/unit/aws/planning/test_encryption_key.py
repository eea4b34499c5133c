"""A KMS key of the user's own, which has to be there and of the right kind."""

import pytest
from support.aws.account import REGION, account
from support.aws.fake_services import fake_aws, refusal

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.planning.encryption_key import check_kept, find_key, unfit
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
        ({"KeyState": "PendingDeletion"}, "it is PendingDeletion"),
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


def test_a_cluster_keeps_its_key() -> None:
    check_kept("quokka", ARN, "")
    check_kept("quokka", ARN, ARN)
    for its, was in ((ARN, ARN), ("", "AWS keys")):
        with pytest.raises(UsageError, match=f"quokka was made with {was}"):
            check_kept("quokka", its, "arn:another")
