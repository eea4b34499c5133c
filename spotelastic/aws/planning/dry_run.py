"""Asks EC2 before anything is created whether it would launch, by calls that change nothing.

Must never happen: an answer that says that a launch cannot work is passed over. What is created
then costs money, and fails minutes later in other words.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from spotelastic.aws.base.clients import DENIED, Aws, Rejected, SignedOut, advice, calling, passing
from spotelastic.aws.base.demands import pairs_of
from spotelastic.aws.base.identity import CLUSTER
from spotelastic.aws.base.names import CONTROL_TYPE
from spotelastic.aws.messaging import launch_failures
from spotelastic.model.job import NO_DEMANDS, AccountDemands

_LATER = frozenset({"Placement", "UserData"})
"""Parts of a launch that refer to what the stack makes."""
_UNLESS_GIVEN: Mapping[str, object] = {"IamInstanceProfile": {"Arn": ""}, "SecurityGroupIds": [""]}
"""Parts that do so where the account gives none."""
_WAYS_OUT = {
    "PendingVerification": (
        "AWS verifies new accounts, which takes minutes, and up to 4 hours: run this again then"
    ),
    "Blocked": "AWS has blocked launches in this account: ask AWS Support, which says why",
    "OptInRequired": (
        "sign up for EC2 in AWS's console, or enable the region for the account (Account, Regions)"
    ),
    "Free Tier": "the account is on AWS's free plan: upgrade it in the Billing console",
    "LimitExceeded": "`spotelastic doctor --aws` says for which quota to ask, and where",
    "CountExceeded": "`spotelastic doctor --aws` says for which quota to ask, and where",
    "AMI": (
        "the account may not use the image: look at its Allowed AMIs (EC2 console, Settings), and "
        "whether it is subscribed to it"
    ),
    "Unsupported": "name other types (--instance-types), or zones that have them (--zones)",
    "TagPolicy": "a tag policy of your organization demands other values: --tag KEY=VALUE",
    "Subnet": "name other subnets (--vpc, --subnets)",
}
"""What to do, by a word of the code or the text of another refusal."""
_OF_THE_TRIAL = frozenset(
    {
        "DryRunOperation",
        *("DefaultVpcDoesNotExist", "MissingInput", "MissingParameter", "VPCIdNotSpecified"),
        "InvalidGroup.Duplicate",
        "InvalidLaunchTemplateName.AlreadyExistsException",
        *("SpotMaxPriceTooLow", "InsufficientInstanceCapacity", "Server.InsufficientCapacity"),
    }
)
"""Codes that say nothing of the launch to come: it would be permitted; the trial has no network of
its own yet, or a name that is there already; or it is so at this moment.
"""
AT_ONCE = 8
"""Calls that are made beside each other."""

SERVICE_ROLES = {
    "AWSServiceRoleForAutoScaling": "autoscaling.amazonaws.com",
    "AWSServiceRoleForEC2Spot": "spot.amazonaws.com",
}
"""Roles by which AWS's own services act; an account needs each once."""
ANY_BLOCK = "10.64.0.0/16"
"""A block of addresses that is asked about where the network's own is not chosen yet."""


def ensure_service_roles(aws: Aws) -> None:
    """Create missing service-linked roles.

    Auto Scaling creates its own with the first group. EC2 creates the one for spot only for
    requests in AWS's console.
    """
    for role, service in SERVICE_ROLES.items():
        try:
            with calling(f"look for the role {role}"):
                aws.iam.get_role(RoleName=role)
        except Rejected as error:
            if error.code not in {*DENIED, "NoSuchEntity"}:
                raise
            # A missing role has no path yet: permissions limited to this path deny looking at it.
            # It may be there then, and if it may not be made, the first launch will tell.
            unsure = () if error.code == "NoSuchEntity" else DENIED
            with passing("InvalidInput", *unsure), calling(f"make the role {role}"):
                aws.iam.create_service_linked_role(AWSServiceName=service)


@dataclass(frozen=True, slots=True)
class Refused:
    """A call that EC2 would refuse."""

    what: str
    code: str
    """AWS's error code."""
    reason: str
    """What AWS says of it."""


@dataclass(frozen=True, slots=True)
class LaunchRehearsal:
    """Instances of one kind, as they will be launched."""

    what: str
    """For people: "start spot instances of g5.xlarge"."""
    data: Mapping[str, Any]
    """Data of their launch template."""
    spot: bool = False
    public: bool = False
    """Whether they get a public address."""


def dry_run(
    aws: Aws,
    launches: Iterable[LaunchRehearsal],
    demands: AccountDemands = NO_DEMANDS,
    *,
    block: str = "",
    zone: str = "",
    vpc: str = "",
    subnet: str = "",
) -> list[Refused]:
    """Ask EC2 about the coming calls, and return those that it would refuse.

    The calls are for a new network, or for an existing one.

    Each call has the tags, the encryption and the metadata options of the real one, so policies
    that demand or forbid one of them answer as they will then. A new network has no subnet yet, so
    a launch is tried in one of `zone`, or in any.
    """
    near = subnet or _some_subnet(aws, zone)
    tried: dict[str, Callable[[], object]] = {
        each.what: partial(
            aws.ec2.run_instances, **run_instances(each, near), MinCount=1, MaxCount=1, DryRun=True
        )
        for each in launches
    }
    made = _resources(aws, demands, block=block, zone=zone, vpc=vpc)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = pool.map(_refusal, *zip(*(tried | made).items(), strict=True))
    # What some subnet of the account, or its zone, lacks says nothing of those of the cluster.
    return [each for each in answers if each is not None and (subnet or not _is_of_a_zone(each))]


def _is_of_a_zone(refused: Refused) -> bool:
    return launch_failures.read(f"{refused.code} {refused.reason}").cause == "zone"


def told(refused: Sequence[Refused]) -> str:
    """Return the message about refused calls, in AWS's words, with what to do (pure)."""
    denied = [each for each in refused if each.code in DENIED]
    others = [each for each in refused if each.code not in DENIED]
    lines = []
    if denied:
        reasons = _reasons(denied)
        lines.append(f"these AWS credentials are not permitted {reasons}: {advice(reasons)}")
    if others:
        reasons = _reasons(others)
        ways = "; ".join(each for word, each in _WAYS_OUT.items() if word in reasons)
        lines.append(
            f"AWS would refuse {reasons}: {ways or 'see docs/how-to/prepare-an-account.md'}. "
            "--force tries it all the same"
        )
    return "; ".join(lines)


def _reasons(refused: Sequence[Refused]) -> str:
    """Return what is refused, and why, each reason once."""
    by_reason: dict[str, list[str]] = {}
    for each in refused:
        why = each.reason if each.code in DENIED else f"{each.code}: {each.reason}"
        by_reason.setdefault(why, []).append(f"to {each.what}")
    return "; ".join(f"{', '.join(whats)} ({why})" for why, whats in by_reason.items())


def _resources(
    aws: Aws, demands: AccountDemands, *, block: str, zone: str, vpc: str
) -> dict[str, Callable[[], object]]:
    """Return the calls that make what instances need."""

    def tagged(kind: str) -> list[dict[str, Any]]:
        its = pairs_of({**demands.tags, CLUSTER: "never made"})
        return [{"ResourceType": kind, "Tags": its}]

    calls: dict[str, Callable[[], object]] = {
        "make a launch template": lambda: aws.ec2.create_launch_template(
            LaunchTemplateName="spotelastic",
            LaunchTemplateData={"InstanceType": CONTROL_TYPE},
            TagSpecifications=tagged("launch-template"),
            DryRun=True,
        ),
    }
    if not demands.security_group:
        calls["make a security group"] = lambda: aws.ec2.create_security_group(
            GroupName="spotelastic",
            Description="never made",
            TagSpecifications=tagged("security-group"),
            DryRun=True,
            **({"VpcId": vpc} if vpc else {}),
        )
    if zone:
        calls["make an encrypted disk"] = lambda: aws.ec2.create_volume(
            AvailabilityZone=zone,
            Size=8,
            VolumeType="gp3",
            Encrypted=True,
            **({"KmsKeyId": demands.key} if demands.key else {}),
            TagSpecifications=tagged("volume"),
            DryRun=True,
        )
    if not vpc:
        calls["make a network"] = lambda: aws.ec2.create_vpc(
            CidrBlock=block or ANY_BLOCK, TagSpecifications=tagged("vpc"), DryRun=True
        )
        calls["make an internet gateway"] = lambda: aws.ec2.create_internet_gateway(
            TagSpecifications=tagged("internet-gateway"), DryRun=True
        )
    return calls


def run_instances(wanted: LaunchRehearsal, subnet: str) -> dict[str, Any]:
    """Return the parameters of the launch, without what does not exist yet (pure)."""
    call = {
        name: value
        for name, value in wanted.data.items()
        if name not in _LATER and value != _UNLESS_GIVEN.get(name)
    }
    if wanted.spot:
        call["InstanceMarketOptions"] = {"MarketType": "spot"}
    where = {"SubnetId": subnet} if subnet else {}
    interfaces = call.pop("NetworkInterfaces", ())
    if wanted.public and not interfaces:
        interfaces = ({"DeviceIndex": 0, "AssociatePublicIpAddress": True},)
    if not interfaces:
        return {**call, **where}
    bare = [{k: v for k, v in each.items() if v != [""]} for each in interfaces]
    return {**call, "NetworkInterfaces": [{**each, **where} for each in bare]}


def _some_subnet(aws: Aws, zone: str) -> str:
    """Return a subnet, in the given zone if it has one.

    EC2 judges no launch without a subnet, and an account may have no default one. Of a subnet on an
    Outpost, or with IPv6 alone, it judges otherwise.
    """
    with calling("look for a subnet"):
        found = aws.ec2.describe_subnets(MaxResults=100)["Subnets"]
    found = [each for each in found if each.get("CidrBlock") and not each.get("OutpostArn")]
    found.sort(key=lambda each: each["AvailabilityZone"] != zone)
    return str(found[0]["SubnetId"]) if found else ""


def _refusal(what: str, call: Callable[[], object]) -> Refused | None:
    """Return what EC2 answers to a call that it would refuse; None if it would make it."""
    try:
        with calling(what):
            call()
    except SignedOut:  # which says nothing of the call
        raise
    except Rejected as error:
        if error.code not in _OF_THE_TRIAL:
            return Refused(what, error.code, error.reason)
    return None
