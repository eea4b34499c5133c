"""Markets of several regions: drawn ones, and a job in them of which only the nodes are counted."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spotelastic.controller.decisions import regions
from spotelastic.controller.model.regions import (
    RegionHistory,
    RegionOffer,
    RegionPolicy,
)
from spotelastic.model.counting import DAY, HOUR

GAP = 300.0
"""Seconds for which a market has the same nodes at least."""
PAUSE, BOOT = 285.0, 90.0
"""Seconds without a step that a move takes, and of them those in which nodes boot."""
USD = 0.3


def drawn(
    seed: str, hours_up: float, hours_down: float, *, most: int = 8, days: int = 6
) -> list[int]:
    """Nodes of a market in each gap: all there or nothing, for times that are drawn."""
    rng = random.Random(seed)
    counts: list[int] = []
    up = rng.random() < hours_up / (hours_up + hours_down)
    while len(counts) < days * DAY / GAP:
        mean = (hours_up if up else hours_down) * HOUR
        gaps = max(1, int(rng.expovariate(1 / mean) / GAP))
        counts += [rng.randint(max(1, most // 2), most) if up else 0] * gaps
        up = not up
    return counts[: int(days * DAY / GAP)]


@dataclass(frozen=True, slots=True)
class Counted:
    """Node seconds with at least min nodes."""

    job: float
    single: float
    """Those of the region that is best for the whole time."""
    bound: float
    """Those of the best region at each moment."""
    moves: tuple[float, ...]


def play(markets: Mapping[str, Sequence[int]], policy: RegionPolicy) -> Counted:
    """Let the decisions about regions act on these markets, which they see as they are now."""
    gaps = len(next(iter(markets.values())))

    def useful(region: str, at: float) -> int:
        """Nodes that train: those that were there when the youngest began to boot."""
        counts = markets[region]
        now, then = int(at // GAP), max(0, int((at - BOOT) // GAP))
        nodes = min(counts[now], counts[then], policy.max_nodes)
        return nodes if nodes >= policy.min_nodes else 0

    def offers(at: float) -> tuple[RegionOffer, ...]:
        gap = int(at // GAP)
        return tuple(
            RegionOffer(region, counts[gap], USD, PAUSE, 0.2) for region, counts in markets.items()
        )

    # `up` begins where the most nodes are to be had for the money.
    first = max(offers(0.0), key=lambda each: (regions.worth(each, policy), each.nodes or 0))
    history = RegionHistory(first.region, 0.0, 0.0)
    now, trains_from, seconds, moves = 0.0, BOOT, 0.0, []
    while now < gaps * GAP:
        if now >= trains_from:
            seconds += useful(history.home, now) * policy.look_every
        if now >= trains_from - BOOT:
            history = regions.look(history, offers(now), now, policy)
            decision = regions.decide(history, offers(now), now, policy)
            if decision.to:
                moves.append(now)
                trains_from = now + PAUSE
                history = regions.arrive(history, decision.to, now, trains_from - BOOT, policy)
        now += policy.look_every
    each = {region: [useful(region, gap * GAP) * GAP for gap in range(gaps)] for region in markets}
    return Counted(
        seconds,
        max(sum(its) for its in each.values()),
        sum(max(now) for now in zip(*each.values(), strict=True)),
        tuple(moves),
    )
