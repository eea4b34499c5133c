"""A network of the user's, from hand-made observations."""

import ipaddress
from dataclasses import replace

import pytest

from spotelastic.aws.network.existing_vpc import (
    SERVICES,
    Network,
    Subnet,
    check_kept,
    free_address,
    obstacles,
    shortages,
    warnings,
    within,
)
from spotelastic.errors import UsageError
from spotelastic.model.job import NO_DEMANDS, AccountDemands

S3 = frozenset({"s3"})
PUBLIC = tuple(
    Subnet(f"subnet-{zone}", zone, "10.0.0.0/24", 200, True, "igw-1", S3) for zone in "abc"
)
NETWORK = Network("vpc-1", PUBLIC, frozenset(), resolves=True)


def told(
    subnet: Subnet, network: Network = NETWORK, cards: int = 1, demands: AccountDemands = NO_DEMANDS
) -> list[str]:
    """What is told of a network whose first subnet is this one."""
    its = replace(network, subnets=(subnet, *network.subnets[1:]))
    return [*obstacles(its, "abc", cards, demands), *warnings(its, "abc")]


def test_a_way_of_the_accounts_own_needs_no_route_to_the_internet() -> None:
    cut_off = replace(PUBLIC[0], way_out="", public=False)
    whole = replace(NETWORK, endpoints=frozenset(SERVICES))
    index = AccountDemands(index_url="https://pypi.corp/simple")
    assert told(cut_off, whole, demands=index) == []
    (line,) = told(cut_off, demands=index)
    assert "package index" not in line and "no endpoint for autoscaling" in line
    assert told(cut_off, demands=AccountDemands(proxy="http://proxy:3128")) == []
    (line,) = told(cut_off, whole)
    assert "and no --proxy: control nodes find no package index there (--index-url" in line


def test_public_subnets_with_an_endpoint_for_s3_are_well() -> None:
    assert told(PUBLIC[0]) == []


def test_a_subnet_that_is_cut_off_names_the_endpoints_that_are_missing() -> None:
    cut_off = replace(PUBLIC[0], way_out="", public=False)
    (line,) = told(cut_off)
    assert line.startswith("no route to the internet from subnet-a, and no --proxy: ")
    assert line.endswith("no endpoint for autoscaling, cloudformation, ec2, logs, sqs, ssm")
    with_all = replace(NETWORK, endpoints=frozenset(SERVICES) - S3)
    (line,) = told(cut_off, with_all)
    assert "endpoint" not in line


def test_an_internet_gateway_is_of_no_use_without_a_public_address() -> None:
    (line,) = told(replace(PUBLIC[0], public=False))
    assert "subnet-a" in line and "subnet-b" not in line and "need a NAT gateway" in line
    (line,) = told(PUBLIC[0], cards=4)
    assert "subnet-a, subnet-b, subnet-c" in line and "several network cards get none" in line


def test_checkpoints_through_a_nat_gateway_are_dear() -> None:
    behind = replace(PUBLIC[0], way_out="nat-1", public=False)
    assert told(behind, cards=1) == []
    (line,) = told(replace(behind, endpoints=frozenset()))
    assert "0.045 USD a GB" in line and "subnet-a" in line


def test_addresses_are_counted_in_the_zone_that_all_workers_may_be_in() -> None:
    small = (replace(PUBLIC[0], free=30), *PUBLIC[1:])
    assert list(shortages(small, 28, packed=True)) == []
    (line,) = shortages(small, 29, packed=True)
    assert line.startswith("subnet-a has 30 free addresses, and nodes take up to 31 while all")
    assert list(shortages(small, 424, packed=False)) == []
    (line,) = shortages(small, 425, packed=False)
    assert line == "the subnets have 430 free addresses, and nodes take up to 431"


def test_a_network_without_names_is_told() -> None:
    (line,) = told(PUBLIC[0], replace(NETWORK, resolves=False))
    assert "DNS support off" in line


def test_a_members_address_is_one_that_nobody_has_and_aws_does_not_keep() -> None:
    small = replace(PUBLIC[0], block="10.0.0.0/28")
    usable = {f"10.0.0.{last}" for last in range(4, 15)}
    taken = set[str]()
    for _ in range(len(usable)):
        taken.add(free_address(small, taken, "demo"))
    assert taken == usable
    with pytest.raises(UsageError, match="subnet-a has no free address"):
        free_address(small, taken, "demo")


def test_members_of_clusters_that_are_made_at_once_hardly_ever_choose_one_address() -> None:
    large = replace(PUBLIC[0], block="10.64.0.0/19")
    chosen = [free_address(large, (), f"cluster-{number}") for number in range(40)]
    assert len(set(chosen)) >= 39
    upper = ipaddress.ip_network("10.64.16.0/20")
    assert all(ipaddress.ip_address(each) in upper for each in chosen)


def test_three_zones_for_control_and_one_for_workers_are_needed() -> None:
    control, both = frozenset({"t3.small"}), frozenset({"t3.small", "g5.xlarge"})
    offers = {"a": control, "b": control, "c": both, "d": both}
    its = within(NETWORK, offers, ["g5.xlarge"], "t3.small")
    assert its == {"a": control, "b": control, "c": both}
    with pytest.raises(UsageError, match=r"in 2 \(b, c\): name subnets in other zones of vpc-1"):
        within(NETWORK, {**offers, "a": frozenset()}, ["g5.xlarge"], "t3.small")
    with pytest.raises(UsageError, match=r"none of their zones \(a, b, c\) offers p5"):
        within(NETWORK, offers, ["p5.48xlarge"], "t3.small")


def test_a_cluster_stays_in_its_network() -> None:
    Ids = tuple[str, ...]
    same: list[tuple[Ids, Ids]] = [((), ()), (("s-1",), ()), (("s-1",), ("s-2", "s-1"))]
    for its, wanted in same:
        check_kept("demo", its, wanted)
    others: list[tuple[Ids, Ids, str]] = [
        ((), ("s-1",), "a network of its own"),
        (("s-1", "s-2"), ("s-1",), "s-1, s-2"),
    ]
    for its, wanted, where in others:
        with pytest.raises(UsageError, match=f"demo is in {where}, and a cluster cannot move"):
            check_kept("demo", its, wanted)
