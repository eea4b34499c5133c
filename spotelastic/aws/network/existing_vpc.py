"""Examines an existing VPC of the user (`--vpc`, `--subnets`) into which a cluster is put.

Nothing here, or elsewhere, changes that network.
"""

import hashlib
import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from spotelastic.aws.base.clients import Aws, calling, explained, listed
from spotelastic.aws.base.names import MEMBERS
from spotelastic.aws.network import zones
from spotelastic.errors import UsageError
from spotelastic.model.job import NO_DEMANDS, AccountDemands

SERVICES = ("autoscaling", "cloudformation", "ec2", "logs", "s3", "sqs", "ssm")
"""Services that nodes call. Without a route to the internet each needs an endpoint."""
NO_INDEX = "control nodes find no package index there (--index-url names one of your own)"
_NO_TARGETS = frozenset({"DestinationPrefixListId", "InstanceOwnerId"})
"""Fields of a route that look as those of its target do."""
_EVERYWHERE = [ipaddress.IPv4Network("0.0.0.0/0")]
_AWS_KEEPS = 4
"""Addresses at a subnet's start that AWS reserves; it also reserves the last one."""


@dataclass(frozen=True, slots=True)
class Subnet:
    """A subnet of the user's VPC."""

    id: str
    zone: str
    block: str
    free: int
    """Number of free addresses."""
    public: bool
    """Whether instances get a public address in it."""
    way_out: str = ""
    """Target of its route to the internet: igw-..., nat-..., ...; "" if there is none."""
    endpoints: frozenset[str] = frozenset()
    """Services that its routes reach without the internet (s3)."""


@dataclass(frozen=True, slots=True)
class Network:
    """The user's VPC, as far as the cluster uses it."""

    vpc: str
    subnets: tuple[Subnet, ...]
    """One per zone."""
    endpoints: frozenset[str]
    """Services with an interface endpoint in it."""
    resolves: bool
    """Whether DNS works in it, as far as can be seen."""
    owner: str = ""
    """The account that shares it, whose endpoints cannot be seen; "" for this one."""

    def of(self, zones: Iterable[str]) -> tuple[Subnet, ...]:
        """Return the subnets in those zones, in the zones' order."""
        by_zone = {subnet.zone: subnet for subnet in self.subnets}
        return tuple(by_zone[zone] for zone in zones)


def gateways(interfaces: int, vpc: str) -> int:
    """Return how many NAT gateways are created.

    One, if workers have several network cards, to which AWS gives no public address. None in a
    network of the user.
    """
    return int(interfaces > 1 and not vpc)


def look(aws: Aws, vpc: str, subnets: Sequence[str]) -> Network:
    """Return the network.

    Raises `UsageError` for what does not exist, for two subnets of one zone, and for those that
    have IPv6 addresses alone: members of etcd find each other by IPv4.
    """
    its = [{"Name": "vpc-id", "Values": [vpc]}]
    unknown = UsageError(f"--vpc {vpc}: there is no such VPC in {aws.region}")
    with explained(unknown, "InvalidVpc"), calling(f"look at the network {vpc}"):
        (its_own,) = aws.ec2.describe_vpcs(VpcIds=[vpc])["Vpcs"]
        owner, resolves = its_own.get("OwnerId", aws.account), True
        if owner == aws.account:  # no other may ask
            answer = aws.ec2.describe_vpc_attribute(VpcId=vpc, Attribute="enableDnsSupport")
            resolves = bool(answer["EnableDnsSupport"]["Value"])
        items = listed(aws.ec2, "describe_subnets", "Subnets", Filters=its)
        there = {item["SubnetId"]: item for item in items}
        tables = list(listed(aws.ec2, "describe_route_tables", "RouteTables", Filters=its))
        every = listed(aws.ec2, "describe_vpc_endpoints", "VpcEndpoints", Filters=its)
        endpoints = [item for item in every if item["State"].lower() == "available"]
    if strangers := [id for id in subnets if id not in there]:
        known = ", ".join(f"{id} ({there[id]['AvailabilityZone']})" for id in sorted(there))
        raise UsageError(
            f"--subnets {','.join(strangers)}: {vpc} has no such subnet; it has {known or 'none'}"
        )
    found = [there[id] for id in subnets]
    if of_ipv6 := [item["SubnetId"] for item in found if not item.get("CidrBlock")]:
        raise UsageError(
            f"--subnets {','.join(of_ipv6)}: nodes need IPv4 addresses, and these have IPv6 alone: "
            "name subnets with both, or with IPv4"
        )
    by_zone: dict[str, str] = {}
    for item in found:
        other = by_zone.setdefault(item["AvailabilityZone"], item["SubnetId"])
        if other != item["SubnetId"]:
            raise UsageError(
                f"--subnets: {other} and {item['SubnetId']} are both in "
                f"{item['AvailabilityZone']}: name one subnet per zone"
            )
    return Network(
        vpc=vpc,
        subnets=tuple(_parsed(item, tables, endpoints) for item in found),
        endpoints=frozenset(
            _service(item)
            for item in endpoints
            if item["VpcEndpointType"] == "Interface" and item.get("PrivateDnsEnabled")
        ),
        resolves=resolves,
        owner="" if owner == aws.account else owner,
    )


def within(
    network: Network,
    offers: zones.Offers,
    types: Sequence[str],
    control: str,
    controls: int = len(MEMBERS),
) -> zones.Offers:
    """Return the region's offers that are in the network's zones (pure).

    Raises `UsageError` unless a zone for each control node offers its type, and one a worker type.
    """
    its = [subnet.zone for subnet in network.subnets]
    for_control = [zone for zone in its if control in offers.get(zone, frozenset())]
    if len(for_control) < controls:
        raise UsageError(
            f"--subnets: each control node needs a zone of its own with {control}, so that etcd "
            f"outlives the loss of one: {controls} in all; these subnets are in {len(for_control)} "
            f"({', '.join(for_control) or 'none'}): name subnets in other zones of {network.vpc}"
            + (", or take one control node with --control 1" if controls > 1 else "")
        )
    if not zones.with_workers(offers, its, types):
        raise UsageError(
            f"--subnets: none of their zones ({', '.join(its)}) offers {', '.join(types)}: name "
            "one in another zone, or choose other --instance-types"
        )
    return {zone: offers.get(zone, frozenset()) for zone in its}


def check_kept(cluster: str, its: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise `UsageError` if a repeated `up` names subnets that the cluster is not in."""
    if wanted and not (its and set(its) <= set(wanted)):
        raise UsageError(
            f"--subnets {','.join(wanted)}: {cluster} is in "
            f"{', '.join(its) or 'a network of its own'}, and a cluster cannot move: take it down "
            "first, or choose another --name"
        )


def shortages(
    subnets: Sequence[Subnet], nodes: int, *, packed: bool, controls: int = len(MEMBERS)
) -> Iterator[str]:
    """Yield where addresses are too few for so many workers and the control nodes (pure).

    Each node takes one address, whatever its network cards: interfaces that are only for EFA take
    none. A member of etcd takes another. If workers are `packed`, all of them may be in any of the
    subnets.
    """
    control = 2 * controls
    if not packed:
        free = sum(subnet.free for subnet in subnets)
        if free < nodes + control:
            yield f"the subnets have {free} free addresses, and nodes take up to {nodes + control}"
        return
    for index, subnet in enumerate(subnets):
        needed = nodes + 2 * (index < controls)
        if subnet.free < needed:
            yield (
                f"{subnet.id} has {subnet.free} free addresses, and nodes take up to {needed} "
                f"while all workers are in {subnet.zone}: name a larger subnet, or --zones spread"
            )


def obstacles(
    network: Network,
    chosen: Sequence[str],
    interfaces: int,
    demands: AccountDemands = NO_DEMANDS,
) -> Iterator[str]:
    """Yield what would keep nodes in the `chosen` zones from working (pure).

    `interfaces` is the number of network interfaces of a worker. By a proxy that the account has
    nodes reach everything.
    """
    if not network.resolves:
        yield f"{network.vpc} has its DNS support off: nodes will not find AWS's services"
    if demands.proxy:
        return
    subnets = network.of(chosen)
    cut_off = [subnet for subnet in subnets if not subnet.way_out]
    if cut_off:
        missing = (
            set(SERVICES)
            - network.endpoints
            - frozenset.intersection(*(subnet.endpoints for subnet in cut_off))
        )
        lacks = [] if demands.index_url else [NO_INDEX]
        what = f"{network.vpc} has no endpoint for {', '.join(sorted(missing))}"
        lacks += [what] if missing and not network.owner else []
        if lacks:
            yield (
                f"no route to the internet from {_names(cut_off)}, and no --proxy: "
                f"{', and '.join(lacks)}"
            )
    deaf = [s for s in subnets if s.way_out.startswith("igw-") and (interfaces > 1 or not s.public)]
    if deaf:
        why = (
            "those with several network cards get none"
            if interfaces > 1
            else "these subnets give none"
        )
        yield (
            f"{_names(deaf)}: only instances with a public address reach the internet, and "
            f"{why}: nodes need a NAT gateway there"
        )


def warnings(network: Network, chosen: Sequence[str]) -> Iterator[str]:
    """Yield what nodes in the `chosen` zones may lack, or what makes them expensive (pure)."""
    subnets = network.of(chosen)
    if network.owner and not all(subnet.way_out for subnet in subnets):
        yield (
            f"{network.vpc} is shared by the account {network.owner}, whose endpoints cannot be "
            f"seen: nodes there need those for {', '.join(SERVICES)}"
        )
    dear = [s for s in subnets if s.way_out.startswith("nat-") and "s3" not in s.endpoints]
    if dear and not network.owner:
        yield (
            f"{network.vpc} has no gateway endpoint for S3 in the routes of {_names(dear)}: "
            "checkpoints go through the NAT gateway, at 0.045 USD a GB"
        )


def member_addresses(aws: Aws, subnets: Sequence[Subnet], cluster: str) -> tuple[str, ...]:
    """Return a free address for each etcd member; the stack takes them before any instance can."""
    with calling("list the addresses in use"):
        its = [{"Name": "subnet-id", "Values": [subnet.id for subnet in subnets]}]
        call, key = "describe_network_interfaces", "NetworkInterfaces"
        taken = {
            address["PrivateIpAddress"]
            for interface in listed(aws.ec2, call, key, Filters=its)
            for address in interface["PrivateIpAddresses"]
        }
    return tuple(free_address(subnet, taken, cluster) for subnet in subnets)


def free_address(subnet: Subnet, taken: Iterable[str], cluster: str) -> str:
    """Return a free address in the upper half of the subnet, else a lower one (pure).

    AWS assigns at random, people from the lowest on. Where the search begins depends on the
    cluster's name: two clusters that are made at the same moment hardly ever choose the same.
    """
    block, used = ipaddress.IPv4Network(subnet.block), frozenset(taken)
    usable = block.num_addresses - _AWS_KEEPS - 1
    begin = int.from_bytes(hashlib.sha256(cluster.encode()).digest()[:8]) % max(1, usable // 2)
    for step in range(usable):
        address = str(block[-2 - (begin + step) % usable])
        if address not in used:
            return address
    raise UsageError(f"--subnets: {subnet.id} has no free address left: name another one")


# -- what AWS says -------------------------------------------------------------------------------


def _parsed(
    item: dict[str, Any], tables: list[dict[str, Any]], endpoints: list[dict[str, Any]]
) -> Subnet:
    table = _table(item["SubnetId"], tables)
    gateways = (
        each for each in endpoints if table["RouteTableId"] in each.get("RouteTableIds", ())
    )
    return Subnet(
        id=item["SubnetId"],
        zone=item["AvailabilityZone"],
        block=item["CidrBlock"],
        free=item["AvailableIpAddressCount"],
        public=item["MapPublicIpOnLaunch"],
        way_out=_way_out(table),
        endpoints=frozenset(map(_service, gateways)),
    )


def _table(subnet: str, tables: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a subnet's own route table, or the network's main one."""
    main: dict[str, Any] = {"RouteTableId": ""}
    for table in tables:
        for association in table["Associations"]:
            if association.get("SubnetId") == subnet:
                return table
            if association.get("Main"):
                main = table
    return main


def _way_out(table: dict[str, Any]) -> str:
    """Return the target of the routes that lead everywhere, by whatever kind of gateway.

    Some networks split their default route, as into 0.0.0.0/1 and 128.0.0.0/1. The target is then
    that of the first.
    """
    leads: list[tuple[ipaddress.IPv4Network, str]] = []
    for route in table.get("Routes", ()):
        where, target = route.get("DestinationCidrBlock"), _target(route)
        if where and target not in ("", "local") and route.get("State") != "blackhole":
            leads.append((ipaddress.IPv4Network(where, strict=False), target))
    if [*ipaddress.collapse_addresses(where for where, _ in leads)] != _EVERYWHERE:
        return ""
    return max(leads, key=lambda lead: lead[0].num_addresses)[1]


def _target(route: dict[str, Any]) -> str:
    """Return where a route leads: its only id or ARN that is no destination."""
    found = (
        str(value)
        for key, value in route.items()
        if value and key.endswith(("Id", "Arn")) and key not in _NO_TARGETS
    )
    return next(found, "")


def _service(endpoint: dict[str, Any]) -> str:
    """Return the short name of an endpoint's service: s3 of com.amazonaws.us-east-1.s3."""
    return str(endpoint["ServiceName"].rpartition(".")[2])


def _names(subnets: Iterable[Subnet]) -> str:
    return ", ".join(subnet.id for subnet in subnets)
