"""The network that all clusters of an account and region share: who makes, uses and removes it."""

import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moto.ec2.models.internet_gateways import InternetGatewayBackend
from support.aws.account import NETWORK, REGION, account
from support.aws.cluster_remains import remains
from support.aws.cluster_requests import changed, request

from spotelastic.aws.base import names
from spotelastic.aws.base.clients import Aws, Rejected
from spotelastic.aws.base.identity import NETWORK as TAG
from spotelastic.aws.base.infra_files import infra
from spotelastic.aws.base.names import SHARED_NETWORK, Names
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.clusters import teardown
from spotelastic.aws.network import cloudformation, shared_network, zones
from spotelastic.aws.planning.plan import plan_of
from spotelastic.aws.planning.survey import SHARED_NETWORK_MADE, survey
from spotelastic.client.targets.aws_target import AwsTarget
from spotelastic.errors import EnvironmentFailure, UsageError

ONE, OTHER = "quokka", "wombat"
A, B, C, D = (f"{REGION}{letter}" for letter in "abcd")


@pytest.fixture
def aws(tmp_path: Path) -> Iterator[Aws]:
    with account(tmp_path):
        yield Aws(REGION)


def quiet(_: str) -> None: ...


def up(aws: Aws, name: str = ONE, **changes: Any) -> clusters.ClusterRecord:
    return clusters.create(request(name, 2, **changes), quiet, aws)


def made_networks(aws: Aws) -> list[str]:
    return [vpc["VpcId"] for vpc in aws.ec2.describe_vpcs()["Vpcs"] if not vpc["IsDefault"]]


def parameters_of(aws: Aws, stack: str) -> dict[str, str]:
    found = cloudformation.describe(aws, stack)
    assert found is not None
    return cloudformation.parameters(found)


def test_clusters_share_a_network_that_stays_until_it_is_removed(aws: Aws) -> None:
    assert SHARED_NETWORK_MADE in survey(aws, request(ONE).job).resources
    one, other = up(aws), up(aws, OTHER)
    (vpc,) = made_networks(aws)
    assert SHARED_NETWORK_MADE not in survey(aws, request("third").job).resources
    assert {each.spec.vpc for each in (one, other)} == {""}, "it is not the user's"
    assert not set(one.spec.etcd) & set(other.spec.etcd)
    tagged = [{"Name": "tag-key", "Values": ["spotelastic:cluster"]}]
    machines = aws.ec2.describe_instances(Filters=tagged)["Reservations"]
    groups: dict[str, set[str]] = {ONE: set(), OTHER: set()}
    for machine in (machine for each in machines for machine in each["Instances"]):
        assert machine["VpcId"] == vpc
        name = {tag["Key"]: tag["Value"] for tag in machine["Tags"]}["spotelastic:cluster"]
        groups[name] |= {group["GroupId"] for group in machine["SecurityGroups"]}
    assert len(groups[ONE]) == len(groups[OTHER]) == 1
    assert not groups[ONE] & groups[OTHER], "they do not reach each other"
    assert up(aws).spec.etcd == one.spec.etcd

    place, told = AwsTarget(aws), list[str]()
    place.down(ONE, told.append)
    assert not [line for line in told if SHARED_NETWORK in line], "another cluster uses it"
    with pytest.raises(UsageError, match=f"{OTHER} is in the network {SHARED_NETWORK}: end that"):
        place.remove_network(told.append)
    with pytest.raises(Rejected, match="in use by spotelastic-wombat"):
        cloudformation.begin_deletion(aws, SHARED_NETWORK)
    assert shared_network.look(aws) is not None
    place.down(OTHER, told.append)
    assert any("stays for the next `up`, and costs nothing" in line for line in told)
    place.remove_network(told.append)
    assert told[-1] == f"the network {SHARED_NETWORK} is gone"
    assert made_networks(aws) == remains("SharedNetwork") == remains(ONE) == []
    place.remove_network(told.append)
    assert told[-1] == f"there is no network {SHARED_NETWORK} in {REGION}"


def test_what_somebody_else_has_put_into_it_is_named_and_keeps_it_whole(aws: Aws) -> None:
    network = shared_network.ensure(aws, NETWORK, (), quiet)
    foreign = aws.ec2.create_network_interface(
        SubnetId=network.subnets[0].id, Description="a database"
    )["NetworkInterface"]["NetworkInterfaceId"]
    with pytest.raises(EnvironmentFailure, match=rf"has not made \({foreign} \(a database\)\)"):
        shared_network.remove(aws, quiet)
    assert shared_network.look(aws) == shared_network.ensure(aws, NETWORK, (), quiet)
    aws.ec2.delete_network_interface(NetworkInterfaceId=foreign)
    assert shared_network.remove(aws, quiet)
    assert made_networks(aws) == []


def test_one_that_is_removed_while_a_cluster_is_made_is_made_again_by_the_next(aws: Aws) -> None:
    def say(line: str) -> None:
        if line.startswith(f"stack {Names(ONE).stack}: queue"):
            shared_network.remove(aws, quiet)

    with pytest.raises(EnvironmentFailure, match="No export named"):
        clusters.create(request(ONE, 2), say, aws)
    assert clusters.all_names(aws) == ()
    clusters.create(request(ONE, 2), quiet, aws)
    (vpc,) = made_networks(aws)
    assert parameters_of(aws, Names(ONE).stack)["GivenVpc"] == vpc
    teardown.delete(ONE, aws=aws)
    assert remains(ONE) == []


def test_a_cluster_whose_network_was_lost_with_it_is_made_in_the_new_one(aws: Aws) -> None:
    """The `up` was killed as soon as its stack had failed."""
    plan = plan_of(request(ONE, 2), aws, None)
    lost = plan.parameters | {"GivenVpc": "vpc-gone", "ServiceRole": "-"}
    body = infra("cluster.yaml").read_text()
    cloudformation.create(aws, Names(ONE).stack, lost, body, {"spotelastic:cluster": ONE})
    stack = cloudformation.describe(aws, Names(ONE).stack)
    assert stack is not None and stack["StackStatus"] in cloudformation.UNUSABLE
    up(aws)
    assert parameters_of(aws, Names(ONE).stack)["GivenVpc"] == made_networks(aws)[0]


def test_of_two_that_make_it_at_once_both_get_the_same(aws: Aws) -> None:
    found = list[shared_network.SharedNetwork]()

    def say(line: str) -> None:
        if not found:
            found.append(shared_network.ensure(aws, NETWORK, (), quiet))

    assert shared_network.ensure(aws, NETWORK, (), say) == found[0]
    assert len(made_networks(aws)) == 1


def test_remains_of_an_attempt_that_failed_are_replaced_or_removed(
    aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no more gateways")

    def fails() -> None:
        told = r"SharedNetwork failed: .*no more gateways"
        with monkeypatch.context() as patch, pytest.raises(EnvironmentFailure, match=told):
            patch.setattr(InternetGatewayBackend, "create_internet_gateway", fail)
            up(aws)
        assert clusters.all_names(aws) == (), "the cluster that needed it"
        stack = cloudformation.describe(aws, SHARED_NETWORK)
        assert stack is not None and stack["StackStatus"] == "ROLLBACK_COMPLETE"
        assert shared_network.look(aws) is None

    fails()
    shared_network.ensure(aws, NETWORK, (A,), quiet)
    assert len(made_networks(aws)) == 1
    assert shared_network.remove(aws, quiet)
    fails()
    assert shared_network.remove(aws, quiet)
    assert cloudformation.describe(aws, SHARED_NETWORK) is None
    assert made_networks(aws) == []


def make(aws: Aws, version: str, its_zones: tuple[str, ...]) -> None:
    """As another version of spotelastic has made it."""
    block = names.shared_block(NETWORK, ())
    wanted = {
        "Cidr": block,
        "Zones": zones.padded(its_zones),
        "SubnetCidrs": zones.padded(names.shared_subnets(block)[: len(its_zones)]),
    }
    body = infra("network.yaml").read_text()
    cloudformation.create(aws, SHARED_NETWORK, wanted, body, {TAG: version})


def test_a_zone_that_it_lacks_is_added_and_its_subnets_stay(aws: Aws) -> None:
    make(aws, "1", (D, B, C))
    before = shared_network.ensure(aws, NETWORK, (C, B), quiet)
    assert before.zones == (D, B, C), "enough for that cluster"
    after = shared_network.ensure(aws, NETWORK, (A,), quiet)
    assert after.subnets[:3] == before.subnets
    assert A in after.zones[3:] and len(after.zones) == zones.MOST
    blocks = [ipaddress.ip_network(subnet.block) for subnet in after.subnets]
    assert len(set(blocks)) == len(blocks)


def test_a_stack_of_somebody_elses_is_never_touched(aws: Aws) -> None:
    body = infra("network.yaml").read_text()
    make(aws, "1", (A, B, C))
    aws.cloudformation.update_stack(
        StackName=SHARED_NETWORK, TemplateBody=body, Tags=[{"Key": "team", "Value": "net"}]
    )
    for attempt in (lambda: up(aws), lambda: shared_network.remove(aws, quiet)):
        with pytest.raises(UsageError, match="was not made by spotelastic"):
            attempt()
    assert cloudformation.describe(aws, SHARED_NETWORK) is not None


def test_a_cluster_that_has_a_network_of_its_own_keeps_it(aws: Aws) -> None:
    """As earlier versions made all of them, and clusters with a NAT gateway have it still."""
    with_nat = changed(request(ONE, 2), instance_types=("p4d.24xlarge",))
    its = plan_of(with_nat, aws, None).parameters
    assert (its["GivenVpc"], its["SharedNetwork"], its["PrivateWorkers"]) == ("", "no", "yes")
    plan = plan_of(request(ONE, 2), aws, None)
    its_zones = zones.given(plan.parameters["Zones"])
    own = names.addresses(NETWORK, (), len(its_zones))
    parameters = plan.parameters | {
        "GivenVpc": "",
        "GivenSubnets": zones.padded(()),
        "SubnetCidrs": zones.padded(own.subnets),
        "PrivateCidrs": zones.padded(own.private),
        "Cidr": own.block,
        "MemberAddresses": ",".join(own.members),
        "ServiceRole": "arn:aws:iam::123456789012:role/spotelastic-cloudformation-us-east-1",
    }
    del parameters["SharedNetwork"]
    cloudformation.ensure(aws, Names(ONE).stack, parameters, quiet, maker="earlier")
    before = made_networks(aws)
    cluster = up(aws)
    etcd = tuple(f"{member}:2379" for member in own.members)
    assert (cluster.spec.etcd, made_networks(aws)) == (etcd, before)
    assert cloudformation.describe(aws, SHARED_NETWORK) is None
    teardown.delete(ONE, aws=aws)
    assert made_networks(aws) == remains(ONE) == []


def test_its_subnets_are_large_and_no_cluster_can_be_called_like_its_stack() -> None:
    block = names.shared_block("10.64.0.0/12", ("10.64.0.0/19",))
    assert block == "10.65.0.0/16"
    subnets = names.shared_subnets(block)
    assert len(subnets) >= zones.MOST
    assert {ipaddress.ip_network(subnet).prefixlen for subnet in subnets} == {19}
    with pytest.raises(UsageError):
        Names(SHARED_NETWORK.removeprefix(names.PREFIX))
