"""Looks up and caches hourly prices: spot prices from EC2, on-demand prices from the Pricing API.

If the Pricing API does not answer at once, on-demand prices come from a table shipped with the
package. That is of one region and day; `date` tells which prices were used.
"""

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from spotelastic.aws.base.clients import Aws, calling
from spotelastic.aws.base.partitions import partition_of
from spotelastic.aws.compute import estimate
from spotelastic.clock import Clock, steady
from spotelastic.errors import SpotelasticError

FRESH_FOR = 300.0
"""Seconds that a spot price is kept; AWS changes them at most every five minutes."""
LISTED_FOR = 86_400.0
"""Seconds that an on-demand price is kept."""
ASKED_AGAIN_AFTER = 3600.0
"""Seconds that the table is used after the Pricing API has not answered."""
STORED = 0.023
"""US dollars a month for a GB in S3 (standard class, us-east-1)."""


@dataclass(frozen=True, slots=True)
class Table:
    """On-demand prices for Linux, as of `date` in `region`."""

    date: str
    region: str
    usd_per_hour: Mapping[str, float]


def shipped_table() -> Table:
    """Return the table that is shipped with the package."""
    data = json.loads(Path(__file__).with_name("on_demand.json").read_text())
    return Table(data["date"], data["region"], data["usd_per_hour"])


@dataclass(frozen=True, slots=True)
class ListPrice:
    """An on-demand price."""

    usd: float
    """US dollars an hour; 0 if not known."""
    date: str
    good_until: float
    """When it expires, by the caller's clock."""


class PriceList:
    """On-demand prices of a region. Thread-safe; raises nothing."""

    def __init__(self, aws: Aws, table: Table | None = None, clock: Clock = steady) -> None:
        self._aws = aws
        self._table = table or shipped_table()
        self._clock = clock
        self._lock = threading.Lock()
        self._listed: dict[str, ListPrice] = {}
        self._silent_until = float("-inf")

    def prepare(self, types: Iterable[str]) -> None:
        """Look up prices in the background, before they are needed."""
        ask = partial(self._all, tuple(types))
        threading.Thread(target=ask, name="prices", daemon=True).start()

    def _all(self, types: Iterable[str]) -> None:
        for type in types:
            self.on_demand(type)

    def on_demand(self, type: str) -> float:
        """Return the price of a type in US dollars an hour; 0 if not known."""
        with self._lock:
            now = self._clock()
            known = self._listed.get(type)
            if known is None or now >= known.good_until:
                known = self._listed[type] = self._ask(type, now)
            return known.usd

    @property
    def date(self) -> str:
        """Date of the oldest price that was used."""
        with self._lock:
            dates = [listed.date for listed in self._listed.values() if listed.usd]
            return min(dates, default=self._table.date)

    def _ask(self, type: str, now: float) -> ListPrice:
        its = partition_of(self._aws.region)
        if its.currency != "USD":
            return ListPrice(0.0, self._table.date, now + LISTED_FOR)
        if its.has_list_prices and now >= self._silent_until:
            try:
                usd, date = _latest_listed(self._aws, type)
                return ListPrice(usd, date, now + LISTED_FOR)
            except (SpotelasticError, LookupError, ValueError, TypeError):
                self._silent_until = now + ASKED_AGAIN_AFTER
        usd = self._table.usd_per_hour.get(type, 0.0)
        return ListPrice(usd, self._table.date, self._silent_until)


def _latest_listed(aws: Aws, type: str) -> tuple[float, str]:
    """Return US dollars an hour and the day of publication.

    Raises `SpotelasticError` if there is no answer, and `LookupError`, `ValueError` or `TypeError`
    if it has another form.
    """
    wanted = {
        "regionCode": aws.region,
        "instanceType": type,
        "operatingSystem": "Linux",
        "preInstalledSw": "NA",
        "tenancy": "Shared",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",
    }
    with calling(f"look up the on-demand price of {type}"):
        answer = aws.pricing.get_products(
            ServiceCode="AmazonEC2",
            Filters=[
                {"Type": "TERM_MATCH", "Field": name, "Value": value}
                for name, value in wanted.items()
            ],
        )
    products = [json.loads(text) for text in answer["PriceList"]]
    found = [
        (float(dimension["pricePerUnit"]["USD"]), str(product["publicationDate"])[:10])
        for product in products
        for term in product["terms"]["OnDemand"].values()
        for dimension in term["priceDimensions"].values()
    ]
    return min(each for each in found if each[0] > 0)


class AwsPrices(PriceList):
    """The prices of one account. Spot prices raise `Unavailable` and `EnvironmentFailure`."""

    def __init__(
        self,
        aws: Aws,
        *,
        disk_gib: int = estimate.WORKER_DISK_GIB,
        disk_mib_s: int = estimate.DISK_MIB_S,
    ) -> None:
        """`disk_gib` and `disk_mib_s` are size and throughput of a worker's root disk."""
        super().__init__(aws)
        self._disk_gib = disk_gib
        self._disk_mib_s = disk_mib_s
        self._spot: dict[tuple[str, str], tuple[float, float]] = {}

    def besides(self, role: str, *, public: bool) -> float:
        """Return the price of a node's disks, and of its address if that is public."""
        gib, mib_s = self._disk_gib, self._disk_mib_s
        return estimate.besides(role, public=public, disk_gib=gib, disk_mib_s=mib_s)

    def network(self, nat_gateways: int) -> float:
        """Return the price of the cluster's NAT gateways."""
        return estimate.gateways(nat_gateways)

    def spot(self, type: str, zone: str) -> float:
        """Return the present spot price of a type in a zone; 0 if there is none."""
        now = self._clock()
        known = self._spot.get((type, zone))
        if known is None or now - known[1] > FRESH_FOR:
            known = self._spot[type, zone] = (self._latest(type, zone), now)
        return known[0]

    def _latest(self, type: str, zone: str) -> float:
        with calling(f"look up the spot price of {type} in {zone}"):
            found = self._aws.ec2.describe_spot_price_history(
                InstanceTypes=[type],
                AvailabilityZone=zone,
                ProductDescriptions=["Linux/UNIX"],
                MaxResults=1,
            )["SpotPriceHistory"]
            return float(found[0]["SpotPrice"]) if found else 0.0
