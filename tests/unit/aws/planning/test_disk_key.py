"""The key of new disks, which Auto Scaling must be allowed to use."""

import pytest
from support.aws.account import REGION, account
from support.aws.fake_services import fake_aws, refusal

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.planning.disk_key import warnings


class Ec2:
    def __init__(self, key: str = "", refused: str = "") -> None:
        self.key, self.refused = key, refused

    def get_ebs_default_kms_key_id(self) -> dict[str, str]:
        if self.refused:
            raise refusal(self.refused, "GetEbsDefaultKmsKeyId")
        return {"KmsKeyId": self.key}


def test_a_key_of_the_accounts_own_is_told_with_who_needs_it() -> None:
    key = "arn:aws:kms:us-east-1:123456789012:key/1234"
    (line,) = warnings(fake_aws(ec2=Ec2(key)))
    assert line.startswith(f"new disks are encrypted with {key}: unless its policy lets AWSService")


@pytest.mark.parametrize(
    "key", ["alias/aws/ebs", "arn:aws:kms:us-east-1:123456789012:alias/aws/ebs"]
)
def test_the_key_of_aws_and_one_that_may_not_be_seen_are_no_matter(key: str) -> None:
    assert list(warnings(fake_aws(ec2=Ec2(key)))) == []
    assert list(warnings(fake_aws(ec2=Ec2(refused="UnauthorizedOperation")))) == []


def test_the_local_cloud_answers_as_an_account_that_has_changed_nothing(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with account(tmp_path_factory.mktemp("account")):
        assert list(warnings(Aws(REGION))) == []
