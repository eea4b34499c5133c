"""`--vpc` and `--subnets`: a cluster in a network that is the user's before and after it."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.aws.account import REGION, account
from support.aws.cluster_remains import remains
from support.aws.own_network import ZONES, Own

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.names import Names
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.clusters import teardown
from spotelastic.aws.compute import autoscaling
from spotelastic.aws.network import existing_vpc
from spotelastic.aws.planning.survey import survey
from spotelastic.errors import UsageError
from spotelastic.model.job import Capacity, JobSpec, Settings

NAME = "quokka"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Own]:
    with account(tmp_path_factory.mktemp("account")):
        yield Own(Aws(REGION))


def up(own: Own, **changes: Any) -> clusters.ClusterRecord:
    return clusters.create(own.request(NAME, **changes), lambda _: None, own.aws)


def test_a_cluster_lives_in_the_users_network_and_leaves_it_as_it_was(own: Own) -> None:
    before = own.everything()
    spread = own.request(NAME, capacity=Capacity(zones="spread"))
    found = survey(own.aws, spread.job)
    (of_traffic,) = found.warnings
    assert found.zones == ZONES and "gradients go through 2 zones" in of_traffic
    cluster = up(own)
    assert set(found.resources) == resources(own)
    machines = autoscaling.instances(own.aws, NAME)
    assert len(machines) == 5
    instances = own.aws.ec2.describe_instances(InstanceIds=[each.id for each in machines])
    all_of_them = [each for group in instances["Reservations"] for each in group["Instances"]]
    assert {each["VpcId"] for each in all_of_them} == {own.vpc}
    assert {each["SubnetId"] for each in all_of_them} <= set(own.subnets)
    hosts = [endpoint.removesuffix(":2379") for endpoint in cluster.spec.etcd]
    assert [host.rpartition(".")[0] for host in hosts] == [f"127.96.{n}" for n in range(3)]

    again = up(own, vpc="", subnets=(), settings=Settings(1, 1, workers=1))
    assert (again.spec.vpc, again.spec.subnets) == (own.vpc, own.subnets)
    assert again.spec.etcd == cluster.spec.etcd
    with pytest.raises(UsageError, match=f"{NAME} is in subnet-.* cannot move"):
        up(own, subnets=own.subnets[1:])

    teardown.delete(NAME, aws=own.aws)
    assert own.everything() == before
    assert remains(NAME) == []


def resources(own: Own) -> set[str]:
    """What the stack holds, counted; nothing of it is a network."""
    stack = own.aws.cloudformation.describe_stack_resources(StackName=Names(NAME).stack)
    kinds = [each["ResourceType"].removeprefix("AWS::") for each in stack["StackResources"]]
    assert not {"EC2::VPC", "EC2::Subnet", "EC2::RouteTable", "EC2::VPCEndpoint"} & set(kinds)
    return {f"{kinds.count(kind)} {kind}" for kind in kinds}


def test_a_network_that_cannot_be_used_is_refused_and_nothing_is_made(own: Own) -> None:
    a, b, *_ = own.subnets
    for changes, message in (
        ({"vpc": "vpc-0123456789abcdef0"}, r"--vpc vpc-0123456789abcdef0: there is no such VPC"),
        ({"subnets": (a, "subnet-00000000")}, rf"subnet-00000000: .* it has .*{a} \(us-east-1a\)"),
        ({"subnets": (a, b, own.beside)}, rf"{a} and {own.beside} are both in us-east-1a"),
        ({"subnets": (a, b)}, r"these subnets are in 2 \(us-east-1a, us-east-1b\)"),
    ):
        with pytest.raises(UsageError, match=message) as refused:
            up(own, **changes)
        assert "\n" not in str(refused.value)
    assert remains(NAME) == []


def test_what_keeps_nodes_from_working_is_seen_in_the_routes(own: Own) -> None:
    found = existing_vpc.look(own.aws, own.vpc, (own.beside, *own.subnets[1:]))
    private, public = found.subnets[:2]
    assert (private.way_out, private.public, private.endpoints) == ("", False, frozenset())
    assert (public.way_out[:4], public.public, public.endpoints) == (
        "igw-",
        True,
        frozenset({"s3"}),
    )


def test_subnets_without_free_addresses_are_told_before_anything_is_made(own: Own) -> None:
    """Others have taken all but one of each of the smallest subnets that there are."""
    ec2 = own.aws.ec2
    subnets = []
    for index, zone in enumerate(ZONES[:3]):
        made = ec2.create_subnet(
            VpcId=own.vpc, CidrBlock=f"127.96.9.{index * 16}/28", AvailabilityZone=zone
        )
        subnets.append(made["Subnet"]["SubnetId"])
        ec2.modify_subnet_attribute(SubnetId=subnets[-1], MapPublicIpOnLaunch={"Value": True})
        ec2.associate_route_table(RouteTableId=routes(own), SubnetId=subnets[-1])
    wish = own.request(NAME, subnets=tuple(subnets)).job
    assert not told_of_addresses(own, wish)
    taken = [
        ec2.create_network_interface(SubnetId=subnets[0])["NetworkInterface"] for _ in range(10)
    ]
    (line,) = told_of_addresses(own, wish)
    assert line.startswith(f"{subnets[0]} has 1 free addresses, and nodes take up to")
    for each in taken:
        ec2.delete_network_interface(NetworkInterfaceId=each["NetworkInterfaceId"])
    assert not told_of_addresses(own, wish)


def told_of_addresses(own: Own, wish: JobSpec) -> list[str]:
    return [line for line in survey(own.aws, wish).warnings if "free addresses" in line]


def routes(own: Own) -> str:
    """The table of routes by which the network's subnets reach the internet."""
    its = [{"Name": "association.subnet-id", "Values": [own.subnets[0]]}]
    (table,) = own.aws.ec2.describe_route_tables(Filters=its)["RouteTables"]
    return str(table["RouteTableId"])
