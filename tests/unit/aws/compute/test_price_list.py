"""On-demand prices: the Pricing API's, or those of the table, and of which day."""

import json
from typing import Any

import pytest
from botocore.exceptions import ConnectTimeoutError
from support.aws.fake_services import fake_aws, refusal

from spotelastic.aws.compute.prices import ASKED_AGAIN_AFTER, LISTED_FOR, PriceList, Table

TABLE = Table("2025-07-01", "us-east-1", {"g5.xlarge": 1.0})
NO_ROUTE = ConnectTimeoutError(endpoint_url="https://api.pricing.us-east-1.amazonaws.com")
DENIED = refusal("AccessDeniedException", "GetProducts")


class Pricing:
    """The API as one client has it; raises `trouble` where there is some."""

    def __init__(self, *usd: str, trouble: Exception | None = None) -> None:
        self.usd, self.trouble = usd, trouble
        self.filters: list[dict[str, str]] = []

    def get_products(self, ServiceCode: str, Filters: list[dict[str, str]]) -> Any:
        self.filters.append({each["Field"]: each["Value"] for each in Filters})
        if self.trouble is not None:
            raise self.trouble
        return {"PriceList": [json.dumps(product(usd)) for usd in self.usd]}


def product(usd: str) -> dict[str, Any]:
    term = {"priceDimensions": {"x": {"pricePerUnit": {"USD": usd}}}}
    return {"publicationDate": "2026-11-20T00:00:00Z", "terms": {"OnDemand": {"x": term}}}


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def listed(pricing: Pricing, clock: Time | None = None) -> PriceList:
    return PriceList(fake_aws("eu-central-1", pricing=pricing), TABLE, clock or Time())


def test_the_price_of_the_region_is_asked_for_once_a_day() -> None:
    pricing, clock = Pricing("0.0", "1.258"), Time()
    prices = listed(pricing, clock)
    assert [prices.on_demand("g5.xlarge"), prices.on_demand("g5.xlarge")] == [1.258, 1.258]
    assert prices.date == "2026-11-20"
    (asked,) = pricing.filters
    assert (asked["regionCode"], asked["instanceType"]) == ("eu-central-1", "g5.xlarge")
    assert (asked["operatingSystem"], asked["tenancy"]) == ("Linux", "Shared")
    clock.now = LISTED_FOR
    pricing.usd = ("1.3",)
    assert prices.on_demand("g5.xlarge") == 1.3


@pytest.mark.parametrize(
    "pricing",
    [
        Pricing(trouble=NO_ROUTE),
        Pricing(trouble=DENIED),
        Pricing(),
        Pricing("0.0"),
        Pricing("free"),
    ],
    ids=["no route", "denied", "no such product", "no price", "no number"],
)
def test_without_an_answer_the_table_stands_in_with_its_date(pricing: Pricing) -> None:
    clock = Time()
    prices = listed(pricing, clock)
    assert prices.on_demand("g5.xlarge") == 1.0
    assert prices.on_demand("p9.huge") == 0.0
    assert prices.date == "2025-07-01"
    assert len(pricing.filters) == 1, "who was silent is not asked for every type"
    pricing.usd, pricing.trouble = ("1.258",), None
    clock.now = ASKED_AGAIN_AFTER
    assert prices.on_demand("g5.xlarge") == 1.258
    assert prices.date == "2026-11-20"


def test_prices_of_both_are_told_with_the_older_date() -> None:
    pricing = Pricing("2.0")
    prices = listed(pricing)
    prices.on_demand("p4d.24xlarge")
    pricing.trouble = NO_ROUTE
    prices.on_demand("g5.xlarge")
    assert prices.date == "2025-07-01"
