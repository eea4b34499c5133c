"""Adds up what parts of a replay have cost."""

from spotelastic.replay.outcome import Bill


def both(one: Bill, other: Bill) -> Bill:
    """Return the bill of two parts."""
    return Bill(
        one.spot_hours + other.spot_hours,
        one.on_demand_hours + other.on_demand_hours,
        one.usd + other.usd,
    )
