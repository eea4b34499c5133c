"""Prices that do not change."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FixedPrices:
    """The same prices for all types and zones, in US dollars an hour."""

    spot_usd: float = 0.0
    on_demand_usd: float = 0.0
    date: str = ""

    def spot(self, type: str, zone: str) -> float:
        """Return the price of a spot instance."""
        return self.spot_usd

    def on_demand(self, type: str) -> float:
        """Return the price of an instance on demand."""
        return self.on_demand_usd

    def besides(self, role: str, *, public: bool) -> float:
        """Return 0: only instances cost."""
        return 0.0

    def network(self, nat_gateways: int) -> float:
        """Return 0: only instances cost."""
        return 0.0
