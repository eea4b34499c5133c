"""Makes, finds and removes the network that all clusters of an account and region share.

It is a stack of its own (`infra/network.yaml`), costs nothing, and stays when clusters go. So a
later `up` does not wait for it, and the quota of networks does not limit the number of clusters.
What costs money, a NAT gateway, is never part of it: clusters that need one get a network of their
own.

Several `up`s may make it at the same moment, and somebody may remove it meanwhile: each step looks
anew at what is there. No cluster's end can remove it. The right to delete a cluster's parts goes by
a tag that it does not have, and CloudFormation keeps it while a cluster's stack imports its export.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spotelastic.aws.base import names
from spotelastic.aws.base.clients import Aws, Rejected, calling, listed, patient
from spotelastic.aws.base.demands import NO_TAGS, own_of
from spotelastic.aws.base.identity import CLUSTER, NETWORK
from spotelastic.aws.base.infra_files import infra
from spotelastic.aws.base.names import MEMBERS, SHARED_NETWORK
from spotelastic.aws.network import cloudformation, existing_vpc, zones
from spotelastic.aws.network.cloudformation import Say
from spotelastic.aws.network.existing_vpc import Subnet
from spotelastic.errors import EnvironmentFailure, SpotelasticError, UsageError

VERSION = 1
"""Version of `infra/network.yaml`, which its tag has."""
ATTEMPTS = 4
"""Times that the network is looked at after something has changed; others may change it, too."""
USABLE = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE")


@dataclass(frozen=True, slots=True)
class SharedNetwork:
    """The network, as it is or as it would be made."""

    vpc: str
    """Empty while it is not made."""
    block: str
    subnets: tuple[Subnet, ...]
    """One per zone, in the order in which they were added."""

    def of(self, wanted: Sequence[str]) -> tuple[Subnet, ...]:
        """Return the subnets of these zones, in the order of the zones."""
        by_zone = {subnet.zone: subnet for subnet in self.subnets}
        return tuple(by_zone[zone] for zone in wanted)

    @property
    def zones(self) -> tuple[str, ...]:
        """Zones in which it has a subnet."""
        return tuple(subnet.zone for subnet in self.subnets)


# -- look ----------------------------------------------------------------------------------------


def look(aws: Aws) -> SharedNetwork | None:
    """Return the network; None unless it can be used.

    Raises `UsageError` if something else is called so.
    """
    stack = cloudformation.describe(aws, SHARED_NETWORK)
    if stack is None or stack["StackStatus"] not in USABLE:
        return None
    return _read(aws, stack)


def planned(aws: Aws, pool: str, wanted: Sequence[str]) -> SharedNetwork:
    """Return the network that would be made, with a block of `pool` that no network has."""
    block = names.shared_block(pool, networks(aws))
    return SharedNetwork("", block, tuple(_subnets(block, _region_zones(aws, wanted))))


def networks(aws: Aws) -> tuple[str, ...]:
    """Return the address blocks of all networks of the account and region."""
    with calling("list the networks in use"):
        return tuple(
            str(part["CidrBlock"])
            for vpc in listed(aws.ec2, "describe_vpcs", "Vpcs")
            for part in vpc.get("CidrBlockAssociationSet") or (vpc,)
        )


def parameters(
    aws: Aws,
    network: SharedNetwork,
    chosen: Sequence[str],
    cluster: str,
    controls: int = len(MEMBERS),
) -> dict[str, str]:
    """Return the parameters of the stack of a cluster in these zones of the network."""
    subnets = network.of(chosen)
    its = subnets[:controls]
    if network.vpc:
        members = existing_vpc.member_addresses(aws, its, cluster)
    else:
        members = tuple(existing_vpc.free_address(subnet, (), cluster) for subnet in its)
    return {
        **zones.NETWORK,
        "GivenVpc": network.vpc,
        "GivenSubnets": zones.padded([subnet.id for subnet in subnets]),
        "SharedNetwork": "yes",
        "Zones": zones.padded(chosen),
        "MemberAddresses": zones.padded(members, len(MEMBERS)),
    }


def is_shared(parameters: Mapping[str, str]) -> bool:
    """Whether a cluster with these parameters of its stack is in the shared network."""
    return parameters.get("SharedNetwork") == "yes"


# -- make ----------------------------------------------------------------------------------------


def ensure(
    aws: Aws,
    pool: str,
    wanted: Sequence[str],
    say: Say,
    own_tags: Mapping[str, str] = NO_TAGS,
) -> SharedNetwork:
    """Return the network with a subnet in each of the `wanted` zones, made or extended if needed.

    `own_tags` are the user's, for a network that is made now. Remains of an attempt that failed
    are deleted first. A network that cannot be extended is
    returned as it is. Raises `EnvironmentFailure` with CloudFormation's reason.
    """
    refused = False
    """Whether CloudFormation could not extend it."""
    for _ in range(ATTEMPTS):
        stack = cloudformation.settled(aws, SHARED_NETWORK, say)
        if stack is None:
            _create(aws, planned(aws, pool, wanted), say, own_tags)
            continue
        found = _read(aws, stack) if stack["StackStatus"] in USABLE else None
        if found is None:
            _check_owner(stack)
            say(f"stack {SHARED_NETWORK}: deleting the remains of an earlier attempt")
            _delete(aws, stack)
            continue
        whole = _extended(aws, found, wanted)
        if refused or whole.zones == found.zones:
            return found
        refused = not _update(aws, stack, whole, say)
    raise EnvironmentFailure(
        f"the network {SHARED_NETWORK} is being changed by others again and again: run "
        "`spotelastic up` again"
    )


def _create(aws: Aws, network: SharedNetwork, say: Say, own_tags: Mapping[str, str]) -> None:
    """Create the network, or wait for another `up` that does."""
    say(f"stack {SHARED_NETWORK}: the network of all clusters in {aws.region}, {network.block}")
    body = infra("network.yaml").read_text()
    try:
        its = {**own_tags, **_tags(body)}
        cloudformation.create(aws, SHARED_NETWORK, stack_parameters(network), body, its)
    except Rejected as error:
        if error.code != "AlreadyExistsException":
            raise
        return
    stack = cloudformation.settled(aws, SHARED_NETWORK, say)
    if stack is not None and stack["StackStatus"] not in USABLE:
        raise EnvironmentFailure(
            f"the stack {SHARED_NETWORK} failed: {cloudformation.failure(aws, SHARED_NETWORK)}"
        )


def _update(aws: Aws, stack: Mapping[str, Any], network: SharedNetwork, say: Say) -> bool:
    """Extend the network; return whether CloudFormation did it."""
    say(f"stack {SHARED_NETWORK}: subnets in {', '.join(network.zones)}")
    body = infra("network.yaml").read_text()
    try:
        its = {**own_of(cloudformation.tags(stack)), **_tags(body)}
        cloudformation.update(aws, SHARED_NETWORK, stack_parameters(network), body, its)
    except Rejected as error:
        if error.code != "ValidationError":  # another `up` is changing it, or it is going
            raise
        return True
    now = cloudformation.settled(aws, SHARED_NETWORK, say)
    if now is None or now["StackStatus"] != "UPDATE_ROLLBACK_COMPLETE":
        return True
    say(
        f"stack {SHARED_NETWORK}: it stays as it was: {cloudformation.failure(aws, SHARED_NETWORK)}"
    )
    return False


def stack_parameters(network: SharedNetwork) -> dict[str, str]:
    """Return the parameters of the network's own stack."""
    return {
        "Cidr": network.block,
        "SubnetCidrs": zones.padded([subnet.block for subnet in network.subnets]),
        "Zones": zones.padded(network.zones),
    }


def _tags(body: str) -> dict[str, str]:
    return {NETWORK: str(VERSION), cloudformation.TEMPLATE: cloudformation.digest(body)}


def _extended(aws: Aws, network: SharedNetwork, wanted: Sequence[str]) -> SharedNetwork:
    """Return the network with the wanted zones that it lacks, as far as there is room."""
    if set(wanted) <= set(network.zones):
        return network
    every = [*network.zones, *(z for z in _region_zones(aws, wanted) if z not in network.zones)]
    planned = {subnet.zone: subnet for subnet in _subnets(network.block, every)}
    known = {subnet.zone: subnet for subnet in network.subnets}
    return replace(network, subnets=tuple({**planned, **known}[zone] for zone in planned))


def _subnets(block: str, its_zones: Sequence[str]) -> Iterator[Subnet]:
    for zone, part in zip(its_zones[: zones.MOST], names.shared_subnets(block), strict=False):
        yield Subnet(id="", zone=zone, block=part, free=0, public=True)


def _region_zones(aws: Aws, wanted: Sequence[str]) -> list[str]:
    """Return the zones of the region, the wanted ones first where there are more than fit."""
    usual = [
        {"Name": "zone-type", "Values": ["availability-zone"]},
        {"Name": "state", "Values": ["available"]},
    ]
    with calling(f"list the zones of {aws.region}"):
        found = aws.ec2.describe_availability_zones(Filters=usual)["AvailabilityZones"]
    every = {zone["ZoneName"] for zone in found} | set(wanted)
    first = sorted(every, key=lambda zone: (zone not in wanted, zone))[: zones.MOST]
    return sorted(first)


def _read(aws: Aws, stack: Mapping[str, Any]) -> SharedNetwork:
    _check_owner(stack)
    its, given = cloudformation.outputs(stack), cloudformation.parameters(stack)
    ids = zones.given(its["Subnets"])
    by_id = _described(aws, ids)
    return SharedNetwork(
        vpc=its["Vpc"],
        block=given["Cidr"],
        subnets=tuple(
            Subnet(
                id=id,
                zone=by_id[id]["AvailabilityZone"],
                block=by_id[id]["CidrBlock"],
                free=by_id[id]["AvailableIpAddressCount"],
                public=True,
            )
            for id in ids
        ),
    )


# EC2 may not know a subnet for some seconds that CloudFormation has just made.
@patient(lambda error: error.code == "InvalidSubnetID.NotFound")
def _described(aws: Aws, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what EC2 says of these subnets, by id."""
    with calling("look at the subnets of the shared network"):
        items = aws.ec2.describe_subnets(SubnetIds=list(ids))["Subnets"]
    return {str(item["SubnetId"]): item for item in items}


def _check_owner(stack: Mapping[str, Any]) -> None:
    if NETWORK not in cloudformation.tags(stack):
        raise UsageError(
            f"the stack {SHARED_NETWORK} was not made by spotelastic, which needs that name for "
            "the network of its clusters: delete it, or name a network of your own with --vpc and "
            "--subnets"
        )


# -- remove --------------------------------------------------------------------------------------


def remove(aws: Aws, say: Say) -> bool:
    """Delete the network; return False if there is none.

    Raises `UsageError` while a cluster uses it, and `EnvironmentFailure` while anything else is in
    it: a deletion that fails half-way would take routes from what is there.
    """
    stack = cloudformation.settled(aws, SHARED_NETWORK, say)
    if stack is None:
        return False
    _check_owner(stack)
    vpc = cloudformation.outputs(stack).get("Vpc", "")
    if vpc and (using := users(aws, vpc)):
        raise UsageError(
            f"--network: {', '.join(using)} {'is' if len(using) == 1 else 'are'} in the network "
            f"{SHARED_NETWORK}: end that first with `spotelastic down NAME`"
        )
    if vpc and (others := cloudformation.inside(aws, [vpc], NETWORK)):
        raise EnvironmentFailure(
            f"the network {SHARED_NETWORK} contains what spotelastic has not made "
            f"({', '.join(others)}): delete that, and run `spotelastic down --network` again"
        )
    say(f"deleting the stack {SHARED_NETWORK}")
    _delete(aws, stack)
    return True


def users(aws: Aws, vpc: str) -> tuple[str, ...]:
    """Return the clusters whose stacks, complete or not, are in that network."""
    with calling("list the clusters"):
        stacks = list(listed(aws.cloudformation, "describe_stacks", "Stacks"))
    return tuple(
        sorted(
            cloudformation.tags(stack).get(CLUSTER, stack["StackName"])
            for stack in stacks
            if stack["StackStatus"] != "DELETE_COMPLETE"
            and cloudformation.parameters(stack).get("GivenVpc") == vpc
        )
    )


def _delete(aws: Aws, stack: Mapping[str, Any]) -> None:
    """Delete this very stack: by its id, because another `up` may have used its name again."""
    try:
        cloudformation.delete(aws, str(stack["StackId"]))
    except SpotelasticError as error:
        if cloudformation.EXPORT_IN_USE.search(str(error)):
            raise UsageError(f"the network {SHARED_NETWORK} is in use: {error}") from error
        raise
