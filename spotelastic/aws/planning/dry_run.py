"""Checks the account's permissions before anything is created, by calls that change nothing."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from spotelastic.aws.base.clients import DENIED, Aws, Rejected, calling
from spotelastic.aws.base.demands import pairs_of
from spotelastic.aws.base.identity import CLUSTER
from spotelastic.aws.base.names import CONTROL_TYPE
from spotelastic.errors import EnvironmentFailure
from spotelastic.model.job import AccountDemands

NO_DEMANDS = AccountDemands()
_LATER = frozenset({"IamInstanceProfile", "Placement", "SecurityGroupIds", "UserData"})
"""Parts of a launch that refer to what the stack makes."""
_ADVICE = {
    "service control policy": (
        "a policy of your organization denies it, whatever these credentials may do: ask whoever "
        "keeps it what it demands (tags: --tag, a key: --kms-key, no public addresses: --vpc)"
    ),
    "resource control policy": (
        "a policy of your organization denies it: ask whoever keeps it what it demands"
    ),
    "permissions boundary": (
        "the permissions boundary of these credentials denies it: use others, or have it changed"
    ),
    "explicit deny": "a policy denies it, whatever others allow: it may demand tags (--tag)",
}
"""What to do, by what AWS names as the cause."""

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
            _make(aws, role, service, sure=error.code == "NoSuchEntity")


def _make(aws: Aws, role: str, service: str, *, sure: bool) -> None:
    """Create the role.

    If it may exist already (not `sure` that it is missing), a denial is ignored: the first launch
    will tell.
    """
    try:
        with calling(f"make the role {role}"):
            aws.iam.create_service_linked_role(AWSServiceName=service)
    except Rejected as error:
        there = error.code == "InvalidInput"
        if not there and (sure or error.code not in DENIED):
            raise


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
) -> None:
    """Ask EC2 whether it would permit the coming calls, in a new network or an existing one.

    Each call has the tags, the encryption and the metadata options of the real one, so policies
    that demand or forbid one of them answer as they will then. Raises `EnvironmentFailure` that
    names all refusals, in AWS's words.
    """
    near = subnet or _some_subnet(aws)
    calls: dict[str, Callable[[], object]] = {
        each.what: partial(_launch, aws, each, near) for each in launches
    }
    calls |= _resources(aws, demands, block=block, zone=zone, vpc=vpc)
    refused = {what: why for what, call in calls.items() if (why := _refusal(what, call))}
    if refused:
        raise EnvironmentFailure(told(refused))


def told(refused: Mapping[str, str]) -> str:
    """Return the message about refused calls and AWS's reasons (pure)."""
    reasons = "; ".join(f"to {what} ({why})" for what, why in refused.items())
    advice = next(
        (each for word, each in _ADVICE.items() if word in reasons),
        "see docs/reference/permissions.md for what they need",
    )
    return f"these AWS credentials are not permitted {reasons}: {advice}"


def _resources(
    aws: Aws, demands: AccountDemands, *, block: str, zone: str, vpc: str
) -> dict[str, Callable[[], object]]:
    """Return the calls that make what instances need."""

    def tagged(kind: str) -> list[dict[str, Any]]:
        its = pairs_of({**demands.tags, CLUSTER: "never made"})
        return [{"ResourceType": kind, "Tags": its}]

    calls: dict[str, Callable[[], object]] = {
        "make a security group": lambda: aws.ec2.create_security_group(
            GroupName="spotelastic",
            Description="never made",
            TagSpecifications=tagged("security-group"),
            DryRun=True,
            **({"VpcId": vpc} if vpc else {}),
        ),
        "make a launch template": lambda: aws.ec2.create_launch_template(
            LaunchTemplateName="spotelastic",
            LaunchTemplateData={"InstanceType": CONTROL_TYPE},
            TagSpecifications=tagged("launch-template"),
            DryRun=True,
        ),
    }
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


def _launch(aws: Aws, wanted: LaunchRehearsal, subnet: str) -> None:
    aws.ec2.run_instances(**run_instances(wanted, subnet), MinCount=1, MaxCount=1, DryRun=True)


def run_instances(wanted: LaunchRehearsal, subnet: str) -> dict[str, Any]:
    """Return the parameters of the launch, without what does not exist yet (pure)."""
    call = {name: value for name, value in wanted.data.items() if name not in _LATER}
    if wanted.spot:
        call["InstanceMarketOptions"] = {"MarketType": "spot"}
    where = {"SubnetId": subnet} if subnet else {}
    interfaces = call.pop("NetworkInterfaces", ())
    if wanted.public and not interfaces:
        interfaces = ({"DeviceIndex": 0, "AssociatePublicIpAddress": True},)
    if not interfaces:
        return {**call, **where}
    bare = [{k: v for k, v in each.items() if k != "Groups"} for each in interfaces]
    return {**call, "NetworkInterfaces": [{**each, **where} for each in bare]}


def _some_subnet(aws: Aws) -> str:
    """Return any subnet: EC2 judges no launch without one, and an account may have no default."""
    with calling("look for a subnet"):
        found = aws.ec2.describe_subnets(MaxResults=5)["Subnets"]
    return str(found[0]["SubnetId"]) if found else ""


def _refusal(what: str, call: Callable[[], object]) -> str:
    """Return AWS's reason for not permitting a call; "" if it would permit it."""
    try:
        with calling(what):
            call()
    except Rejected as error:
        # Other refusals concern only the dry run, e.g. that there is no default network.
        return error.reason if error.code in DENIED else ""
    return ""
