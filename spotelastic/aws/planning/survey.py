"""Surveys what an account offers for a job: instance types, zones, quotas and prices.

Nothing is changed. A job that cannot be met raises; one that can be met in part is described in
`Survey.warnings`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from spotelastic.aws.base import partitions
from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.names import SHARED_NETWORK, members_of
from spotelastic.aws.compute import instance_types, offers, quotas, reservations, speeds
from spotelastic.aws.compute.estimate import Estimate, Line, estimate
from spotelastic.aws.compute.images import find_root_disk, find_workers_image
from spotelastic.aws.compute.instance_types import InstanceType
from spotelastic.aws.compute.network_interfaces import choose_interfaces
from spotelastic.aws.compute.prices import PriceList
from spotelastic.aws.compute.quotas import NodeDemand, Quotas
from spotelastic.aws.compute.zone_ranking import Zones
from spotelastic.aws.network import cloudformation, existing_vpc, shared_network, zones
from spotelastic.aws.network.existing_vpc import Network
from spotelastic.aws.network.shared_network import SharedNetwork
from spotelastic.aws.planning import (
    disk_key,
    encryption_key,
    given_parts,
    network_quotas,
    public_access,
    session_preferences,
    type_selection,
    zone_traffic,
)
from spotelastic.aws.planning.network_quotas import RULES_EACH
from spotelastic.aws.planning.type_selection import Option, Requirement
from spotelastic.cloud.model import ZoneOffer, ranked
from spotelastic.errors import EnvironmentFailure, UsageError
from spotelastic.model.job import JobSpec, Reservation

ANY_TYPE = Requirement()
SHARED_NETWORK_MADE = f"the network that all clusters share ({SHARED_NETWORK}; free, and stays)"
"""What a plan calls the network where it is not there yet."""

ALONE = (
    "one control node: while it is away training goes on, but no node can join or be replaced "
    "until its group has started another one and etcd is back, from its disk or else from the "
    "newest snapshot in the bucket: some minutes, or as long as its zone is away"
)
"""The promise of `--control 1`, which a plan states."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What the account offers."""

    types: tuple[InstanceType, ...]
    """Types of the workers, best first."""
    zones: tuple[str, ...]
    """Zones of the workers."""
    price: float
    """US dollars an hour for the first type in its cheapest zone, of unlike types for the cheapest;
    0 if not known.
    """
    estimate: Estimate
    """Of unlike types, as if all nodes were of the dearest."""
    resources: tuple[str, ...]
    """What the stack consists of, for people."""
    warnings: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()
    """What would keep nodes from working at all, so that all money for them would be lost."""
    options: tuple[Option, ...] = ()
    """What the types were chosen from, the choice first; empty if they were named."""
    ranking: tuple[ZoneOffer, ...] = ()
    """The zones, best first, if workers are packed into one of them."""
    prices_of: str = ""
    """Date of the on-demand prices."""
    reservations: tuple[Reservation, ...] = ()
    """Where workers are launched first."""

    @property
    def speeds(self) -> Mapping[str, float]:
        """How much a node of each type is expected to compute, as a multiple of the first.

        Empty: they are alike, or it is not known.
        """
        return speeds.relative(names_of(self.types))


def survey(
    aws: Aws,
    job: JobSpec,
    requirement: Requirement = ANY_TYPE,
    *,
    placed: bool = False,
    known: JobSpec | None = None,
    disk: int | None = None,
    key: str = "",
    bucket: str = "",
) -> Survey:
    """Survey the region for a job, with the `known` one of its cluster if that is up.

    A job without instance types takes the cheapest in quota that meet the requirement. `placed`:
    its workers are to be in a cluster placement group. `disk`: size of their root disk in GiB.
    `key`: the KMS key of the user's own. `bucket`: a bucket of theirs.

    Raises `UsageError` and `EnvironmentFailure` for what the region cannot offer.
    """
    partitions.check(aws.region, job.capacity.max_cost)
    asked, job = job.capacity.reservations, reservations.resolved(aws, job)
    kinds, options, (fatal, short) = _types(aws, job, requirement, known)
    _check_container(job, kinds)
    network = existing_vpc.look(aws, job.vpc, job.subnets) if job.vpc else None
    its_zones, for_workers = _zones(aws, job, names_of(kinds), network)
    for_workers = reservations.within(job.capacity, for_workers)
    ranking = _ranking(aws, job, for_workers, names_of(kinds))
    interfaces = len(choose_interfaces([kind.network for kind in kinds]))
    listed = PriceList(aws)
    prices = _prices(aws, kinds, [each.name for each in ranking[:1]] or for_workers, listed)
    addresses = _addresses(job, interfaces, network, its_zones)
    nat_gateways = existing_vpc.gateways(interfaces, job.vpc)
    private, shared = interfaces > 1 and network is None, None
    blocked = public_access.mode(aws) if known is None else public_access.OFF
    if known is None:
        shared, vpcs = _own_network(aws, network, blocked, private=private)
        fatal += network_quotas.shortages(aws, vpcs, nat_gateways, RULES_EACH)
    _refuse(fatal)
    told, unfit = given_parts.look(aws, job, network, bucket, key) if known is None else ((), ())
    keyed, locked = _of_keys(aws, job, known, key, bucket)
    size = _disk_size(aws, job, kinds[0].gpus, disk) if known is None else known.disk_gib
    if network is not None:
        unfit = (*unfit, *existing_vpc.obstacles(network, its_zones, interfaces, job.demands))
    return Survey(
        types=kinds,
        zones=for_workers,
        price=min(prices.values()),
        estimate=_estimate(job, prices, listed, nat_gateways, addresses, size),
        resources=(
            *_stack(aws, job, len(its_zones), private=private, placed=placed),
            *(() if private or network or shared else (SHARED_NETWORK_MADE,)),
        ),
        warnings=(
            *short,
            *((ALONE,) if len(members_of(job)) == 1 else ()),
            *told,
            *_of_network(job, network, its_zones, known),
            *_of_shared_network(job, shared, its_zones),
            *public_access.warnings(blocked, public=addresses[1] > 0),
            *keyed,
            *reservations.offered(aws, replace(job, instance_types=names_of(kinds)), asked),
            *_of_spreading(job, kinds, len(for_workers)),
            *partitions.about_prices(aws.region),
        ),
        obstacles=(*locked, *unfit),
        options=options,
        ranking=ranking,
        prices_of=listed.date,
        reservations=job.capacity.reservations,
    )


def _own_network(
    aws: Aws, network: Network | None, blocked: str, *, private: bool
) -> tuple[SharedNetwork | None, int]:
    """Return the network that clusters share, and how many networks have to be made.

    None for the first, unless a new cluster is to be in it and it is there.
    """
    if network is not None:
        return None, 0
    public_access.check_own_network(blocked)
    shared = None if private else shared_network.look(aws)
    return shared, int(shared is None)


def _disk_size(aws: Aws, job: JobSpec, gpus: int, wanted: int | None) -> int:
    image = find_workers_image(aws, gpus, job.demands.worker_image)
    return find_root_disk(aws, image, wanted).gib


def _of_spreading(job: JobSpec, kinds: Sequence[InstanceType], zones: int) -> Iterator[str]:
    """Yield what many zones cost."""
    if job.capacity.zones == "spread":
        efa = any(kind.network.efa_interfaces for kind in kinds)
        yield from zone_traffic.warnings(job.settings.max_nodes, zones, efa=efa)


def _of_keys(
    aws: Aws, job: JobSpec, known: JobSpec | None, key: str, bucket: str
) -> tuple[list[str], list[str]]:
    """Return what is to be known of keys that encrypt, and why nodes could not work with them."""
    warning, obstacle = ("", "") if known is not None else disk_key.look(aws, key)
    told = [*encryption_key.data_warnings(aws, job, key), warning]
    of_bucket = encryption_key.bucket_obstacles(aws, bucket, job.cluster, key) if bucket else ()
    return [*filter(None, told)], [*filter(None, (obstacle, *of_bucket))]


def _stack(aws: Aws, job: JobSpec, zones: int, *, private: bool, placed: bool) -> tuple[str, ...]:
    """Return what the stack consists of, by the conditions of its template."""
    demands = job.demands
    conditions = {
        "DataKeyed": bool(demands.data_keys) and not demands.worker_profile,
        "MakesControl": not demands.control_profile,
        "MakesGroup": not demands.security_group,
        "MakesWorkers": not demands.worker_profile,
        "Moving": job.regions is not None and not demands.control_profile,
        "Placed": placed,
        "Recorded": any(session_preferences.parameters(aws, {}).values())
        and not (demands.worker_profile and demands.control_profile),
        "Three": len(members_of(job)) > 1,
    }
    return cloudformation.summary(zones, conditions, private=private)


def _refuse(shortages: Sequence[str]) -> None:
    """Raise `EnvironmentFailure` that lists all quotas which allow too little."""
    if len(shortages) == 1:
        raise EnvironmentFailure(shortages[0])
    if shortages:
        raise EnvironmentFailure("quotas allow too little:\n- " + "\n- ".join(shortages))


def demand(job: JobSpec) -> NodeDemand:
    """Return the fewest workers, and the most that are spot and that may be bought on demand."""
    low, high = job.settings.min_nodes, job.settings.max_nodes
    bought = job.capacity
    low = max(0, low - bought.reserved)  # a reservation has its quota already
    on_demand = max(0, bought.base - bought.reserved)
    if not on_demand and bought.on_demand == "fallback":
        on_demand = low
    return NodeDemand(low, max(0, high - bought.base), on_demand)


def _types(
    aws: Aws, job: JobSpec, requirement: Requirement, known: JobSpec | None
) -> tuple[tuple[InstanceType, ...], tuple[Option, ...], tuple[list[str], list[str]]]:
    """Return the workers' types, what they were chosen from, and the quotas' shortages.

    The shortages are two lists: those that keep the job from running, and others.
    """
    allowed, options = Quotas(aws, job.cluster), tuple[Option, ...]()
    if job.instance_types:
        kinds = _named(aws, job, requirement)
    else:
        nodes = demand(job)
        nodes = replace(nodes, spot=min(nodes.least, nodes.spot))
        options = type_selection.survey(aws, requirement, nodes, allowed.told)
        kinds = type_selection.best(options, requirement, aws.region).types
    # Nodes of the cluster's present types train together with new ones for a while.
    present = instance_types.describe(aws, known.instance_types) if known is not None else ()
    instance_types.check_alike((*present, *kinds), unlike=job.mixes)
    fatal, told = _shortages(aws, allowed, kinds, job, known)
    if allowed.unknown:
        told.append(f"the quotas are not known: {allowed.unknown}")
    return kinds, options, (fatal, told)


def _named(aws: Aws, job: JobSpec, requirement: Requirement) -> tuple[InstanceType, ...]:
    """Return the types that the job names. Raises `UsageError` for those that do not fit."""
    kinds = instance_types.describe(aws, job.instance_types)
    instance_types.check_fit(kinds)
    instance_types.check_spot(kinds, job.capacity, job.settings.max_nodes)
    if str(requirement):
        type_selection.check(kinds, requirement)
    return _by_use(aws, kinds) if job.mixes else kinds


def _by_use(aws: Aws, kinds: tuple[InstanceType, ...]) -> tuple[InstanceType, ...]:
    """Return unlike types by what a step costs on them, the cheapest first, where that is known."""
    names = names_of(kinds)
    its = speeds.relative(names)
    usd = offers.spot_prices(aws, names) if its else {}
    if not its or not all(usd.get(name) for name in names):
        return kinds
    return tuple(sorted(kinds, key=lambda kind: min(usd[kind.name].values()) / its[kind.name]))


def names_of(kinds: tuple[InstanceType, ...]) -> tuple[str, ...]:
    """Return the types' names."""
    return tuple(kind.name for kind in kinds)


def _check_container(job: JobSpec, kinds: tuple[InstanceType, ...]) -> None:
    """Refuse a container on types without docker: every node would fail, and be paid for."""
    for kind in kinds:
        if job.container and not kind.gpus and not job.demands.worker_image:
            raise UsageError(
                f"--image {job.container}: nodes of {kind.name} have no docker: use types with "
                "GPUs, whose machine image has it, or remove --image"
            )


def _shortages(
    aws: Aws,
    allowed: Quotas,
    kinds: tuple[InstanceType, ...],
    job: JobSpec,
    known: JobSpec | None,
) -> tuple[list[str], list[str]]:
    """Return the shortages that keep the job from running, and those that do not.

    The latter leave it fewer workers than `--max`.
    """
    nodes, fatal, told = demand(job), [], []
    spot, on_demand = found = quotas.shares(kinds, allowed.told, nodes)
    if refusal := quotas.refusal(found, nodes):
        fatal.append(f"too few nodes for --min {nodes.least}: {refusal}")
    elif spot.had < spot.wanted:
        told.append(spot.text)
    if on_demand.had < on_demand.wanted and not refusal:
        told.append(f"--on-demand: {on_demand.text}")
    if known is None and (short := _controls(aws, allowed, job)):
        fatal.append(f"too few control nodes: {short}")
    return fatal, told


def _controls(aws: Aws, allowed: Quotas, job: JobSpec) -> str:
    """Return why the quota allows too few control nodes; "" if it allows enough."""
    control, wanted = instance_types.control(aws, job.control_type), len(members_of(job))
    left = allowed.told(control.name, spot=False)
    if left is None or left.instances(control) >= wanted:
        return ""
    return left.describe(control, wanted, quotas.instead(left, control))


def _zones(
    aws: Aws, job: JobSpec, names: tuple[str, ...], network: Network | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return all zones of the cluster, and those for workers."""
    control, controls = job.control_type, len(members_of(job))
    offered: zones.Offers = offers.zones(aws, (*names, control))
    within = offered
    if network is not None:
        within = existing_vpc.within(network, offered, names, control, controls)
    chosen = zones.choose(within, names, control, aws.region, controls)
    return chosen, zones.with_workers(offered, chosen, names)


def _of_network(
    job: JobSpec,
    network: Network | None,
    its_zones: tuple[str, ...],
    known: JobSpec | None,
) -> Iterator[str]:
    """Yield the warnings about a network of the user."""
    if network is not None:
        yield from existing_vpc.warnings(network, its_zones)
        if known is None:
            yield from existing_vpc.shortages(
                network.of(its_zones),
                job.settings.max_nodes,
                packed=job.capacity.zones == "pack",
                controls=len(members_of(job)),
            )


def _of_shared_network(
    job: JobSpec, shared: SharedNetwork | None, its_zones: tuple[str, ...]
) -> Iterator[str]:
    """Yield where other clusters have left too few addresses in the network that all share."""
    if shared is None:
        return
    for subnet in shared.of([zone for zone in its_zones if zone in shared.zones]):
        if subnet.free < job.settings.max_nodes + 2:
            yield (
                f"{SHARED_NETWORK}, the network that clusters share, has only {subnet.free} free "
                f"addresses in {subnet.zone}: end another cluster, or name a network of your own "
                "with --vpc and --subnets"
            )


def _estimate(
    job: JobSpec,
    prices: Mapping[str, float],
    listed: PriceList,
    nat_gateways: int,
    addresses: tuple[int, int],
    disk_gib: int,
) -> Estimate:
    worker = max(prices, key=lambda name: prices[name])
    usual = estimate(
        nodes=(job.settings.min_nodes, job.settings.max_nodes),
        worker=worker,
        worker_usd=prices[worker],
        control=job.control_type,
        control_usd=listed.on_demand(job.control_type),
        controls=len(members_of(job)),
        nat_gateways=nat_gateways,
        addresses=addresses,
        disk_gib=disk_gib,
    )
    bought, usd = job.capacity, listed.on_demand(worker)
    if bought.reserved:
        paid = len(bought.paid) == len(bought.reservations)
        note = "reserved, paid anyway" if paid else "reserved, on demand"
        usual = _with_first(usual, bought.reserved, 0.0 if paid else usd, note)
    further = bought.base - bought.reserved
    return _with_first(usual, further, usd, "on demand") if further > 0 else usual


def _with_first(usual: Estimate, count: int, usd: float, note: str) -> Estimate:
    """Split the workers into so many that come first, and spot ones."""
    workers, *others = usual.lines
    low, high = min(count, workers.low), min(count, workers.high)
    bought = Line(workers.what, low, high, usd, note)
    spot = replace(workers, low=workers.low - low, high=workers.high - high)
    return Estimate((*((spot,) if spot.high else ()), bought, *others))


def _addresses(
    job: JobSpec, interfaces: int, network: Network | None, chosen: tuple[str, ...]
) -> tuple[int, int]:
    """Return the numbers of public addresses at --min and --max.

    AWS gives none to instances with several network cards, which use a NAT gateway.
    """
    controls = len(members_of(job))
    if network is None:
        fixed, each = controls + int(interfaces > 1), int(interfaces <= 1)
    else:
        subnets = network.of(chosen)
        fixed = sum(subnet.public for subnet in subnets[:controls])
        each = int(interfaces <= 1 and any(subnet.public for subnet in subnets))
    return fixed + job.settings.min_nodes * each, fixed + job.settings.max_nodes * each


def _ranking(
    aws: Aws, job: JobSpec, names: tuple[str, ...], types: tuple[str, ...]
) -> tuple[ZoneOffer, ...]:
    """Return the zones, best first, if workers are packed into one of them."""
    if job.capacity.zones != "pack":
        return ()
    zones = Zones(aws)
    return ranked(zones.offers(zones.named(names), types, job.settings.max_nodes))


def _prices(
    aws: Aws, kinds: tuple[InstanceType, ...], zones: Sequence[str], listed: PriceList
) -> Mapping[str, float]:
    """Return the price of the first type, or of each of unlike ones."""
    types = names_of(kinds)
    priced = types if speeds.relative(types) else types[:1]
    return {type: _price(aws, type, zones, listed) for type in priced}


def _price(aws: Aws, type: str, zones: Sequence[str], listed: PriceList) -> float:
    found = offers.spot_prices(aws, [type]).get(type, {})
    prices = [price for zone, price in found.items() if zone in zones]
    return min(prices) if prices else listed.on_demand(type)
