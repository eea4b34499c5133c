"""What differs between AWS's partitions: the usual one, GovCloud and China.

ARNs and endpoints follow from the region by themselves; this is the rest. Each partition has
accounts of its own, so credentials of one are none in another.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from spotelastic.errors import UsageError


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition, as its regions' names tell it."""

    name: str
    """What follows "arn:"."""
    regions: str
    """How its regions' names begin."""
    console: str = "console.aws.amazon.com"
    """Where people see their accounts."""
    domain: str = "amazonaws.com"
    """Where its services are."""
    has_list_prices: bool = True
    """Whether the Pricing API has the on-demand prices of its regions, for its accounts."""
    currency: str = "USD"
    """What spot prices are in."""
    has_fault_injection: bool = True
    """Whether it has the Fault Injection Service."""


USUAL = Partition("aws", "")
CHINA = Partition(
    "aws-cn",
    "cn-",
    "console.amazonaws.cn",
    "amazonaws.com.cn",
    has_list_prices=False,
    currency="CNY",
    has_fault_injection=False,
)
GOVCLOUD = Partition("aws-us-gov", "us-gov-", "console.amazonaws-us-gov.com", has_list_prices=False)
PARTITIONS = (CHINA, GOVCLOUD, USUAL)
"""The first whose regions' names begin so is a region's."""
ISOLATED = ("us-iso", "us-isob", "eu-isoe", "us-isof")
"""Beginnings of regions without internet, from which nodes could install nothing."""


def partition_of(region: str) -> Partition:
    """Return the partition of a region (pure)."""
    return next(each for each in PARTITIONS if region.startswith(each.regions))


def check(region: str, max_cost: float | None) -> None:
    """Raise `UsageError` for a region in which nodes could not start, or a limit not be kept."""
    if region.startswith(ISOLATED):
        raise UsageError(
            f"--region {region}: it has no way to the internet, and nodes install packages from "
            "there when they start: choose another region"
        )
    its = partition_of(region)
    if max_cost is not None and its.currency != "USD":
        raise UsageError(
            f"--max-cost {max_cost:g}: of {region} only spot prices are known, in {its.currency}: "
            "limit the job by --deadline, and a node's price by --max-price"
        )


def about_prices(region: str) -> Iterator[str]:
    """Yield what is to be known of the prices that are shown."""
    its = partition_of(region)
    if its.currency != "USD":
        yield (
            f"in {region} $ and --max-price stand for {its.currency}; only spot prices are known, "
            "and others are not in the sums"
        )
    elif not its.has_list_prices:
        yield (
            f"the on-demand prices are those of us-east-1: {its.name} has no list that could be "
            "asked, and is dearer"
        )


def check_fault_injection(region: str) -> None:
    """Raise `UsageError` where no notice of an interruption can be asked for."""
    if not partition_of(region).has_fault_injection:
        raise UsageError(
            f"{region} has no Fault Injection Service, which sends notices on request: use "
            "--kind loss, which ends the node without one"
        )
