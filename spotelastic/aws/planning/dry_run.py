"""What an account must allow before anything is made in it: asked by calls that change nothing."""

from collections.abc import Callable

from spotelastic.aws.base.clients import DENIED, Aws, Rejected, calling
from spotelastic.errors import EnvironmentFailure

SERVICE_ROLES = {
    "AWSServiceRoleForAutoScaling": "autoscaling.amazonaws.com",
    "AWSServiceRoleForEC2Spot": "spot.amazonaws.com",
}
"""Roles that AWS's own services act with; every account has each once, or needs it made."""


def ensure_service_roles(aws: Aws) -> None:
    """Makes the service-linked roles that are missing: Auto Scaling makes its own with the first
    group, but EC2 the one for spot only for who asks in AWS's console."""
    for role, service in SERVICE_ROLES.items():
        try:
            with calling(f"look for the role {role}"):
                aws.iam.get_role(RoleName=role)
        except Rejected as error:
            if error.code not in {*DENIED, "NoSuchEntity"}:
                raise
            # A missing role has no path yet: who may look at those of this path alone is denied it.
            _make(aws, role, service, sure=error.code == "NoSuchEntity")


def _make(aws: Aws, role: str, service: str, *, sure: bool) -> None:
    """Unless `sure` that it is missing, who may not make it may go on: the first launch tells."""
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
    """Asks EC2 whether it would do what comes, in a new network of that block or in a given one.

    Raises `EnvironmentFailure` for all refusals.
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
        calls["make a network"] = lambda: aws.ec2.create_vpc(CidrBlock=block, DryRun=True)
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
        # Other refusals are of the rehearsal, not of what comes: e.g. there is no default network.
        return error.code not in DENIED
    return True
