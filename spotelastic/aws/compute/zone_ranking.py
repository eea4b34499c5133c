"""Looks up what the zones offer into which workers can be packed: placement scores and prices."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from spotelastic.aws.base.clients import Aws, calling
from spotelastic.aws.compute import offers, placement_scores
from spotelastic.aws.compute.placement_scores import FRESH_FOR
from spotelastic.aws.compute.speeds import relative as speeds_of
from spotelastic.clock import Clock, steady
from spotelastic.cloud.model import ZoneOffer

PRICED_FOR = 300.0
"""Seconds that prices are kept."""


class Zones:
    """Looks up the zones of a region; answers are cached for a while."""

    def __init__(self, aws: Aws, clock: Clock = steady) -> None:
        self._aws = aws
        self._clock = clock
        self._by_subnet: dict[str, ZoneOffer] = {}
        self._scores: dict[tuple[tuple[str, ...], int], tuple[float, dict[str, int]]] = {}
        self._prices: dict[tuple[str, ...], tuple[float, dict[str, tuple[float, float]]]] = {}

    def of(self, subnets: Sequence[str]) -> tuple[ZoneOffer, ...]:
        """Return the zones of the subnets, each with its own subnets, without price and score."""
        if missing := [subnet for subnet in subnets if subnet not in self._by_subnet]:
            with calling("find the zones of the cluster's subnets"):
                found = self._aws.ec2.describe_subnets(SubnetIds=missing)["Subnets"]
            for item in found:
                zone = ZoneOffer(item["AvailabilityZone"], (), item.get("AvailabilityZoneId", ""))
                self._by_subnet[item["SubnetId"]] = zone
        zones: dict[str, ZoneOffer] = {}
        for subnet in subnets:
            zone = self._by_subnet[subnet]
            known = zones.get(zone.name, zone)
            zones[zone.name] = replace(known, subnets=(*known.subnets, subnet))
        return tuple(zones.values())

    def named(self, names: Sequence[str]) -> tuple[ZoneOffer, ...]:
        """Return the named zones, without subnets, for a cluster that does not exist yet."""
        with calling("look up the ids of zones"):
            answer = self._aws.ec2.describe_availability_zones(ZoneNames=list(names))
            ids = {item["ZoneName"]: item["ZoneId"] for item in answer["AvailabilityZones"]}
        return tuple(ZoneOffer(name, id=ids.get(name, "")) for name in names)

    def offers(
        self, zones: Iterable[ZoneOffer], types: Sequence[str], nodes: int
    ) -> tuple[ZoneOffer, ...]:
        """Return the zones with the price of a node and the placement score for so many nodes."""
        prices = self._priced(types)
        scores = self._scored(types, nodes)
        return tuple(
            replace(zone, usd=usd, useful_usd=useful, score=scores.get(zone.id, 0))
            for zone in zones
            for usd, useful in [prices.get(zone.name, (0.0, 0.0))]
        )

    def _priced(self, types: Sequence[str]) -> dict[str, tuple[float, float]]:
        """Return by zone the price of the cheapest type.

        Where types are unlike, it comes with the price of the one that is cheapest for what it
        does.
        """
        now, key = self._clock(), tuple(sorted(types))
        known = self._prices.get(key)
        if known is None or now - known[0] > PRICED_FOR:
            cheapest, speeds = dict[str, tuple[float, float]](), speeds_of(key)
            for name, by_zone in offers.spot_prices(self._aws, types).items():
                for zone, usd in by_zone.items():
                    useful = usd / speeds[name] if speeds else 0.0
                    least = cheapest.get(zone, (usd, useful))
                    cheapest[zone] = min(usd, least[0]), min(useful, least[1])
            known = self._prices[key] = (now, cheapest)
        return known[1]

    def _scored(self, types: Sequence[str], nodes: int) -> dict[str, int]:
        """Return scores by zone id; empty if AWS does not tell them."""
        now, key = self._clock(), (tuple(sorted(types)), nodes)
        known = self._scores.get(key)
        if known is None or now - known[0] > FRESH_FOR:
            found = placement_scores.ask(self._aws, types, nodes, [self._aws.region])
            scores = {zone: score for (_, zone), score in found.items()}
            known = self._scores[key] = (now, scores)
        return known[1]
