"""The bill: what each worker machine was used for, and at which price (pure).

EC2 forgets a terminated instance after about an hour and does not say when it ended; so the
account is kept here, object by object, from one observation to the next.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from spotelastic.aws.autoscaling import GONE, Machine
from spotelastic.aws.prices import Prices
from spotelastic.controller.ledger import HOUR, Usage
from spotelastic.controller.seen import Money
from spotelastic.model.progress import Cost, Report

Bill = Mapping[str, Usage]
"""By instance."""


def account(
    bill: Bill, machines: Iterable[Machine], prices: Prices, now: float, last: float = 0.0
) -> dict[str, Usage]:
    """The bill after an observation: new machines are opened, those that are gone are closed; one
    that EC2 does not know any more, at the time of the observation before, `last`.

    Each machine is charged at the price of the moment it was first seen.
    """
    workers = {machine.id: machine for machine in machines if machine.role == "worker"}
    forgotten = {name: item for name, item in bill.items() if name not in workers}
    updated = {**bill, **closed(forgotten, last)}
    for name, machine in workers.items():
        known = updated.get(name) or _opened(machine, prices)
        if machine.state not in GONE:
            known = replace(known, end=None)  # EC2 had left it out of an answer
        elif known.end is None:
            known = replace(known, end=max(known.start, now))
        updated[name] = known
    return updated


def closed(bill: Bill, at: float) -> dict[str, Usage]:
    """As if all that still runs had ended then."""
    return {
        name: replace(item, end=max(item.start, at)) if item.end is None else item
        for name, item in bill.items()
    }


def money(bill: Bill, now: float) -> Money:
    """What the workers have cost, and cost now."""
    spent = sum(
        ((now if item.end is None else item.end) - item.start) / HOUR * item.usd_per_hour
        for item in bill.values()
    )
    return Money(spent, sum(item.usd_per_hour for item in bill.values() if item.end is None))


def cost(name: str, bill: Bill, report: Report | None, now: float, limit: float | None) -> Cost:
    """The bill up to `now` for people; `limit` is --max-cost."""
    hours = {item.instance: ((item.end or now) - item.start) / HOUR for item in bill.values()}
    total = money(bill, now)
    left = None
    if limit is not None and total.per_hour > 0:
        left = max(0.0, (limit - total.spent) / total.per_hour)
    rows = report.interruptions if report is not None else ()
    return Cost(
        name=name,
        usd_per_hour=total.per_hour,
        cost_usd=total.spent,
        on_demand_usd=sum(
            hours[item.instance] * item.on_demand_usd_per_hour for item in bill.values()
        ),
        spot_hours=sum(hours[item.instance] for item in bill.values() if item.spot),
        on_demand_hours=sum(hours[item.instance] for item in bill.values() if not item.spot),
        interruptions_usd=sum(row.usd or 0.0 for row in rows),
        max_cost=limit,
        hours_left=left,
        prices_of=report.prices_of if report is not None else "",
    )


def _opened(machine: Machine, prices: Prices) -> Usage:
    on_demand = prices.on_demand(machine.type)
    # One whose price nobody knows is not free: spot costs that much at most.
    spot = (prices.spot(machine.type, machine.zone) if machine.spot else 0.0) or on_demand
    return Usage(
        instance=machine.id,
        type=machine.type,
        spot=machine.spot,
        start=machine.launched_at,
        end=None,
        usd_per_hour=spot,
        # A type that the table does not list is not made to look like a saving.
        on_demand_usd_per_hour=on_demand or spot,
    )
