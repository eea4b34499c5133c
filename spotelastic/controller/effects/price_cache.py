"""Caches prices for the controller, so that a failed look-up stops no decision."""

from collections.abc import Callable

from spotelastic.clock import Clock, steady
from spotelastic.cloud.port import ClusterPrices
from spotelastic.controller.effects.optional_query import OptionalQuery

ASKED_AGAIN_AFTER = 60.0
"""Seconds without price look-ups after a failed one, which may have taken until its deadline."""


class PriceCache:
    """Returns the prices of `prices`, also if a look-up fails.

    It then returns the last known price, or 0 if none is known.
    """

    def __init__(
        self, prices: ClusterPrices, say: Callable[[str], None], clock: Clock = steady
    ) -> None:
        """`say` receives the first failure of several in a row."""
        self._prices = prices
        instead = "going by the spot prices that were known last"
        self._asking = OptionalQuery(instead, ASKED_AGAIN_AFTER, say, clock)
        self._known: dict[tuple[str, str], float] = {}

    @property
    def date(self) -> str:
        """Date of the on-demand prices."""
        return self._prices.date

    def on_demand(self, type: str) -> float:
        return self._prices.on_demand(type)

    def besides(self, role: str, *, public: bool) -> float:
        return self._prices.besides(role, public=public)

    def network(self, nat_gateways: int) -> float:
        return self._prices.network(nat_gateways)

    def spot(self, type: str, zone: str) -> float:
        usd = self._asking.ask(lambda: self._prices.spot(type, zone))
        if usd is not None:
            self._known[type, zone] = usd
        return self._known.get((type, zone), 0.0)
