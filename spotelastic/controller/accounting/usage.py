"""Keeps the bill: how long each instance was used, and at which price (pure).

EC2 forgets a terminated instance after about an hour and does not say when it ended. So the bill is
updated from one observation to the next. It holds everything that AWS bills by the hour and that
`up --plan` counts: workers and control nodes with their disks and public addresses, and NAT
gateways. Of what AWS bills by the byte it holds what nodes send to other zones, as they measure it;
the rest is left out, and what AWS bills by the request.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from spotelastic.cloud.model import GONE, TRAFFIC_USD, Instance
from spotelastic.cloud.port import Prices
from spotelastic.controller.model.observation import Money
from spotelastic.model.counting import HOUR
from spotelastic.model.progress import Cost, Progress, Report

GB = 1e9
ROLES: Mapping[str, Literal["worker", "control"]] = {"worker": "worker", "control": "control"}
NETWORK = "network"


@dataclass(frozen=True, slots=True)
class Before:
    """An earlier spot price of an instance, and until when it held."""

    until: float
    usd_per_hour: float


@dataclass(frozen=True, slots=True)
class Usage:
    """One instance's time on the bill; `end` is None while it runs."""

    instance: str
    type: str
    spot: bool
    start: float
    end: float | None
    usd_per_hour: float
    """US dollars an hour now, or when it ended."""
    on_demand_usd_per_hour: float
    role: Literal["worker", "control", "network"] = "worker"
    besides_usd_per_hour: float = 0.0
    """US dollars an hour for its disks and its public address."""
    provisional: bool = False
    """Whether its spot price is not known yet, so that it is charged as on demand."""
    earlier: tuple[Before, ...] = ()
    """Its earlier spot prices, the oldest first."""
    crossed: int = 0
    """Bytes that it has sent to nodes in other zones."""
    crossed_told: int = 0
    """What its agent has counted of them: the next one begins at 0 again."""
    crossing: int = 0
    """Bytes a second that it sends there now."""

    @property
    def rate(self) -> float:
        """US dollars an hour, disks and address included."""
        return self.usd_per_hour + self.besides_usd_per_hour

    @property
    def on_demand_rate(self) -> float:
        return self.on_demand_usd_per_hour + self.besides_usd_per_hour

    def hours(self, now: float) -> float:
        """Return its hours until it ended, or until `now`."""
        return max(0.0, (now if self.end is None else self.end) - self.start) / HOUR

    def rate_at(self, at: float) -> float:
        """Return the US dollars an hour that held at a time, disks and address included."""
        then = (before.usd_per_hour for before in self.earlier if at < before.until)
        return next(then, self.usd_per_hour) + self.besides_usd_per_hour

    def usd(self, start: float, end: float) -> float:
        """Return the US dollars for its time within [start, end], each part at its price then."""
        since, end = max(start, self.start), end if self.end is None else min(end, self.end)
        total = 0.0
        for before in self.earlier:
            rate = before.usd_per_hour + self.besides_usd_per_hour
            total += max(0.0, min(end, before.until) - since) / HOUR * rate
            since = max(since, before.until)
        return total + max(0.0, end - since) / HOUR * self.rate

    @property
    def traffic(self) -> Money:
        """What it has sent to other zones costs.

        Where its own price is not known, that is not either.
        """
        usd = TRAFFIC_USD / GB if self.rate else 0.0
        crossing = self.crossing if self.end is None else 0
        return Money(self.crossed * usd, crossing * HOUR * usd)


Bill = Mapping[str, Usage]


def account(
    bill: Bill,
    machines: Iterable[Instance],
    prices: Prices,
    now: float,
    last: float = 0.0,
    gateways: float = 0.0,
    paid: Collection[str] = (),
) -> dict[str, Usage]:
    """Return the bill after an observation.

    New instances are added, and those that are gone are closed. An instance that EC2 no longer
    knows is closed at the time of the observation before, `last`. A spot instance is charged from
    its launch at the first price that could be had, and at another one from when that was seen.
    `gateways` is what NAT gateways cost, in US dollars an hour. An instance in one of the
    reservations that are `paid` anyway costs nothing but its disks and its address.
    """
    seen = {machine.id: machine for machine in machines if machine.role in ROLES}
    there = {*seen, NETWORK}
    forgotten = {
        name: item for name, item in bill.items() if item.end is None and name not in there
    }
    updated = {**bill, **closed(forgotten, last)}
    for name, machine in seen.items():
        updated[name] = _charged(updated.get(name), machine, prices, now, paid)
    if gateways:
        updated[NETWORK] = updated.get(NETWORK) or _network(updated, gateways, now)
    return updated


def closed(bill: Bill, at: float) -> dict[str, Usage]:
    """Return the bill as if everything that still runs had ended at that time."""
    return {
        name: replace(item, end=max(item.start, at)) if item.end is None else item
        for name, item in bill.items()
    }


def with_traffic(
    bill: Bill, told: Iterable[Progress], training: Collection[str]
) -> dict[str, Usage]:
    """Return the bill after nodes have told what they have sent.

    Who is not `training` sends nothing now.
    """
    updated = dict(bill)
    for each in told:
        item, crossing = bill.get(each.node), each.crossing if each.node in training else 0
        if item is None or (item.crossed_told, item.crossing) == (each.crossed, crossing):
            continue
        more = each.crossed - item.crossed_told
        updated[each.node] = replace(
            item,
            crossed=item.crossed + (each.crossed if more < 0 else more),
            crossed_told=each.crossed,
            crossing=crossing,
        )
    return updated


def money(items: Iterable[Usage], now: float) -> Money:
    """Return what these items have cost, and cost an hour now."""
    sums = expenses(items, now)
    return Money(sums["total_usd"], sums["total_usd_per_hour"], workers=sums["usd_per_hour"])


def expenses(items: Iterable[Usage], now: float) -> dict[str, float]:
    """Return the bill's sums, as a `Report` and a `Cost` name them."""
    counted = tuple(items)
    workers = [item for item in counted if item.role == "worker"]
    control = [item for item in counted if item.role != "worker"]
    traffic = [item.traffic for item in counted if item.crossed]
    sums = {
        "cost_usd": sum(item.usd(item.start, now) for item in workers),
        "usd_per_hour": sum(item.rate for item in workers if item.end is None),
        "control_usd": sum(item.usd(item.start, now) for item in control),
        "control_usd_per_hour": sum(item.rate for item in control if item.end is None),
        "traffic_usd": sum(each.spent for each in traffic),
        "traffic_usd_per_hour": sum(each.per_hour for each in traffic),
    }
    return sums | {
        "total_usd": sum(usd for name, usd in sums.items() if name.endswith("usd")),
        "total_usd_per_hour": sum(usd for name, usd in sums.items() if name.endswith("hour")),
        "on_demand_usd": sum(item.hours(now) * item.on_demand_rate for item in workers),
    }


def rates(bill: Bill) -> tuple[tuple[float, float], ...]:
    """Return what all that runs costs an hour, from each time on at which that changes."""
    changes: dict[float, float] = defaultdict(float)
    for item in bill.values():
        since = item.start
        for before in item.earlier:
            rate = before.usd_per_hour + item.besides_usd_per_hour
            changes[since] += rate
            changes[before.until] -= rate
            since = before.until
        changes[since] += item.rate
        if item.end is not None:
            changes[max(since, item.end)] -= item.rate
    at = sorted(changes)
    sums = accumulate(changes[each] for each in at)
    return tuple((each, max(0.0, round(rate, 9))) for each, rate in zip(at, sums, strict=True))


def cost(name: str, bill: Bill, report: Report | None, now: float, limit: float | None) -> Cost:
    """Return the bill up to `now` for people; `limit` is --max-cost."""
    workers = [item for item in bill.values() if item.role == "worker"]
    sums, left = expenses(bill.values(), now), None
    if limit is not None and sums["total_usd_per_hour"] > 0:
        left = max(0.0, (limit - sums["total_usd"]) / sums["total_usd_per_hour"])
    rows = report.interruptions if report is not None else ()
    return Cost(
        name=name,
        **sums,
        spot_hours=sum(item.hours(now) for item in workers if item.spot),
        on_demand_hours=sum(item.hours(now) for item in workers if not item.spot),
        interruptions_usd=sum(row.usd or 0.0 for row in rows),
        max_cost=limit,
        hours_left=left,
        prices_of=report.prices_of if report is not None else "",
    )


def _charged(
    known: Usage | None, machine: Instance, prices: Prices, now: float, paid: Collection[str]
) -> Usage:
    """Return one instance's item on the bill, as observed now."""
    known = _priced(known or _opened(machine, prices, paid), machine, prices, now)
    besides = prices.besides(machine.role, public=machine.public)
    if machine.state not in GONE:  # who is gone has no address any more
        # Without an end: EC2 may have left it out of an answer.
        besides = max(known.besides_usd_per_hour, besides)
        return replace(known, end=None, besides_usd_per_hour=besides)
    return known if known.end is not None else replace(known, end=max(known.start, now))


def _opened(machine: Instance, prices: Prices, paid: Collection[str]) -> Usage:
    # One whose price nobody knows is not free: spot costs as much as on demand at most.
    on_demand = prices.on_demand(machine.type)
    return Usage(
        instance=machine.id,
        type=machine.type,
        spot=machine.spot,
        start=machine.launched_at,
        end=None,
        usd_per_hour=0.0 if machine.reservation in paid else on_demand,
        on_demand_usd_per_hour=on_demand,
        role=ROLES[machine.role],
        besides_usd_per_hour=prices.besides(machine.role, public=machine.public),
        provisional=machine.spot,
    )


def _priced(item: Usage, machine: Instance, prices: Prices, now: float) -> Usage:
    """Return the item at its spot price, once there is one, and as that changes.

    AWS charges the same way.
    """
    changes = item.provisional or (item.spot and machine.state not in GONE)
    spot = prices.spot(machine.type, machine.zone) if changes else 0.0
    if not spot or (spot == item.usd_per_hour and not item.provisional):
        return item
    before = () if item.provisional else (Before(now, item.usd_per_hour),)
    return replace(
        item,
        usd_per_hour=spot,
        # A type that the table does not list is not made to look like a saving.
        on_demand_usd_per_hour=item.on_demand_usd_per_hour or spot,
        provisional=False,
        earlier=(*item.earlier, *before),
    )


def _network(bill: Bill, usd_per_hour: float, now: float) -> Usage:
    """Return the NAT gateways' item. They were created before the first control node."""
    start = min((item.start for item in bill.values() if item.role == "control"), default=now)
    return Usage(
        NETWORK, "NAT gateway", False, start, None, usd_per_hour, usd_per_hour, role="network"
    )
