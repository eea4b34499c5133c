"""A spot market whose prices can be set."""

from dataclasses import dataclass, field

from spotelastic.local.instances.spot_market import SpotMarket


@dataclass
class SetPrices(SpotMarket):
    """The product's market, with these prices in place of its own."""

    prices: dict[tuple[str, str], float] = field(default_factory=dict)
    """Spot prices by (instance type, zone)."""
    listed: dict[str, float] = field(default_factory=dict)
    """On-demand prices by type."""

    def on_demand(self, type: str) -> float:
        return self.listed.get(type) or super().on_demand(type)

    def spot(self, type: str, zone: str) -> float:
        return self.prices.get((type, zone), super().spot(type, zone))
