"""Estimates what gradients cost that nodes in several zones exchange (pure)."""

from collections.abc import Iterator

from spotelastic.cloud.model import TRAFFIC_USD
from spotelastic.model.counting import usd

HOUR = 3600.0


def usd_per_step(gradients: float, nodes: int, zones: int) -> float:
    """Return the US dollars that the all-reduce of a step costs.

    In it, so many GB of `gradients` are exchanged by a ring of `nodes` that are in so many `zones`.

    Each node sends 2 (nodes - 1) / nodes of them to the next one. As many of these ways lead into
    another zone as there are zones.
    """
    if min(nodes, zones) < 2:
        return 0.0
    crossings = min(zones, nodes)
    return crossings * 2.0 * gradients * (nodes - 1) / nodes * TRAFFIC_USD


def warnings(nodes: int, zones: int, *, efa: bool) -> Iterator[str]:
    """Yield what is to be known of a job that is spread over zones.

    The job has so many `nodes`; `efa` says whether these have EFA.
    """
    crossed = min(zones, nodes)
    if crossed < 2:
        return
    step = usd_per_step(1.0, nodes, zones)
    yield (
        f"--zones spread: gradients go through {crossed} zones, which AWS bills: {usd(step)} a "
        f"step for each GB of them (a model of 0.5 billion parameters in 16 bits), "
        f"{usd(step * HOUR)} an hour at a step a second. What is sent is measured, and counts for "
        "--max-cost"
    )
    if efa:
        yield "--zones spread: EFA does not reach other zones, so that NCCL uses sockets"
