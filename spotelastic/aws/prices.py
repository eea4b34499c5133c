"""What instances cost an hour: spot prices from EC2, on-demand prices from a table shipped here.

The table is of one region and one day, and says so; figures made from it are estimates.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from spotelastic.aws.clients import Aws, calling
from spotelastic.clock import Clock, steady

FRESH_FOR = 300.0
"""Seconds that a spot price is kept; AWS changes them every five minutes at most."""
STORED = 0.023
"""US dollars a month for a GB in S3 (standard class, us-east-1)."""


class Prices(Protocol):
    """US dollars an hour; 0 where the price is not known."""

    def spot(self, type: str, zone: str) -> float: ...

    def on_demand(self, type: str) -> float: ...


@dataclass(frozen=True, slots=True)
class Table:
    """On-demand prices for Linux, as of `date` in `region`."""

    date: str
    region: str
    usd_per_hour: Mapping[str, float]


def shipped_table() -> Table:
    data = json.loads(Path(__file__).with_name("on_demand.json").read_text())
    return Table(data["date"], data["region"], data["usd_per_hour"])


class AwsPrices:
    """The prices of one account. Raises `Unavailable` and `EnvironmentFailure`."""

    def __init__(self, aws: Aws, table: Table | None = None, clock: Clock = steady) -> None:
        self._aws = aws
        self._table = table or shipped_table()
        self._clock = clock
        self._spot: dict[tuple[str, str], tuple[float, float]] = {}

    @property
    def date(self) -> str:
        """Of the on-demand prices."""
        return self._table.date

    def on_demand(self, type: str) -> float:
        return self._table.usd_per_hour.get(type, 0.0)

    def spot(self, type: str, zone: str) -> float:
        now = self._clock()
        known = self._spot.get((type, zone))
        if known is None or now - known[1] > FRESH_FOR:
            known = self._spot[type, zone] = (self._latest(type, zone), now)
        return known[0]

    def _latest(self, type: str, zone: str) -> float:
        with calling(f"look up the spot price of {type} in {zone}"):
            answer = self._aws.ec2.describe_spot_price_history(
                InstanceTypes=[type],
                AvailabilityZone=zone,
                ProductDescriptions=["Linux/UNIX"],
                MaxResults=1,
            )
        latest = next(iter(answer["SpotPriceHistory"]), None)
        return float(latest["SpotPrice"]) if latest else 0.0
