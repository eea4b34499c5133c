"""Checks the account's quotas of networks, elastic addresses and event rules before any is made."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from spotelastic.aws.base.clients import Aws, calling, listed, optional
from spotelastic.aws.compute import quotas


@dataclass(frozen=True, slots=True)
class NetworkQuota:
    """A quota of what a cluster has besides instances."""

    what: str
    service: str
    code: str
    way_out: str
    """What to do besides asking for more."""


VPCS = NetworkQuota(
    "networks (VPCs)",
    "vpc",
    "L-F678F1CE",
    "delete one that is not used, or put the cluster into one with --vpc and --subnets",
)
ADDRESSES = NetworkQuota(
    "elastic addresses",
    "ec2",
    "L-0263D0A3",
    "release one that is not used, or choose types with one network card",
)
RULES = NetworkQuota(
    "event rules", "events", "L-244521F2", "take down a cluster, or delete rules that are not used"
)
RULES_EACH = 5
"""Event rules of a cluster."""


def shortages(aws: Aws, vpcs: int, nat_gateways: int, rules: int = 0) -> Iterator[str]:
    """Yield why so many more networks, NAT gateways or event rules are beyond a quota."""
    needs = ((VPCS, vpcs, _vpcs), (ADDRESSES, nat_gateways, _addresses), (RULES, rules, _rules))
    for quota, needed, used in needs:
        if needed:
            yield from _shortage(aws, quota, needed, used)


def shortage(quota: NetworkQuota, region: str, allowed: int, used: int, needed: int) -> str:
    """Return why so many more cannot be had; "" if they can (pure)."""
    if used + needed <= allowed:
        return ""
    return (
        f"the account may have {allowed} {quota.what} in {region}, and has {used}: "
        f"{quota.way_out}; or ask for more: "
        f"{quotas.request(region, quota.code, used + needed, quota.service)}"
    )


def _shortage(
    aws: Aws, quota: NetworkQuota, needed: int, used: Callable[[Aws], int]
) -> Iterator[str]:
    with optional():
        allowed, there = quotas.value(aws, quota.code, quota.service), used(aws)
        if allowed is not None and (why := shortage(quota, aws.region, allowed, there, needed)):
            yield why


def _vpcs(aws: Aws) -> int:
    with calling("count the networks"):
        return len(list(listed(aws.ec2, "describe_vpcs", "Vpcs")))


def _addresses(aws: Aws) -> int:
    with calling("count the elastic addresses"):
        return len(aws.ec2.describe_addresses()["Addresses"])


def _rules(aws: Aws) -> int:
    """Return the number of rules on the bus that gets AWS's own events."""
    with calling("count the event rules"):
        return len(list(listed(aws.events, "list_rules", "Rules")))
