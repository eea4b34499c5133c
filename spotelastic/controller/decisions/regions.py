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
    RegionDecision,
    RegionHistory,
    RegionOffer,
    RegionPolicy,
)
from spotelastic.model.counting import DAY, HOUR, counted, dollars

Offers = tuple[RegionOffer, ...]
"""Each region that the job may be in, its own included."""
LEAST_VALUE = 0.1
"""Share of a node's value that it keeps however dear it is: without nodes nothing is gained."""


def worth(offer: RegionOffer, policy: RegionPolicy) -> float:
    """Return the US dollars an hour that a region is worth to the job."""
    nodes = min(offer.nodes or 0, policy.max_nodes)
    if nodes < policy.min_nodes:
        return 0.0
    return nodes * max(policy.node_value - offer.usd, LEAST_VALUE * policy.node_value)


def look(history: RegionHistory, offers: Offers, now: float, policy: RegionPolicy) -> RegionHistory:
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


def decide(
    history: RegionHistory, offers: Offers, now: float, policy: RegionPolicy
) -> RegionDecision:
    """Decide whether the job moves now. The history must have been looked at at `now`."""
    here = _offer(history.home, offers)
    wanted = [
        *_worth_moving(history, offers, here, policy),
        *_out_of_patience(history, offers, now, policy),
    ]
    if not wanted:
        return RegionDecision("", _stays(history, offers, now, policy))
    if len(history.moves) >= policy.moves_per_day:
        limit = f"{counted(len(history.moves), 'move')} within a day, the most allowed"
        return RegionDecision("", f"stays in {history.home}: {limit}")
    best, why = max(wanted, key=lambda one: (worth(one[0], policy), -one[0].usd))
    return RegionDecision(best.region, f"moves to {best.region}: {why}")


def move_price(offer: RegionOffer, here: RegionOffer, policy: RegionPolicy) -> float:
    """Return the US dollars that a move there costs: the copy, and the training that it stops."""
    more = max(worth(offer, policy), worth(here, policy))
    return offer.move_usd + more * offer.move_seconds / HOUR


def _worth_moving(
    history: RegionHistory, offers: Offers, here: RegionOffer, policy: RegionPolicy
) -> Iterator[tuple[RegionOffer, str]]:
    """Yield the regions that have been worth more for long enough, and are now."""
    for offer in offers if policy.prefer_capacity else ():
        if worth(offer, policy) <= worth(here, policy) or offer.region == here.region:
            continue
        missed = history.missed.get(offer.region, 0.0)
        price = move_price(offer, here, policy) * _caution(history, offers, offer, policy)
        if missed >= price:
            nodes = f"{counted(offer.nodes or 0, 'node')} against {here.nodes or 0}"
            yield offer, f"{nodes}; {dollars(missed)} were missed, the move costs {dollars(price)}"


def _out_of_patience(
    history: RegionHistory, offers: Offers, now: float, policy: RegionPolicy
) -> Iterator[tuple[RegionOffer, str]]:
    """Yield the regions that promise enough nodes, where this one has had too few for too long.

    Where none is known to, the one of which nothing is known and that has disappointed least.
    """
    if history.short_since is None:
        return
    short = now - history.short_since
    why = f"{history.home} has had fewer than {policy.min_nodes} nodes for {short / 60:.0f} min"
    others = [
        offer
        for offer in offers
        if offer.region != history.home
        and short >= policy.patience * _caution(history, offers, offer, policy)
    ]
    known = [offer for offer in others if worth(offer, policy) > 0]
    unknown = [offer for offer in others if offer.nodes is None]
    unknown.sort(key=lambda offer: _caution(history, offers, offer, policy))
    yield from ((offer, why) for offer in known or unknown[:1])


def _stays(history: RegionHistory, offers: Offers, now: float, policy: RegionPolicy) -> str:
    here, short = _offer(history.home, offers), history.short_since
    if short is None:
        return f"stays in {here.region}: {counted(here.nodes or 0, 'node')}"
    minutes = f"{(now - short) / 60:.0f} min"
    told = f"stays in {here.region}: fewer than {policy.min_nodes} nodes for {minutes}"
    others = [offer for offer in offers if offer.region != here.region]
    if any(worth(offer, policy) > 0 or offer.nodes is None for offer in others):
        return told
    return f"{told}, and no other region has more"


def _caution(
    history: RegionHistory, offers: Offers, offer: RegionOffer, policy: RegionPolicy
) -> int:
    """Return the factor by which the job waits longer before it goes to a region.

    It is 1 for a region where the job is known to train, if it does not train where it is.
    """
    if worth(offer, policy) > 0.0 and not worth(_offer(history.home, offers), policy):
        return 1
    return history.caution.get(offer.region, 1)


def _offer(region: str, offers: Offers) -> RegionOffer:
    return next(offer for offer in offers if offer.region == region)
