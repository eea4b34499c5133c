"""Looks up which zones offer instance types, and current spot prices."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from spotelastic.aws.base.clients import Aws, calling, listed


def zones(aws: Aws, wanted: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return, by zone, which of the types it offers.

    Local and Wavelength Zones are left out: they are far from the others and lack services.
    """
    types = [{"Name": "instance-type", "Values": sorted(set(wanted))}]
    usual = [{"Name": "zone-type", "Values": ["availability-zone"]}]
    with calling("find the zones that offer the instance types"):
        call, key = "describe_instance_type_offerings", "InstanceTypeOfferings"
        offers = list(listed(aws.ec2, call, key, LocationType="availability-zone", Filters=types))
        found = aws.ec2.describe_availability_zones(Filters=usual)["AvailabilityZones"]
    by_zone: dict[str, set[str]] = {zone["ZoneName"]: set() for zone in found}
    for offer in offers:
        if offer["Location"] in by_zone:
            by_zone[offer["Location"]].add(offer["InstanceType"])
    return {zone: frozenset(offered) for zone, offered in sorted(by_zone.items()) if offered}


def spot_prices(aws: Aws, wanted: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the current spot prices by type and zone, in US dollars an hour."""
    with calling("look up spot prices"):
        items = listed(
            aws.ec2,
            "describe_spot_price_history",
            "SpotPriceHistory",
            InstanceTypes=sorted(set(wanted)),
            ProductDescriptions=["Linux/UNIX"],
            StartTime=datetime.now(UTC),
        )
        prices: dict[str, dict[str, float]] = defaultdict(dict)
        for item in sorted(items, key=lambda item: item["Timestamp"]):
            prices[item["InstanceType"]][item["AvailabilityZone"]] = float(item["SpotPrice"])
    return dict(prices)
