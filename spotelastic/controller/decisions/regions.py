"""Decides in which region a job trains, and when it moves to another one (pure).

All nodes of a job are in one region. A region is worth what its nodes are worth that train, less
their price. There are two reasons to move:

- Fewer than min nodes for as long as the user has patience.
- With `prefer_capacity`: another region would have been worth more since the job came here, and by
  now by as much as the move costs. So what is lost by staying is never much more than what a move
  costs, and a region that is better for a moment moves nobody.

Must never happen:

- jobs move back and forth: a stay that was too short to be worth its move doubles the time until
  the job goes there again, and the moves of a day are limited;
- a job that does not train watches nodes that are known to be elsewhere for longer than the move
  would take: it has nothing to lose, so that a short stay there before does not keep it;
- a job leaves nodes that train for a region of which nothing is known.
"""

from collections.abc import Iterator
from dataclasses import replace

from spotelastic.controller.model.regions import (
    DAY,
    HOUR,
    MoveJob,
    RegionDecision,
    RegionHistory,
    RegionOffer,
    RegionPolicy,
    RegionsSeen,
)
from spotelastic.model.counting import counted, dollars

LEAST_VALUE = 0.1
"""Share of a node's value that it keeps however dear it is. A job that must end sooner or later
gains nothing by waiting where there are no nodes.
"""


def worth(offer: RegionOffer, policy: RegionPolicy) -> float:
    """Return the US dollars an hour that a region is worth to the job."""
    nodes = min(offer.nodes or 0, policy.max_nodes)
    if nodes < policy.min_nodes:
        return 0.0
    return nodes * max(policy.node_value - offer.usd, LEAST_VALUE * policy.node_value)


def look(
    history: RegionHistory, offers: tuple[RegionOffer, ...], now: float, policy: RegionPolicy
) -> RegionHistory:
    """Return the history with the time since the last look, as the regions are now.

    Looks that are missed count as one: nobody knows what the regions had meanwhile.
    """
    passed = min(now - history.looked_at, 2 * policy.look_every)
    here = _offer(history.home, offers)
    enough = (here.nodes or 0) >= policy.min_nodes
    missed = {
        offer.region: max(
            0.0,
            history.missed.get(offer.region, 0.0)
            + (worth(offer, policy) - worth(here, policy)) * passed / HOUR,
        )
        for offer in offers
        if offer.region != history.home
    }
    since = now if history.short_since is None else history.short_since
    return replace(
        history,
        looked_at=now,
        short_since=None if enough else since,
        trained=history.trained + passed * enough,
        missed=missed,
        moves=tuple(at for at in history.moves if now - at < DAY),
    )


def arrive(
    history: RegionHistory, region: str, left_at: float, now: float, policy: RegionPolicy
) -> RegionHistory:
    """Return the history of a job that has moved to this region, which it decided at `left_at`."""
    before = history.caution.get(history.home, 1)
    short = history.trained < policy.short_stay
    caution = min(policy.most_caution, 2 * before) if short else max(1, before // 2)
    return RegionHistory(
        region,
        since=now,
        looked_at=now,
        caution={**history.caution, history.home: caution},
        moves=(*history.moves, left_at),
    )


def decide(seen: RegionsSeen, now: float, policy: RegionPolicy) -> RegionDecision:
    """Decide whether the job moves now. The history must have been looked at at `now`."""
    history = seen.history
    here = _offer(history.home, seen.offers)
    wake_at = now + policy.look_every
    wanted = [*_worth_moving(seen, here, policy), *_out_of_patience(seen, now, policy)]
    if not wanted:
        return RegionDecision((), _stays(seen, here, now, policy), wake_at)
    if len(history.moves) >= policy.moves_per_day:
        limit = f"{counted(len(history.moves), 'move')} within a day, the most allowed"
        return RegionDecision((), f"stays in {history.home}: {limit}", wake_at)
    best, why = max(wanted, key=lambda one: (worth(one[0], policy), -one[0].usd))
    return RegionDecision((MoveJob(best.region),), f"moves to {best.region}: {why}", wake_at)


def move_price(offer: RegionOffer, here: RegionOffer, policy: RegionPolicy) -> float:
    """Return the US dollars that a move there costs: the copy, and the training that it stops."""
    more = max(worth(offer, policy), worth(here, policy))
    return offer.move_usd + more * offer.move_seconds / HOUR


def _worth_moving(
    seen: RegionsSeen, here: RegionOffer, policy: RegionPolicy
) -> Iterator[tuple[RegionOffer, str]]:
    """Yield the regions that have been worth more for long enough, and are now."""
    for offer in seen.offers if policy.prefer_capacity else ():
        if worth(offer, policy) <= worth(here, policy) or offer.region == here.region:
            continue
        missed = seen.history.missed.get(offer.region, 0.0)
        price = move_price(offer, here, policy) * _caution(seen, offer, policy)
        if missed >= price:
            nodes = f"{counted(offer.nodes or 0, 'node')} against {here.nodes or 0}"
            yield offer, f"{nodes}; {dollars(missed)} were missed, the move costs {dollars(price)}"


def _out_of_patience(
    seen: RegionsSeen, now: float, policy: RegionPolicy
) -> Iterator[tuple[RegionOffer, str]]:
    """Yield the regions that promise enough nodes, where this one has had too few for too long.

    Where none is known to, the one of which nothing is known and that has disappointed least.
    """
    history = seen.history
    if history.short_since is None:
        return
    short = now - history.short_since
    why = f"{history.home} has had fewer than {policy.min_nodes} nodes for {short / 60:.0f} min"
    others = [
        offer
        for offer in seen.offers
        if offer.region != history.home and short >= policy.patience * _caution(seen, offer, policy)
    ]
    known = [offer for offer in others if worth(offer, policy) > 0]
    unknown = [offer for offer in others if offer.nodes is None]
    unknown.sort(key=lambda offer: _caution(seen, offer, policy))
    yield from ((offer, why) for offer in known or unknown[:1])


def _stays(seen: RegionsSeen, here: RegionOffer, now: float, policy: RegionPolicy) -> str:
    short = seen.history.short_since
    if short is None:
        told = f"{counted(here.nodes or 0, 'node')}"
    else:
        told = f"fewer than {policy.min_nodes} nodes for {(now - short) / 60:.0f} min"
    others = [offer for offer in seen.offers if offer.region != here.region]
    if short is None or any(worth(offer, policy) > 0 or offer.nodes is None for offer in others):
        return f"stays in {here.region}: {told}"
    return f"stays in {here.region}: {told}, and no other region has more"


def _caution(seen: RegionsSeen, offer: RegionOffer, policy: RegionPolicy) -> int:
    """Return the factor by which the job waits longer before it goes to a region.

    It is 1 for a region where the job is known to train, if it does not train where it is.
    """
    here = _offer(seen.history.home, seen.offers)
    if worth(offer, policy) > 0.0 and not worth(here, policy):
        return 1
    return seen.history.caution.get(offer.region, 1)


def _offer(region: str, offers: tuple[RegionOffer, ...]) -> RegionOffer:
    return next(offer for offer in offers if offer.region == region)
