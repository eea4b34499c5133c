"""What is asked before anything is made, and how AWS's refusals are told."""

from collections.abc import Mapping
from typing import Any

import pytest
from support.aws.fake_services import fake_aws, refusal

from spotelastic.aws.base.clients import SignedOut
from spotelastic.aws.planning.dry_run import (
    LaunchRehearsal,
    Refused,
    dry_run,
    run_instances,
    told,
)
from spotelastic.model.job import NO_DEMANDS, AccountDemands

BY_AN_SCP = (
    "You are not authorized to perform this operation. User: arn:aws:iam::123456789012:user/ann is "
    "not authorized to perform: ec2:RunInstances on resource: "
    "arn:aws:ec2:us-east-1:123456789012:instance/* with an explicit deny in a service control "
    "policy. Encoded authorization failure message: Zx9-qPw_abc="
)
BY_NOBODY = "You are not authorized to perform this operation."


class Ec2:
    """Permits every rehearsal but the refused ones, and keeps what it is asked."""

    def __init__(
        self,
        refused: Mapping[str, str] = {},
        subnets: int = 1,
        code: str = "UnauthorizedOperation",
        zone: str = "us-east-1a",
    ) -> None:
        self._refused, self._code = refused, code
        self._subnets, self._zone = subnets, zone
        self.asked: dict[str, list[dict[str, Any]]] = {}
        self.odd: list[dict[str, str]] = []

    def __getattr__(self, name: str) -> Any:
        def call(**given: Any) -> None:
            assert given.pop("DryRun") is True
            self.asked.setdefault(name, []).append(given)
            if name in self._refused:
                raise refusal(self._code, name, self._refused[name])
            raise refusal("DryRunOperation", name)

        return call

    def describe_subnets(self, **_: Any) -> dict[str, Any]:
        subnet = {
            "SubnetId": "subnet-1",
            "AvailabilityZone": self._zone,
            "CidrBlock": "10.0.0.0/24",
        }
        return {"Subnets": [*self.odd, *[subnet] * self._subnets]}


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


def rehearsed(
    ec2: Ec2, demands: AccountDemands = NO_DEMANDS, vpc: str = "", subnet: str = ""
) -> list[Refused]:
    where = {"block": "10.64.0.0/19", "zone": "us-east-1a", "vpc": vpc, "subnet": subnet}
    return dry_run(fake_aws(ec2=ec2), [SPOT], demands, **where)


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


def test_an_outposts_subnet_and_one_with_ipv6_alone_judge_no_launch() -> None:
    ec2, zone = Ec2(), "us-east-1a"
    ec2.odd = [
        {"SubnetId": "subnet-2", "AvailabilityZone": zone, "CidrBlock": "10.0.1.0/24"}
        | {"OutpostArn": "arn:aws:outposts:us-east-1:123456789012:outpost/op-1"},
        {"SubnetId": "subnet-3", "AvailabilityZone": zone},
    ]
    assert not rehearsed(ec2)
    (launch,) = ec2.asked["run_instances"]
    assert "subnet-1" in str(launch)


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
    text = told(rehearsed(Ec2({"run_instances": BY_AN_SCP})))
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
    text = told(rehearsed(Ec2({"create_vpc": f"User: ann is not authorized {cause}"})))
    assert f"to make a network (User: ann is not authorized {cause})" in text
    assert advice in text


def test_all_refusals_are_told_at_once() -> None:
    refused = dict.fromkeys(("create_vpc", "create_launch_template", "run_instances"), BY_NOBODY)
    text = told(rehearsed(Ec2(refused)))
    for what in ("start spot", "make a network", "make a launch template"):
        assert f"to {what}" in text
    assert text.count(BY_NOBODY) == 1


def test_a_refusal_of_the_rehearsal_alone_is_none() -> None:
    class Strict(Ec2):
        def run_instances(self, **_: Any) -> None:
            raise refusal("MissingInput", "RunInstances", "No subnets found for the default VPC")

    assert rehearsed(Strict()) == []


@pytest.mark.parametrize(
    ("code", "message", "advice"),
    [
        ("PendingVerification", "Your request is currently being verified.", "run this again"),
        ("Blocked", "This account is currently blocked.", "ask AWS Support"),
        ("OptInRequired", "You are not subscribed to this service.", "enable the region"),
        ("InvalidAMIID.NotFound", "The image id '[ami-1]' does not exist", "Allowed AMIs"),
        (
            "InvalidParameterCombination",
            "The specified instance type is not eligible for Free Tier.",
            "AWS's free plan",
        ),
        ("VcpuLimitExceeded", "You have requested more vCPU capacity than 0", "doctor --aws"),
        ("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded", "doctor --aws"),
        ("Unsupported", "Your requested instance type is not supported", "--instance-types"),
        ("InvalidSubnetID.NotFound", "The subnet ID 'subnet-7' does not exist", "--subnets"),
        ("TagPolicyViolation", "The tag policy does not allow the specified value", "--tag KEY="),
        ("InvalidBlockDeviceMapping", "Volume of size 8GB is smaller", "prepare-an-account"),
        ("SomethingOfTheFuture", "No.", "prepare-an-account"),
    ],
)
def test_whatever_ec2_answers_counts(code: str, message: str, advice: str) -> None:
    refused = rehearsed(Ec2({"run_instances": message}, code=code), vpc="vpc-1", subnet="subnet-7")
    assert refused == [Refused("start spot instances of g5.xlarge", code, message)]
    text = told(refused)
    assert f"AWS would refuse to start spot instances of g5.xlarge ({code}: {message}): " in text
    assert advice in text and "--force" in text


def test_credentials_that_have_expired_are_no_answer_to_a_launch() -> None:
    with pytest.raises(SignedOut, match="log in again"):
        rehearsed(Ec2({"run_instances": "The security token is expired"}, code="ExpiredToken"))


@pytest.mark.parametrize(
    ("code", "message", "zone", "counts"),
    [
        ("Unsupported", "is not supported in the requested Availability Zone", "us-east-1a", False),
        ("InsufficientFreeAddressesInSubnet", "not enough free addresses", "us-east-1a", False),
        ("PendingVerification", "is being verified", "us-east-1b", True),
    ],
)
def test_what_another_subnet_lacks_is_no_refusal(
    code: str, message: str, zone: str, counts: bool
) -> None:
    """A new network has no subnet to try it in."""
    assert bool(rehearsed(Ec2({"run_instances": message}, code=code, zone=zone))) == counts
