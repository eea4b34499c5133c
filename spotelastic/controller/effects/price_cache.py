"""Caches prices for the controller, so that a failed look-up stops no decision."""

from collections.abc import Callable

from spotelastic.aws.compute.prices import AwsPrices
from spotelastic.clock import Clock, steady
from spotelastic.controller.effects.optional_query import OptionalQuery

ASKED_AGAIN_AFTER = 60.0
"""Seconds without look-ups of a price after one that failed: each may take until its deadline."""


class PriceCache:
    """As `prices`; where that fails, what was known last, and 0 where nothing was."""

    def __init__(
        self, prices: AwsPrices, say: Callable[[str], None], clock: Clock = steady
    ) -> None:
        """`say` hears of the first failure of several in a row."""
        self._prices = prices
        instead = "going by the spot prices that were known last"
        self._asking = OptionalQuery(instead, ASKED_AGAIN_AFTER, say, clock)
        self._known: dict[tuple[str, str], float] = {}

    @property
    def date(self) -> str:
        """Of the on-demand prices."""
        return self._prices.date

    def on_demand(self, type: str) -> float:
        return self._prices.on_demand(type)

    def besides(self, role: str, *, public: bool) -> float:
        return self._prices.besides(role, public=public)

    def spot(self, type: str, zone: str) -> float:
        usd = self._asking.ask(lambda: self._prices.spot(type, zone))
        if usd is not None:
            self._known[type, zone] = usd
        return self._known.get((type, zone), 0.0)
