"""A network of the user's, as AWS describes it: each kind of default route, and what has none."""

from typing import Any

import pytest
from support.aws.fake_services import ACCOUNT, Pages, fake_aws

from spotelastic.aws.network.existing_vpc import SERVICES, look, obstacles, warnings
from spotelastic.errors import UsageError
from spotelastic.model.job import AccountDemands

LOCAL = {"DestinationCidrBlock": "10.0.0.0/16", "GatewayId": "local", "State": "active"}


class Ec2:
    """Has one subnet, with these routes."""

    def __init__(self, routes: list[dict[str, str]], block: str | None = "10.0.0.0/24") -> None:
        subnet: dict[str, Any] = {
            "SubnetId": "subnet-1",
            "AvailabilityZone": "us-east-1a",
            "AvailableIpAddressCount": 250,
            "MapPublicIpOnLaunch": False,
        }
        if block:
            subnet["CidrBlock"] = block
        table = {
            "RouteTableId": "rtb-1",
            "Associations": [{"SubnetId": "subnet-1"}],
            "Routes": [LOCAL, *routes],
        }
        self._pages = {
            "describe_subnets": {"Subnets": [subnet]},
            "describe_route_tables": {"RouteTables": [table]},
            "describe_vpc_endpoints": {"VpcEndpoints": []},
        }

    owner = ACCOUNT

    def describe_vpcs(self, **_: Any) -> dict[str, Any]:
        return {"Vpcs": [{"VpcId": "vpc-1", "OwnerId": self.owner}]}

    def describe_vpc_attribute(self, **_: Any) -> dict[str, Any]:
        assert self.owner == ACCOUNT, "no other account may ask"
        return {"EnableDnsSupport": {"Value": True}}

    def get_paginator(self, name: str) -> Pages:
        return Pages(lambda **_: [self._pages[name]])


def way_out(*routes: dict[str, str]) -> str:
    (subnet,) = look(fake_aws(ec2=Ec2(list(routes))), "vpc-1", ["subnet-1"]).subnets
    return subnet.way_out


def route(where: str, state: str = "active", **target: str) -> dict[str, str]:
    return {"DestinationCidrBlock": where, "State": state, "Origin": "CreateRoute", **target}


@pytest.mark.parametrize(
    "target",
    [
        {"GatewayId": "igw-1"},
        {"NatGatewayId": "nat-1"},
        {"TransitGatewayId": "tgw-1"},
        {"VpcPeeringConnectionId": "pcx-1"},
        {"LocalGatewayId": "lgw-1"},
        {"CarrierGatewayId": "cagw-1"},
        {"CoreNetworkArn": "arn:aws:networkmanager::123456789012:core-network/core-network-1"},
        {"InstanceId": "i-1", "InstanceOwnerId": "123456789012", "NetworkInterfaceId": "eni-1"},
        {"SomethingOfTheFutureId": "sf-1"},
    ],
    ids=lambda target: next(iter(target)),
)
def test_whatever_a_default_route_leads_to_is_a_way_out(target: dict[str, str]) -> None:
    assert way_out(route("0.0.0.0/0", **target)) == next(iter(target.values()))


def test_a_default_route_may_be_split() -> None:
    halves = (route("0.0.0.0/1", NatGatewayId="nat-1"), route("128.0.0.0/1", NatGatewayId="nat-1"))
    assert way_out(*halves) == "nat-1"
    assert way_out(halves[0]) == ""


def test_a_network_of_the_company_and_a_route_that_leads_nowhere_are_no_way_out() -> None:
    assert way_out() == ""
    assert way_out(route("10.0.0.0/8", TransitGatewayId="tgw-1")) == ""
    assert way_out(route("0.0.0.0/0", "blackhole", NatGatewayId="nat-1")) == ""
    of_ipv6 = {"DestinationIpv6CidrBlock": "::/0", "EgressOnlyInternetGatewayId": "eigw-1"}
    assert way_out({**of_ipv6, "State": "active"}) == ""


def test_a_subnet_with_ipv6_alone_is_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match="subnet-1: nodes need IPv4 addresses"):
        look(fake_aws(ec2=Ec2([], block=None)), "vpc-1", ["subnet-1"])


def test_endpoints_of_a_network_that_another_account_shares_cannot_be_seen() -> None:
    ec2 = Ec2([])
    ec2.owner = "210987654321"
    shared = look(fake_aws(ec2=ec2), "vpc-1", ["subnet-1"])
    index = AccountDemands(index_url="https://pypi.corp/simple")
    assert not [*obstacles(shared, ["us-east-1a"], 1, index)]
    (line,) = warnings(shared, ["us-east-1a"])
    assert line.startswith("vpc-1 is shared by the account 210987654321, whose endpoints")
    assert all(service in line for service in SERVICES)
    (line,) = obstacles(
        look(fake_aws(ec2=Ec2([])), "vpc-1", ["subnet-1"]), ["us-east-1a"], 1, index
    )
    assert "vpc-1 has no endpoint for" in line
