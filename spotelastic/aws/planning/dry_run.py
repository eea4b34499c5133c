"""Checks the account's permissions before anything is created, by calls that change nothing."""

from collections.abc import Callable

from spotelastic.aws.base.clients import DENIED, Aws, Rejected, calling
from spotelastic.errors import EnvironmentFailure

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


def dry_run(
    aws: Aws, image: str, type: str, *, block: str = "", vpc: str = "", subnet: str = ""
) -> None:
    """Ask EC2 whether it would permit the coming calls, in a new network or an existing one.

    Raises `EnvironmentFailure` that names all refusals.
    """
    of_vpc = {"VpcId": vpc} if vpc else {}
    of_subnet = {"SubnetId": subnet} if subnet else {}
    calls: dict[str, Callable[[], object]] = {
        "make a security group": lambda: aws.ec2.create_security_group(
            GroupName="spotelastic", Description="never made", DryRun=True, **of_vpc
        ),
        f"start {type} instances": lambda: aws.ec2.run_instances(
            ImageId=image, InstanceType=type, MinCount=1, MaxCount=1, DryRun=True, **of_subnet
        ),
        "make a launch template": lambda: aws.ec2.create_launch_template(
            LaunchTemplateName="spotelastic",
            LaunchTemplateData={"InstanceType": type},
            DryRun=True,
        ),
    }
    if not vpc:
        calls["make a network"] = lambda: aws.ec2.create_vpc(
            CidrBlock=block or ANY_BLOCK, DryRun=True
        )
    refused = [what for what, call in calls.items() if not _would(what, call)]
    if refused:
        raise EnvironmentFailure(
            f"these AWS credentials are not permitted to {', '.join(refused)}: "
            "see docs/reference/permissions.md for what they need"
        )


def _would(what: str, call: Callable[[], object]) -> bool:
    try:
        with calling(what):
            call()
    except Rejected as error:
        # Other refusals concern only the dry run, e.g. that there is no default network.
        return error.code not in DENIED
    return True
