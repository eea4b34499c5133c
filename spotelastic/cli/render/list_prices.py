"""Renders a plan that was made from list prices, without an AWS account."""

from collections.abc import Iterator

from spotelastic.aws.compute.estimate import Estimate
from spotelastic.aws.compute.prices import shipped_table
from spotelastic.cli.render.plan import price_table
from spotelastic.client.bringing_up.list_prices import UNKNOWN
from spotelastic.client.bringing_up.plan import Planned


def shown(plan: Planned) -> Iterator[str]:
    """Yield the lines of the plan for people."""
    table = shipped_table()
    yield (
        "no AWS account is configured (`aws configure`, AWS_PROFILE): this plan uses list prices"
    )
    yield ""
    yield from price_table(
        Estimate(plan.lines),
        f"On-demand list prices of {table.region}, {table.date}; spot nodes cost less. Traffic and "
        "storage come on top.",
    )
    yield ""
    yield f"not known without an account: {'; '.join(UNKNOWN)}"
    yield f"would create the cluster {plan.name}; nothing was created"
