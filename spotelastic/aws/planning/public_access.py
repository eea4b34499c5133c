"""Looks whether the account's VPC Block Public Access would cut nodes off from the internet.

Nodes call AWS's services and install packages. A node with a public address does so through an
internet gateway, and that is what is blocked.
"""

from collections.abc import Iterator
from contextlib import suppress

from spotelastic.aws.base.clients import Aws, calling
from spotelastic.errors import EnvironmentFailure, SpotelasticError

OFF = "off"
ONLY_FROM_OUTSIDE = "block-ingress"
"""Leaves NAT gateways their traffic, and nothing else."""


def mode(aws: Aws) -> str:
    """Return what is blocked; `OFF` also where AWS does not tell."""
    options = {}
    # There are regions without it, and accounts that may not look.
    with suppress(SpotelasticError), calling("look at VPC Block Public Access"):
        answer = aws.ec2.describe_vpc_block_public_access_options()
        options = answer.get("VpcBlockPublicAccessOptions", {})
    return str(options.get("InternetGatewayBlockMode", OFF))


def check_own_network(blocked: str) -> None:
    """Raise `EnvironmentFailure` where a network that is made would be cut off (pure)."""
    if blocked == OFF:
        return
    way = (
        "give private subnets with a NAT gateway (--vpc, --subnets)"
        if blocked == ONLY_FROM_OUTSIDE
        else "give subnets that have another way out, or are excluded (--vpc, --subnets)"
    )
    raise EnvironmentFailure(
        f"VPC Block Public Access is on in this account and region ({blocked}), and would cut the "
        f"nodes of a network of their own off from the internet: {way}"
    )


def warnings(blocked: str, *, public: bool) -> Iterator[str]:
    """Yield what is to be known of the user's subnets; `public`: nodes get addresses there."""
    if blocked not in (OFF, ONLY_FROM_OUTSIDE) or (blocked == ONLY_FROM_OUTSIDE and public):
        yield (
            f"VPC Block Public Access is on ({blocked}): nodes reach the internet only if their "
            "subnets are excluded from it"
            + (", or private with a NAT gateway" if blocked == ONLY_FROM_OUTSIDE else "")
        )
