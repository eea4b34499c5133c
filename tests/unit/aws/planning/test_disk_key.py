"""The key of new disks, which Auto Scaling must be allowed to use."""

from typing import Any

import pytest
from support.aws.account import REGION, account
from support.aws.fake_services import Pages, fake_aws, refusal

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.planning.disk_key import ROLE, look, warnings

KEY = "arn:aws:kms:us-east-1:123456789012:key/1234"


class Ec2:
    def __init__(self, key: str = "", refused: str = "") -> None:
        self.key, self.refused = key, refused

    def get_ebs_default_kms_key_id(self) -> dict[str, str]:
        if self.refused:
            raise refusal(self.refused, "GetEbsDefaultKmsKeyId")
        return {"KmsKeyId": self.key}


class Kms:
    """Has one key, with this policy and grants on two pages."""

    def __init__(self, policy: str = "{}", granted: str = "", refused: str = "") -> None:
        self.policy, self.granted, self.refused = policy, granted, refused

    def get_key_policy(self, **_: str) -> dict[str, str]:
        if self.refused:
            raise refusal(self.refused, "GetKeyPolicy")
        return {"Policy": self.policy}

    def get_paginator(self, _: str) -> Pages:
        grants = [{"GranteePrincipal": "arn:aws:iam::1:role/other"}]
        own: list[Any] = [{"GranteePrincipal": self.granted}] if self.granted else []
        return Pages(lambda **_: [{"Grants": grants}, {"Grants": own}])


@pytest.mark.parametrize("kms", [Kms(f'{{"AWS": ".../{ROLE}"}}'), Kms(granted=f"role/{ROLE}")])
def test_a_key_that_auto_scaling_may_use_is_no_matter(kms: Kms) -> None:
    assert look(fake_aws(ec2=Ec2(KEY), kms=kms)) == ("", "")


def test_a_key_that_it_may_not_use_keeps_instances_from_starting() -> None:
    warning, obstacle = look(fake_aws(ec2=Ec2(KEY), kms=Kms()))
    assert obstacle.startswith(f"new disks are encrypted with {KEY}, whose policy and grants")
    assert ROLE in obstacle and not warning


def test_a_key_whose_policy_may_not_be_seen_is_told_with_who_needs_it() -> None:
    warning, obstacle = look(fake_aws(ec2=Ec2(KEY), kms=Kms(refused="AccessDeniedException")))
    assert warning.startswith(f"new disks are encrypted with {KEY}: unless its policy lets")
    assert not obstacle


@pytest.mark.parametrize(
    "key", ["alias/aws/ebs", "arn:aws:kms:us-east-1:123456789012:alias/aws/ebs"]
)
def test_the_key_of_aws_and_one_that_may_not_be_seen_are_no_matter(key: str) -> None:
    assert look(fake_aws(ec2=Ec2(key))) == ("", "")
    assert look(fake_aws(ec2=Ec2(refused="UnauthorizedOperation"))) == ("", "")


def test_a_key_that_is_given_is_told_with_who_needs_it() -> None:
    (line,) = warnings(KEY)
    assert KEY in line and ROLE in line
    assert not [*warnings("")]


def test_the_local_cloud_answers_as_an_account_that_has_changed_nothing(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with account(tmp_path_factory.mktemp("account")):
        assert look(Aws(REGION)) == ("", "")
