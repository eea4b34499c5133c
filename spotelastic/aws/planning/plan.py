"""What is asked for, and what it comes to in an account: looked up, and nothing made."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from spotelastic.aws.artifacts.boot_artifacts import BootRelease
from spotelastic.aws.base import account, names
from spotelastic.aws.base.clients import Aws, Rejected, calling
from spotelastic.aws.base.infra_files import boot_script
from spotelastic.aws.base.names import CLIENT_PORT, MEMBERS, Names
from spotelastic.aws.compute import instance_types as types
from spotelastic.aws.compute import offers, worker_groups
from spotelastic.aws.compute.instance_types import InstanceType
from spotelastic.aws.network import cloudformation, existing_vpc, zones
from spotelastic.clock import wall
from spotelastic.errors import UsageError
from spotelastic.model.job import Capacity, Environment, JobSpec, Settings

AMAZON_LINUX = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
DEEP_LEARNING = tuple(
    f"/aws/service/deeplearning/ami/x86_64/{flavour}-amazon-linux-2023/latest/ami-id"
    for flavour in (
        "oss-nvidia-driver-gpu-pytorch-2.13",
        "oss-nvidia-driver-gpu-pytorch-2.10",
        "base-oss-nvidia-driver-gpu",
    )
)
"""The first that the region has. The last has drivers only: nodes install torch when they boot."""

PLACED_AND_SPREAD = (
    "--placement cluster puts all nodes into one zone, --zones spread into all: drop one of the two"
)
_NETWORK = (
    "GivenVpc",
    "GivenSubnets",
    "SubnetCidrs",
    "PrivateCidrs",
    "Zones",
    "Cidr",
    "MemberAddresses",
)
"""The stack's parameters that never change."""


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """What `up` asks for."""

    name: str
    script: str
    """Path within the archive."""
    args: tuple[str, ...]
    code: str
    """SHA-256 of the archive."""
    archive: bytes
    settings: Settings
    """`workers` 0: one per GPU of the instance type (one without GPUs); `code` is filled in."""
    instance_types: tuple[str, ...]
    spot: bool = True
    capacity: Capacity = Capacity()
    zones: tuple[str, ...] = ()
    """Where workers are to be, the best zone first; by default in the order of their names."""
    placement: Literal["", "cluster"] = ""
    """cluster: all workers in a placement group, and so in the first of `zones`."""
    run: str = ""
    """Name of the run; by default the one that the cluster has, or its own."""
    network: str = "10.64.0.0/12"
    """Where the cluster's own network is taken from."""
    vpc: str = ""
    """A network of the user's to be used instead, and"""
    subnets: tuple[str, ...] = ()
    """those of its subnets that nodes may be in, one a zone."""
    control_type: str = names.CONTROL_TYPE
    etcd: BootRelease | None = None
    """What control nodes install; by default they have one."""
    container: str = ""
    """The container image that workers run in; by default in none."""
    image: str = ""
    """Image of the workers; by default a Deep Learning one for GPUs, else Amazon Linux."""
    bucket: str = ""
    """A bucket of the user's; by default the one that all clusters of the account share."""
    environment: Environment | None = None
    setup: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    """By name of the variable."""
    read: tuple[str, ...] = ()
    """bucket/prefix of what workers may read besides."""
    write: tuple[str, ...] = ()
    linger: float | None = 600.0
    """Seconds that the cluster stays after its job has ended; None: until it is taken down."""
    folder: str = ""
    """Where the script lies, on the machine that asks."""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What a request comes to in this account: everything that is looked up, nothing made."""

    bucket: str
    own_bucket: bool
    """Whether it is one of the user's, which is used as it is."""
    spec: JobSpec
    parameters: dict[str, str]
    """Of the stack."""
    image: str
    worker_zones: tuple[str, ...]
    efa_cards: int


def plan_of(request: ClusterSpec, aws: Aws, known: Mapping[str, Any] | None) -> LaunchPlan:
    kinds = types.describe(aws, request.instance_types)
    if not request.image:
        types.check_fit(kinds)
    kind, cards = types.check_alike(kinds), types.efa_cards(kinds)
    offered = _offers(aws, request)
    network = _network(aws, request, offered, known, cards)
    its_zones = zones.given(network["Zones"])
    worker_zones = zones.with_workers(offered, its_zones, request.instance_types)
    placed = _placed(request, worker_zones, kinds, known)
    worker_zones = tuple(zone for zone in worker_zones if placed in ("", zone))
    if not worker_zones:
        raise UsageError(
            f"--instance-types {','.join(request.instance_types)}: none of the zones of the "
            f"cluster ({', '.join(its_zones)}) offers them; take the cluster down first"
        )
    # Nodes that train already have theirs: another Python or torch beside it is refused.
    image = request.image or (
        worker_groups.image(aws, Names(request.name)) if known is not None else ""
    )
    image = image or _image(aws, *(DEEP_LEARNING if kind.gpus else (AMAZON_LINUX,)))
    shared = account.default_bucket(aws)
    bucket = _bucket(request, known) or shared
    account.check_bucket(aws, bucket)
    spec = _spec(request, kind, bucket, _run(request, known), network, cards)
    parameters = {
        "Cluster": request.name,
        "Run": spec.run,
        "Bucket": bucket,
        **_data(aws, bucket, request),
        **network,
        "PlacedIn": placed,
        "PrivateWorkers": "yes" if cards > 1 else "no",
        "ControlImage": _image(aws, AMAZON_LINUX),
        "ControlType": request.control_type,
        "BootScript": boot_script(),
    }
    return LaunchPlan(bucket, bucket != shared, spec, parameters, image, worker_zones, cards)


def _spec(
    request: ClusterSpec,
    kind: InstanceType,
    bucket: str,
    run: str,
    network: Mapping[str, str],
    cards: int,
) -> JobSpec:
    its = Names(request.name)
    etcd = tuple(f"{host}:{CLIENT_PORT}" for host in network["MemberAddresses"].split(","))
    return JobSpec(
        cluster=request.name,
        run=run,
        script=request.script,
        args=request.args,
        code=request.code,
        settings=replace(request.settings, workers=request.settings.workers or kind.workers),
        storage=f"s3://{bucket}/{run}/checkpoints",
        etcd=etcd,
        etcd_members=MEMBERS,
        etcd_version=request.etcd.version if request.etcd else "",
        container=request.container,
        log_group=its.log_group,
        queue=its.queue,
        worker_group=its.workers if request.spot else its.on_demand,
        instance_types=request.instance_types,
        created_at=wall(),
        capacity=request.capacity,
        environment=request.environment,
        setup=request.setup,
        env=request.env,
        linger=request.linger,
        vpc=network["GivenVpc"],
        subnets=zones.given(network["GivenSubnets"]),
        nat_gateways=existing_vpc.gateways(cards, network["GivenVpc"]),
        read=request.read,
        write=request.write,
        folder=request.folder,
    )


def _placed(
    request: ClusterSpec,
    worker_zones: tuple[str, ...],
    kinds: Sequence[InstanceType],
    known: Mapping[str, Any] | None,
) -> str:
    """The zone of the placement group; "" for none. A cluster stays in it, or out of it."""
    zone = "" if known is None else cloudformation.parameters(known).get("PlacedIn", "")
    if zone or not request.placement:
        return zone
    if known is not None:
        raise UsageError(
            f"--placement {request.placement}: {request.name} was made without: take it down "
            "first, or choose another --name"
        )
    if request.capacity.zones == "spread":
        raise UsageError(PLACED_AND_SPREAD)
    types.check_placement(kinds, request.placement)
    return next(iter(packed(request, worker_zones)), "")


def _run(request: ClusterSpec, known: Mapping[str, Any] | None) -> str:
    """The one that a cluster which is there already trains: nodes of two runs know nothing of each
    other, and may not write each other's checkpoints."""
    its = cloudformation.parameters(known)["Run"] if known is not None else ""
    return its or request.run or request.name


def _bucket(request: ClusterSpec, known: Mapping[str, Any] | None) -> str:
    """The one of a cluster that is there already, or of the user's; "" for the account's own."""
    its = cloudformation.parameters(known)["Bucket"] if known is not None else ""
    if request.bucket and its not in ("", request.bucket):
        raise UsageError(
            f"--bucket {request.bucket}: {request.name} has its objects in {its}: take it down "
            "first, or choose another --name"
        )
    return its or request.bucket


def _network(
    aws: Aws,
    request: ClusterSpec,
    offered: zones.Offers,
    known: Mapping[str, Any] | None,
    cards: int,
) -> dict[str, str]:
    """Of a cluster that is there already it stays as it is."""
    if known is not None:
        given = cloudformation.parameters(known)
        existing_vpc.check_kept(request.name, zones.given(given["GivenSubnets"]), request.subnets)
        return {name: given[name] for name in _NETWORK}
    types, control = request.instance_types, request.control_type
    subnets: tuple[str, ...] = ()
    if request.vpc:
        its = existing_vpc.look(aws, request.vpc, request.subnets)
        offered = existing_vpc.within(its, offered, types, control)
        chosen = zones.choose(offered, types, control, aws.region)
        subnets = tuple(subnet.id for subnet in its.of(chosen))
        members = existing_vpc.member_addresses(aws, its.of(chosen[: len(MEMBERS)]))
        free = names.Addresses("", (), (), members)
    else:
        chosen = zones.choose(offered, types, control, aws.region)
        # All nodes may be in one zone, and a node has an address per network card.
        size = names.block_size(request.settings.max_nodes * max(1, cards))
        free = names.addresses(request.network, _networks(aws), len(chosen), size)
    lists = (subnets, free.subnets, free.private, chosen)
    values = (request.vpc, *map(zones.padded, lists), free.block, ",".join(free.members))
    return dict(zip(_NETWORK, values, strict=True))


def packed(request: ClusterSpec, worker_zones: tuple[str, ...]) -> tuple[str, ...]:
    """The best of the zones."""
    best = [zone for zone in request.zones if zone in worker_zones]
    return (*best, *worker_zones)[:1]


def _data(aws: Aws, bucket: str, request: ClusterSpec) -> dict[str, str]:
    """What workers may reach besides, as the stack takes it.

    A folder of the cluster's own is always among it: a policy cannot be about nothing.
    """
    own = f"{bucket}/{request.name}/data/"

    def arns(places: Iterable[str]) -> str:
        return ",".join(sorted({f"arn:{aws.partition}:s3:::{place}" for place in places}))

    def objects(folders: Sequence[str]) -> str:
        """A folder's own name may be an object as well."""
        whole = (f"{folder.rstrip('/')}/*" for folder in (own, *folders))
        return arns((*whole, *(folder for folder in folders if not folder.endswith("/"))))

    folders = (*request.read, *request.write)
    prefixes = {pattern for folder in folders for pattern in _prefixes(folder.partition("/")[2])}
    return {
        "ReadObjects": objects(request.read),
        "WriteObjects": objects(request.write),
        "DataBuckets": arns(folder.partition("/")[0] for folder in folders) or objects(()),
        "DataPrefixes": ",".join(sorted(prefixes)) or zones.NONE,
    }


def _prefixes(folder: str) -> tuple[str, ...]:
    """Patterns of what names may be listed by, of a folder or of a whole bucket ("")."""
    if not folder:
        return ("*",)
    return (f"{folder}*",) if folder.endswith("/") else (folder, f"{folder}/*")


def _offers(aws: Aws, request: ClusterSpec) -> zones.Offers:
    wanted = {*request.instance_types, request.control_type}
    return offers.zones(aws, wanted)


def _networks(aws: Aws) -> tuple[str, ...]:
    with calling("list the networks in use"):
        pages = aws.ec2.get_paginator("describe_vpcs").paginate()
        return tuple(vpc["CidrBlock"] for page in pages for vpc in page["Vpcs"])


def _image(aws: Aws, parameter: str, *others: str) -> str:
    """The first of these that there is."""
    try:
        with calling(f"find the machine image {parameter}"):
            return str(aws.ssm.get_parameter(Name=parameter)["Parameter"]["Value"])
    except Rejected as error:
        if error.code != "ParameterNotFound" or not others:
            raise
    return _image(aws, *others)
