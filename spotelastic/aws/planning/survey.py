"""Surveys what an account offers for a request: instance types, zones, quotas and prices.

Nothing is changed. A request that cannot be met raises; one that can be met in part is described in
`Survey.warnings`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from spotelastic.aws.base.clients import DENIED, Aws, Rejected
from spotelastic.aws.base.names import CONTROL_TYPE, MEMBERS
from spotelastic.aws.compute import instance_types, offers, quotas
from spotelastic.aws.compute.estimate import Estimate, Line, estimate
from spotelastic.aws.compute.instance_types import InstanceType
from spotelastic.aws.compute.prices import PriceList
from spotelastic.aws.compute.quotas import NodeDemand, Quotas
from spotelastic.aws.compute.zone_ranking import Zones
from spotelastic.aws.network import cloudformation, existing_vpc, zones
from spotelastic.aws.network.existing_vpc import Network
from spotelastic.aws.planning import type_selection
from spotelastic.aws.planning.type_selection import Option, Requirement
from spotelastic.cloud.model import ZoneOffer, ranked
from spotelastic.errors import EnvironmentFailure, UsageError


@dataclass(frozen=True, slots=True)
class SurveyQuery:
    """What the survey is for."""

    cluster: str
    types: tuple[str, ...]
    """Types that were named; empty: the cheapest in quota that meets the requirement."""
    minimum: int
    maximum: int
    requirement: Requirement = Requirement()
    beside: tuple[str, ...] = ()
    """Types that the cluster has already: nodes of both train together for a while."""
    on_demand: int = 0
    """Workers that may be bought on demand."""
    base: int = 0
    """Workers that are always bought on demand, in place of spot."""
    control_type: str = CONTROL_TYPE
    controls: int = len(MEMBERS)
    """Control nodes that are still to be launched."""
    vpc: str = ""
    """The user's VPC; empty: a network is created."""
    subnets: tuple[str, ...] = ()
    placed: bool = False
    """Whether workers are to be in a cluster placement group."""
    packed: bool = False
    """Whether all workers are to be in one zone."""
    container: str = ""
    """The container image that workers are to run in."""

    @property
    def spot(self) -> int:
        """Most workers that are spot."""
        return max(0, self.maximum - self.base)


@dataclass(frozen=True, slots=True)
class Survey:
    """What the account offers."""

    types: tuple[InstanceType, ...]
    """Types of the workers, best first."""
    zones: tuple[str, ...]
    """Zones of the workers."""
    price: float
    """US dollars an hour for the first type in its cheapest zone; 0 if not known."""
    estimate: Estimate
    resources: tuple[str, ...]
    """What the stack consists of, for people."""
    warnings: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    """What the types were chosen from, the choice first; empty if they were named."""
    ranking: tuple[ZoneOffer, ...] = ()
    """The zones, best first, if workers are packed into one of them."""
    prices_of: str = ""
    """Date of the on-demand prices."""


def survey(aws: Aws, wish: SurveyQuery) -> Survey:
    """Survey the region. Raises `UsageError` and `EnvironmentFailure` for what it cannot offer."""
    kinds, options, short = _types(aws, wish)
    _check_container(wish, kinds)
    network = existing_vpc.look(aws, wish.vpc, wish.subnets) if wish.vpc else None
    its_zones, for_workers = _zones(aws, wish, names_of(kinds), network)
    ranking = _ranking(aws, wish, for_workers, names_of(kinds)) if wish.packed else ()
    cards, listed = instance_types.efa_cards(kinds), PriceList(aws)
    first = (ranking[0].name,) if ranking else for_workers
    price = _price(aws, kinds[0].name, first, listed)
    addresses = _addresses((wish.minimum, wish.maximum), cards, network, its_zones)
    nat_gateways = existing_vpc.gateways(cards, wish.vpc)
    return Survey(
        types=kinds,
        zones=for_workers,
        price=price,
        estimate=_estimate(wish, kinds[0].name, price, listed, nat_gateways, addresses),
        resources=cloudformation.summary(
            len(its_zones), private=cards > 1, given=network is not None, placed=wish.placed
        ),
        warnings=(*short, *_of_network(wish, network, its_zones, cards)),
        options=options,
        ranking=ranking,
        prices_of=listed.date,
    )


def _types(
    aws: Aws, wish: SurveyQuery
) -> tuple[tuple[InstanceType, ...], tuple[Option, ...], tuple[str, ...]]:
    """Return the workers' types, what they were chosen from, and the shortages of the quotas."""
    known = Quotas(aws, wish.cluster)
    try:
        options = _options(aws, known, wish)
        kinds = _kinds(aws, wish, options)
        instance_types.check_alike(
            (*instance_types.describe(aws, wish.beside), *kinds) if wish.beside else kinds
        )
        return kinds, options, tuple(_shortages(aws, known, kinds, wish))
    except Rejected as error:
        if error.code not in DENIED or not wish.types:
            raise
        kinds = _kinds(aws, wish, ())
        instance_types.check_alike(kinds)
        return kinds, (), (f"the quotas are not known: {error}",)


def _options(aws: Aws, known: Quotas, wish: SurveyQuery) -> tuple[Option, ...]:
    if wish.types:
        return ()
    nodes = NodeDemand(wish.minimum, min(wish.minimum, wish.spot), wish.on_demand)
    return type_selection.survey(aws, wish.requirement, nodes, known.allowance)


def _kinds(aws: Aws, wish: SurveyQuery, options: tuple[Option, ...]) -> tuple[InstanceType, ...]:
    if not wish.types:
        return type_selection.best(options, wish.requirement, aws.region).types
    kinds = instance_types.describe(aws, wish.types)
    instance_types.check_fit(kinds)
    if str(wish.requirement):
        type_selection.check(kinds, wish.requirement)
    return kinds


def names_of(kinds: tuple[InstanceType, ...]) -> tuple[str, ...]:
    """Return the types' names."""
    return tuple(kind.name for kind in kinds)


def _check_container(wish: SurveyQuery, kinds: tuple[InstanceType, ...]) -> None:
    """Refuse a container on types without docker: every node would fail, and be paid for."""
    for kind in kinds:
        if wish.container and not kind.gpus:
            raise UsageError(
                f"--image {wish.container}: nodes of {kind.name} have no docker: use types with "
                "GPUs, whose machine image has it, or remove --image"
            )


def _shortages(
    aws: Aws, known: Quotas, kinds: tuple[InstanceType, ...], wish: SurveyQuery
) -> list[str]:
    """Return the shortages of workers, by purchase; raise for control nodes."""
    nodes = NodeDemand(wish.minimum, wish.spot, wish.on_demand)
    spot, on_demand = found = quotas.shares(kinds, known.allowance, nodes)
    if refusal := quotas.refusal(found, nodes):
        raise EnvironmentFailure(f"too few nodes for --min {wish.minimum}: {refusal}")
    told = []
    if spot.had < spot.wanted:
        told.append(spot.text)
    if on_demand.had < on_demand.wanted:
        told.append(f"--on-demand: {on_demand.text}")
    if wish.controls:
        (control,) = instance_types.describe(aws, [wish.control_type])
        left = known.allowance(control.name, spot=False)
        if left is not None and left.instances(control) < wish.controls:
            raise EnvironmentFailure(
                f"too few control nodes: {left.describe(control, wish.controls)}"
            )
    return told


def _zones(
    aws: Aws, wish: SurveyQuery, names: tuple[str, ...], network: Network | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return all zones of the cluster, and those for workers."""
    offered: zones.Offers = offers.zones(aws, (*names, wish.control_type))
    within = offered
    if network is not None:
        within = existing_vpc.within(network, offered, names, wish.control_type)
    chosen = zones.choose(within, names, wish.control_type, aws.region)
    return chosen, zones.with_workers(offered, chosen, names)


def _of_network(
    wish: SurveyQuery, network: Network | None, its_zones: tuple[str, ...], cards: int
) -> Iterator[str]:
    """Yield the warnings about a network of the user."""
    if network is not None:
        needed = wish.maximum + 2 * wish.controls if wish.controls else 0
        yield from existing_vpc.warnings(network, its_zones, cards, needed)


def _estimate(
    wish: SurveyQuery,
    worker: str,
    price: float,
    listed: PriceList,
    nat_gateways: int,
    addresses: tuple[int, int],
) -> Estimate:
    usual = estimate(
        nodes=(wish.minimum, wish.maximum),
        worker=worker,
        worker_usd=price,
        control=wish.control_type,
        control_usd=listed.on_demand(wish.control_type),
        controls=len(MEMBERS),
        nat_gateways=nat_gateways,
        addresses=addresses,
    )
    return _with_base(usual, wish, listed.on_demand(worker)) if wish.base else usual


def _with_base(usual: Estimate, wish: SurveyQuery, usd: float) -> Estimate:
    """Split the workers into those bought on demand, which come first, and spot ones."""
    workers, *others = usual.lines
    low, high = min(wish.base, workers.low), min(wish.base, workers.high)
    bought = Line(workers.what, low, high, usd, "on demand")
    spot = replace(workers, low=workers.low - low, high=workers.high - high)
    return Estimate((*((spot,) if spot.high else ()), bought, *others))


def _addresses(
    nodes: tuple[int, int], cards: int, network: Network | None, chosen: tuple[str, ...]
) -> tuple[int, int]:
    """Return the numbers of public addresses at --min and --max.

    AWS gives none to instances with several network cards, which use a NAT gateway.
    """
    low, high = nodes
    if network is None:
        fixed, each = len(MEMBERS) + int(cards > 1), int(cards <= 1)
    else:
        subnets = network.of(chosen)
        fixed = sum(subnet.public for subnet in subnets[: len(MEMBERS)])
        each = int(cards <= 1 and any(subnet.public for subnet in subnets))
    return fixed + low * each, fixed + high * each


def _ranking(
    aws: Aws, wish: SurveyQuery, names: tuple[str, ...], types: tuple[str, ...]
) -> tuple[ZoneOffer, ...]:
    zones = Zones(aws)
    return ranked(zones.offers(zones.named(names), types, wish.maximum))


def _price(aws: Aws, type: str, zones: tuple[str, ...], listed: PriceList) -> float:
    found = offers.spot_prices(aws, [type]).get(type, {})
    prices = [price for zone, price in found.items() if zone in zones]
    return min(prices) if prices else listed.on_demand(type)
