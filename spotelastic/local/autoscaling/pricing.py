"""Emulates the Pricing API, which moto lacks: answers with the local market's on-demand prices."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from spotelastic.local.instances.spot_market import SpotMarket
from spotelastic.local.refusals import replied
from spotelastic.local.signatures import length_of

TARGET = "AWSPriceListService.GetProducts"


def products(market: SpotMarket, filters: Mapping[str, str]) -> list[str]:
    """Return what GetProducts answers to filters by field: JSON strings, as AWS packs them."""
    type = filters.get("instanceType", "")
    rate = {"pricePerUnit": {"USD": f"{market.on_demand(type):.10f}"}}
    product = {
        "product": {"productFamily": "Compute Instance", "attributes": dict(filters)},
        "terms": {"OnDemand": {"term": {"priceDimensions": {"rate": rate}}}},
        "publicationDate": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
    }
    return [json.dumps(product)] if type else []


def middleware(market: SpotMarket, application: Callable[..., Any]) -> Callable[..., Any]:
    """Return a WSGI application that answers GetProducts and passes other requests on."""

    def handle(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if environ.get("HTTP_X_AMZ_TARGET") != TARGET:
            return application(environ, start_response)
        body = environ["wsgi.input"].read(length_of(environ))
        filters = {each["Field"]: each["Value"] for each in json.loads(body).get("Filters", ())}
        answer = {"FormatVersion": "aws_v1", "PriceList": products(market, filters)}
        return replied(start_response, json.dumps(answer).encode())

    return handle
