"""What instance types a region offers, where, and for how much."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from spotelastic.aws import types
from spotelastic.aws.clients import Aws, calling
from spotelastic.aws.prices import shipped_table
from spotelastic.aws.quotas import Allowance, Quotas
from spotelastic.aws.types import InstanceType
from spotelastic.errors import EnvironmentFailure


def zones(aws: Aws, wanted: Iterable[str]) -> dict[str, frozenset[str]]:
    """By zone: which of the types it offers."""
    with calling("find the zones that offer the instance types"):
        pages = aws.ec2.get_paginator("describe_instance_type_offerings").paginate(
            LocationType="availability-zone",
            Filters=[{"Name": "instance-type", "Values": sorted(set(wanted))}],
        )
        offers = [item for page in pages for item in page["InstanceTypeOfferings"]]
    by_zone: dict[str, set[str]] = {}
    for offer in offers:
        by_zone.setdefault(offer["Location"], set()).add(offer["InstanceType"])
    return {zone: frozenset(offered) for zone, offered in sorted(by_zone.items())}


def spot_prices(aws: Aws, wanted: Sequence[str]) -> dict[str, dict[str, float]]:
    """By type and zone, in US dollars an hour, as of now."""
    with calling("look up spot prices"):
        pages = aws.ec2.get_paginator("describe_spot_price_history").paginate(
            InstanceTypes=sorted(set(wanted)),
            ProductDescriptions=["Linux/UNIX"],
            StartTime=datetime.now(UTC),
        )
        items = [item for page in pages for item in page["SpotPriceHistory"]]
    prices: dict[str, dict[str, float]] = {}
    for item in sorted(items, key=lambda item: item["Timestamp"]):
        prices.setdefault(item["InstanceType"], {})[item["AvailabilityZone"]] = float(
            item["SpotPrice"]
        )
    return prices


def cheapest(aws: Aws, nodes: int, min_zones: int, *, spot: bool, quotas: Quotas) -> str:
    """The GPU type that costs least among those of which the quota allows `nodes`.

    Raises `EnvironmentFailure` naming the quotas where there is none.
    """
    found = _candidates(aws, min_zones)
    allowed, refused = [], []
    for kind in found:
        allowance = quotas.allowance(kind.name, spot=spot)
        if allowance is None or allowance.instances(kind) >= nodes:
            allowed.append(kind)
        else:
            refused.append((kind, allowance))
    if not allowed:
        raise EnvironmentFailure(_refusal(aws, refused, nodes))
    costs = _costs(aws, [kind.name for kind in allowed], spot=spot)
    return min(allowed, key=lambda kind: (costs[kind.name], kind.name)).name


def _candidates(aws: Aws, min_zones: int) -> tuple[InstanceType, ...]:
    """GPU types with a known price, offered in enough zones."""
    priced = [name for name in shipped_table().usd_per_hour if name[0] in "gp"]
    by_zone = zones(aws, priced)
    offered = [name for name in priced if sum(name in has for has in by_zone.values()) >= min_zones]
    kinds = types.describe(aws, offered) if offered else ()
    return tuple(kind for kind in kinds if kind.gpus and kind.architecture == "x86_64")


def _costs(aws: Aws, names: Sequence[str], *, spot: bool) -> Mapping[str, float]:
    listed = shipped_table().usd_per_hour
    if not spot:
        return listed
    now = spot_prices(aws, names)
    return {name: min(now.get(name, {}).values(), default=listed[name]) for name in names}


def _refusal(aws: Aws, refused: Sequence[tuple[InstanceType, Allowance]], nodes: int) -> str:
    if not refused:
        return f"{aws.region} offers no GPU type in enough zones: choose --region or a type"
    kind, allowance = min(refused, key=lambda each: each[0].vcpus)
    return f"no GPU type is within the account's quotas: {allowance.describe(kind, nodes)}"
