"""The key of new disks, which Auto Scaling must be allowed to use."""

import json
from typing import Any

import pytest
from support.aws.account import REGION, account
from support.aws.fake_services import Pages, fake_aws, refusal

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.planning.disk_key import ROLE, look
from spotelastic.errors import UsageError

KEY = "arn:aws:kms:us-east-1:123456789012:key/1234"


class Ec2:
    def __init__(self, key: str = "", refused: str = "") -> None:
        self.key, self.refused = key, refused

    def get_ebs_default_kms_key_id(self) -> dict[str, str]:
        if self.refused:
            raise refusal(self.refused, "GetEbsDefaultKmsKeyId")
        return {"KmsKeyId": self.key}


def policy(*statements: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


def allowed(principal: Any, *actions: str, effect: str = "Allow", **condition: Any) -> Any:
    conditions = {"Condition": condition} if condition else {}
    return {"Effect": effect, "Principal": principal, "Action": actions, **conditions}


ITS = {"AWS": f"arn:aws:iam::123456789012:role/aws-service-role/autoscaling.amazonaws.com/{ROLE}"}
ROOT = {"AWS": "arn:aws:iam::123456789012:root"}
USE = ("kms:Decrypt", "kms:GenerateDataKey*")
BY_EC2 = {"kms:ViaService": "ec2.us-east-1.amazonaws.com", "kms:CallerAccount": "123456789012"}


class Kms:
    """Has one key in this state, with this policy, and grants on two pages."""

    def __init__(
        self, policy: str = policy(), granted: str = "", refused: str = "", **of_key: str
    ) -> None:
        self.policy, self.granted, self.refused, self.of_key = policy, granted, refused, of_key

    def describe_key(self, KeyId: str) -> dict[str, Any]:
        return {"KeyMetadata": {"Arn": KEY, "KeyManager": "CUSTOMER", **self.of_key}}

    def get_key_policy(self, KeyId: str, **_: str) -> dict[str, str]:
        assert KeyId == KEY, "an alias has no policy"
        if self.refused:
            raise refusal(self.refused, "GetKeyPolicy")
        return {"Policy": self.policy}

    def get_paginator(self, _: str) -> Pages:
        grants = [{"GranteePrincipal": "arn:aws:iam::1:role/other"}]
        own: list[Any] = [{"GranteePrincipal": self.granted}] if self.granted else []
        return Pages(lambda **_: [{"Grants": grants}, {"Grants": own}])


@pytest.mark.parametrize(
    "kms",
    [
        Kms(policy(allowed(ROOT, "kms:*"), allowed(ITS, *USE), allowed(ITS, "kms:CreateGrant"))),
        Kms(policy(allowed({"AWS": [ROOT["AWS"], ITS["AWS"]]}, "kms:*"))),
        Kms(policy(allowed({"AWS": "*"}, *USE, "kms:CreateGrant", StringEquals=BY_EC2))),
        Kms(granted=f"arn:aws:iam::123456789012:role/{ROLE}"),
        Kms(KeyManager="AWS"),
    ],
    ids=["named", "among others", "everybody by EC2", "granted", "of AWS"],
)
@pytest.mark.parametrize("name", [KEY, "arn:aws:kms:us-east-1:123456789012:alias/company"])
def test_a_key_that_auto_scaling_may_use_is_no_matter(kms: Kms, name: str) -> None:
    assert look(fake_aws(ec2=Ec2(name), kms=kms)) == ("", "")


@pytest.mark.parametrize(
    ("kms", "why"),
    [
        (Kms(), "do not permit AWSServiceRoleForAutoScaling kms:CreateGrant, kms:Decrypt"),
        (Kms(policy(allowed(ROOT, "kms:*"))), "do not permit"),
        (Kms(policy(allowed(ITS, *USE))), f"do not permit {ROLE} kms:CreateGrant: every"),
        (Kms(policy(allowed({"AWS": f"{ITS['AWS']}_company"}, "kms:*"))), "do not permit"),
        (Kms(granted=f"arn:aws:iam::1:role/{ROLE}_company"), "do not permit"),
        (
            Kms(policy(allowed(ITS, "kms:*"), allowed("*", "kms:CreateGrant", effect="Deny"))),
            f"do not permit {ROLE} kms:CreateGrant: every",
        ),
        (
            Kms(policy(allowed("*", "kms:*", ArnLike={"aws:PrincipalArn": ROOT["AWS"]}))),
            "do not permit",
        ),
        (Kms(KeyState="Disabled"), "it is Disabled: enable it"),
        (Kms(KeyState="PendingDeletion"), "it is about to be deleted: cancel that"),
    ],
)
def test_a_key_that_it_may_not_use_keeps_instances_from_starting(kms: Kms, why: str) -> None:
    warning, obstacle = look(fake_aws(ec2=Ec2(KEY), kms=kms))
    assert obstacle.startswith(f"new disks are encrypted with {KEY}") and why in obstacle
    assert not warning


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


def test_a_key_that_is_given_is_looked_at_alike() -> None:
    its = Kms(policy(allowed(ITS, "kms:*")))
    assert look(fake_aws(kms=its), "alias/mine") == ("", "")
    warning, obstacle = look(fake_aws(kms=Kms(refused="AccessDeniedException")), "alias/mine")
    assert f"encrypted with {KEY}: unless its policy lets {ROLE} and CloudWatch Logs" in warning
    assert not obstacle
    warning, obstacle = look(fake_aws(kms=Kms()), "alias/mine")
    assert obstacle.startswith(f"disks and logs will be encrypted with {KEY}, whose policy")
    with pytest.raises(UsageError, match="--kms-key alias/mine: it is Disabled"):
        look(fake_aws(kms=Kms(KeyState="Disabled")), "alias/mine")


def test_the_local_cloud_answers_as_an_account_that_has_changed_nothing(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with account(tmp_path_factory.mktemp("account")):
        assert look(Aws(REGION)) == ("", "")
