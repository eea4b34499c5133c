"""Declares the options of `up` about money and time."""

from dataclasses import dataclass

from spotelastic.client.config.capacity_policy import ON_DEMAND, ON_DEMAND_PATTERN
from spotelastic.client.config.option import option
from spotelastic.client.config.panels import MONEY
from spotelastic.model.counting import duration
from spotelastic.model.interval import TIME


@dataclass(frozen=True, kw_only=True)
class MoneyOptions:
    """What a job may cost, and how long it may take."""

    PANEL = MONEY

    on_demand: str = option(
        "never",
        f"When to buy on-demand nodes: {ON_DEMAND}.",
        metavar="WHEN",
        pattern=ON_DEMAND_PATTERN,
        stored=lambda job: (
            f"base={job.capacity.base}" if job.capacity.base else job.capacity.on_demand
        ),
    )
    spot_patience: float = option(
        600.0,
        "Seconds below --min before on-demand nodes are bought.",
        least=0,
        stored=lambda job: duration(job.capacity.spot_patience),
    )
    max_price: float | None = option(
        None,
        "Highest price of a spot node, in US dollars per hour.",
        stored=lambda job: job.capacity.max_price,
    )
    max_cost: float | None = option(
        None,
        "Stop the job before it costs this many US dollars, control nodes included.",
        stored=lambda job: job.capacity.max_cost,
    )
    deadline: str | None = option(
        None,
        "Stop the job after this time, e.g. 90m or 8h, finished or not.",
        metavar="TIME",
        pattern=TIME,
        stored=lambda job: None if job.capacity.within is None else duration(job.capacity.within),
    )
