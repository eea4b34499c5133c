"""What is asked before anything is made, and how AWS's refusals are told."""

from collections.abc import Mapping
from typing import Any

import pytest
from support.aws.fake_services import fake_aws, refusal

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.planning.dry_run import NO_DEMANDS, LaunchRehearsal, dry_run, run_instances
from spotelastic.errors import EnvironmentFailure
from spotelastic.model.job import AccountDemands

BY_AN_SCP = (
    "You are not authorized to perform this operation. User: arn:aws:iam::123456789012:user/ann is "
    "not authorized to perform: ec2:RunInstances on resource: "
    "arn:aws:ec2:us-east-1:123456789012:instance/* with an explicit deny in a service control "
    "policy. Encoded authorization failure message: Zx9-qPw_abc="
)
BY_NOBODY = "You are not authorized to perform this operation."


class Ec2:
    """Permits every rehearsal but the refused ones, and keeps what it is asked."""

    def __init__(self, refused: Mapping[str, str] = {}, subnets: int = 1) -> None:
        self._refused = refused
        self._subnets = subnets
        self.asked: dict[str, list[dict[str, Any]]] = {}

    def __getattr__(self, name: str) -> Any:
        def call(**given: Any) -> None:
            assert given.pop("DryRun") is True
            self.asked.setdefault(name, []).append(given)
            if name in self._refused:
                raise refusal("UnauthorizedOperation", name, self._refused[name])
            raise refusal("DryRunOperation", name)

        return call

    def describe_subnets(self, **_: Any) -> dict[str, Any]:
        return {"Subnets": [{"SubnetId": "subnet-1"}] * self._subnets}


DATA = {
    "ImageId": "ami-1",
    "InstanceType": "g5.xlarge",
    "IamInstanceProfile": {"Arn": ""},
    "SecurityGroupIds": [""],
    "UserData": "boot",
    "Placement": {"GroupName": "-"},
    "BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"Encrypted": True}}],
    "MetadataOptions": {"HttpTokens": "required"},
    "TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "Team", "Value": "v"}]}],
}
SPOT = LaunchRehearsal("start spot instances of g5.xlarge", DATA, spot=True, public=True)


def rehearsed(ec2: Ec2, demands: AccountDemands = NO_DEMANDS, **where: str) -> Aws:
    aws = fake_aws(ec2=ec2)
    dry_run(aws, [SPOT], demands, block="10.64.0.0/19", zone="us-east-1a", **where)
    return aws


def test_a_launch_is_judged_as_it_will_be_made() -> None:
    """With tags, encryption, metadata options, spot, public address: policies ask for each."""
    assert run_instances(SPOT, "subnet-1") == {
        "ImageId": "ami-1",
        "InstanceType": "g5.xlarge",
        "BlockDeviceMappings": DATA["BlockDeviceMappings"],
        "MetadataOptions": DATA["MetadataOptions"],
        "TagSpecifications": DATA["TagSpecifications"],
        "InstanceMarketOptions": {"MarketType": "spot"},
        "NetworkInterfaces": [
            {"DeviceIndex": 0, "AssociatePublicIpAddress": True, "SubnetId": "subnet-1"}
        ],
    }


def test_interfaces_of_several_cards_are_judged_in_a_subnet_without_groups() -> None:
    cards = [{"NetworkCardIndex": card, "DeviceIndex": 1, "Groups": [""]} for card in (0, 1)]
    asked = run_instances(LaunchRehearsal("start", {**DATA, "NetworkInterfaces": cards}), "s")
    assert asked["NetworkInterfaces"] == [
        {"NetworkCardIndex": card, "DeviceIndex": 1, "SubnetId": "s"} for card in (0, 1)
    ]
    assert "InstanceMarketOptions" not in asked and "SubnetId" not in asked


def test_an_account_without_a_default_network_is_judged_in_any_subnet() -> None:
    plain = LaunchRehearsal("start", DATA)
    assert run_instances(plain, "subnet-1")["SubnetId"] == "subnet-1"
    ec2 = Ec2(subnets=0)
    rehearsed(ec2)
    (asked,) = ec2.asked["run_instances"]
    assert "SubnetId" not in asked["NetworkInterfaces"][0]


def test_what_is_made_besides_has_the_users_tags_and_key() -> None:
    ec2 = Ec2()
    rehearsed(ec2, AccountDemands({"Team": "vision"}, key="arn:key"))
    (volume,) = ec2.asked["create_volume"]
    assert (volume["Encrypted"], volume["KmsKeyId"]) == (True, "arn:key")
    made = {name: asked for name, asked in ec2.asked.items() if name.startswith("create_")}
    assert made.keys() == {
        "create_internet_gateway",
        "create_launch_template",
        "create_security_group",
        "create_volume",
        "create_vpc",
    }
    for (asked,) in made.values():
        (its,) = asked["TagSpecifications"]
        assert {"Key": "Team", "Value": "vision"} in its["Tags"]


def test_in_a_network_of_the_users_none_is_made() -> None:
    ec2 = Ec2()
    rehearsed(ec2, vpc="vpc-1", subnet="subnet-7")
    assert {"create_vpc", "create_internet_gateway"}.isdisjoint(ec2.asked)
    assert ec2.asked["create_security_group"][0]["VpcId"] == "vpc-1"
    (asked,) = ec2.asked["run_instances"]
    assert asked["NetworkInterfaces"][0]["SubnetId"] == "subnet-7"


def test_a_policy_of_the_organization_is_named_in_awss_words_and_without_its_code() -> None:
    with pytest.raises(EnvironmentFailure) as told:
        rehearsed(Ec2({"run_instances": BY_AN_SCP}))
    text = str(told.value)
    assert "to start spot instances of g5.xlarge (You are not authorized" in text
    assert "with an explicit deny in a service control policy)" in text
    assert "ask whoever keeps it what it demands (tags: --tag" in text
    assert "Encoded" not in text and "Zx9" not in text and "\n" not in text


@pytest.mark.parametrize(
    ("cause", "advice"),
    [
        ("because no permissions boundary allows the ec2:CreateVpc action", "use others, or have"),
        ("with an explicit deny in a resource control policy", "a policy of your organization"),
        ("with an explicit deny in an identity-based policy", "it may demand tags"),
        ("because no identity-based policy allows it", "see docs/reference/permissions.md"),
    ],
)
def test_each_cause_has_its_advice(cause: str, advice: str) -> None:
    with pytest.raises(EnvironmentFailure, match=advice) as told:
        rehearsed(Ec2({"create_vpc": f"User: ann is not authorized {cause}"}))
    assert f"to make a network (User: ann is not authorized {cause})" in str(told.value)


def test_all_refusals_are_told_at_once() -> None:
    refused = dict.fromkeys(("create_vpc", "create_launch_template", "run_instances"), BY_NOBODY)
    with pytest.raises(EnvironmentFailure) as told:
        rehearsed(Ec2(refused))
    for what in ("start spot", "make a network", "make a launch template"):
        assert f"to {what}" in str(told.value)


def test_a_refusal_of_the_rehearsal_alone_is_none() -> None:
    class Strict(Ec2):
        def run_instances(self, **_: Any) -> None:
            raise refusal("MissingInput", "RunInstances", "No subnets found for the default VPC")

    rehearsed(Strict())
