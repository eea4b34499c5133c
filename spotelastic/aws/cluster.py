"""A cluster in an AWS account: create, find, delete.

`create` goes in this order, so that whatever boots finds what it reads: the bucket with the code
and the job; the stack (network, roles, queue, and the control nodes, which boot as soon as their
groups exist); the worker groups. `teardown.py` goes the other way. Both may be run again at any
point.
"""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from spotelastic.aws import (
    account,
    autoscaling,
    certificates,
    environment,
    names,
    networks,
    offers,
    provisions,
    rehearsal,
    stack,
    teardown,
    types,
    workers,
    zones,
)
from spotelastic.aws import secrets as user_secrets
from spotelastic.aws.clients import Aws, Rejected, calling
from spotelastic.aws.identity import CLUSTER
from spotelastic.aws.names import CLIENT_PORT, MEMBERS, Names
from spotelastic.aws.objects import CURVE, EVENTS, JOB, REPORT, STATUS, STOPPING, USAGE, Objects
from spotelastic.aws.provisions import Release
from spotelastic.aws.template import boot_script
from spotelastic.aws.types import InstanceType
from spotelastic.clock import wall
from spotelastic.errors import SpotelasticError, UsageError
from spotelastic.model.job import Capacity, Environment, JobSpec, Settings

AMAZON_LINUX = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
DEEP_LEARNING = (
    "/aws/service/deeplearning/ami/x86_64/"
    "base-oss-nvidia-driver-gpu-amazon-linux-2023/latest/ami-id"
)

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

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Request:
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
    """Name of the run; the cluster's by default."""
    network: str = "10.64.0.0/12"
    """Where the cluster's own network is taken from."""
    vpc: str = ""
    """A network of the user's to be used instead, and"""
    subnets: tuple[str, ...] = ()
    """those of its subnets that nodes may be in, one a zone."""
    control_type: str = "t3.small"
    etcd: Release | None = None
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


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that exists, as everybody with its account's credentials can find it."""

    aws: Aws
    spec: JobSpec
    bucket: str

    @property
    def name(self) -> str:
        return self.spec.cluster

    @property
    def objects(self) -> Objects:
        return Objects(self.aws, self.bucket, self.name)


def create(request: Request, say: Say, aws: Aws | None = None) -> Cluster:
    """Brings a cluster up and starts its job; returns when all instances are asked for.

    What is there already stays, and is changed where the request differs, so that an `up` that was
    interrupted anywhere can be run again. Raises `UsageError` and `EnvironmentFailure` before
    anything is created; when a new cluster fails later (also by `KeyboardInterrupt`), what had been
    created of it is deleted before the error is raised.
    """
    aws = aws or Aws()
    its = Names(request.name)
    known = stack.describe(aws, its.stack)
    if known is not None:
        _check_owner(known, request.name)
    plan = _plan(request, aws, known)
    if known is None:
        rehearsal.dry_run(
            aws,
            plan.image,
            request.instance_types[0],
            block=plan.parameters["Cidr"],
            vpc=plan.spec.vpc,
            subnet=next(iter(plan.spec.subnets), ""),
        )
        rehearsal.ensure_service_roles(aws)
    bucket = plan.bucket
    say(f"bucket {bucket}: shipping {_size(len(request.archive))} of code")
    try:
        return _bring_up(request, plan, aws, say, new=known is None)
    except BaseException:
        if known is None:
            _undo(request.name, bucket, say, aws)
        raise


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{max(1, count // 2**10)} KiB"


def _check_owner(known: Mapping[str, Any], cluster: str) -> None:
    if stack.tags(known).get(CLUSTER) != cluster:
        raise UsageError(
            f"--name {cluster}: there is a stack {known['StackName']} that spotelastic has not "
            "made: choose another name, or delete it"
        )


@dataclass(frozen=True, slots=True)
class _Plan:
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


def _plan(request: Request, aws: Aws, known: Mapping[str, Any] | None) -> _Plan:
    its = Names(request.name)
    kinds = types.describe(aws, request.instance_types)
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
    image = request.image or _image(aws, AMAZON_LINUX if kind.gpus == 0 else DEEP_LEARNING)
    shared = account.default_bucket(aws)
    bucket = _bucket(request, known) or shared
    if bucket != shared:
        account.check_bucket(aws, bucket)
    workers_per_node = request.settings.workers or kind.workers
    settings = replace(request.settings, workers=workers_per_node)
    etcd = tuple(f"{host}:{CLIENT_PORT}" for host in network["MemberAddresses"].split(","))
    spec = JobSpec(
        cluster=request.name,
        run=request.run or request.name,
        script=request.script,
        args=request.args,
        code=request.code,
        settings=settings,
        storage=f"s3://{bucket}/{request.run or request.name}/checkpoints",
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
    )
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
    return _Plan(bucket, bucket != shared, spec, parameters, image, worker_zones, cards)


def _placed(
    request: Request,
    worker_zones: tuple[str, ...],
    kinds: Sequence[InstanceType],
    known: Mapping[str, Any] | None,
) -> str:
    """The zone of the placement group; "" for none. A cluster stays in it, or out of it."""
    zone = "" if known is None else stack.parameters(known).get("PlacedIn", "")
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
    return next(iter(_packed(request, worker_zones)), "")


def _bucket(request: Request, known: Mapping[str, Any] | None) -> str:
    """The one of a cluster that is there already, or of the user's; "" for the account's own."""
    its = stack.parameters(known)["Bucket"] if known is not None else ""
    if request.bucket and its not in ("", request.bucket):
        raise UsageError(
            f"--bucket {request.bucket}: {request.name} has its objects in {its}: take it down "
            "first, or choose another --name"
        )
    return its or request.bucket


def _network(
    aws: Aws,
    request: Request,
    offered: zones.Offers,
    known: Mapping[str, Any] | None,
    cards: int,
) -> dict[str, str]:
    """Of a cluster that is there already it stays as it is."""
    if known is not None:
        given = stack.parameters(known)
        networks.check_kept(request.name, zones.given(given["GivenSubnets"]), request.subnets)
        return {name: given[name] for name in _NETWORK}
    types, control = request.instance_types, request.control_type
    subnets: tuple[str, ...] = ()
    if request.vpc:
        its = networks.look(aws, request.vpc, request.subnets)
        offered = networks.within(its, offered, types, control)
        chosen = zones.choose(offered, types, control, aws.region)
        subnets = tuple(subnet.id for subnet in its.of(chosen))
        members = networks.member_addresses(aws, its.of(chosen[: len(MEMBERS)]))
        free = names.Addresses("", (), (), members)
    else:
        chosen = zones.choose(offered, types, control, aws.region)
        # All nodes may be in one zone, and a node has an address per network card.
        size = names.block_size(request.settings.max_nodes * max(1, cards))
        free = names.addresses(request.network, _networks(aws), len(chosen), size)
    lists = (subnets, free.subnets, free.private, chosen)
    values = (request.vpc, *map(zones.padded, lists), free.block, ",".join(free.members))
    return dict(zip(_NETWORK, values, strict=True))


def _bring_up(request: Request, plan: _Plan, aws: Aws, say: Say, *, new: bool) -> Cluster:
    its = Names(request.name)
    if not plan.own_bucket:
        account.ensure_bucket(aws, plan.bucket)
    service_role = account.ensure_service_role(aws)
    cluster = Cluster(aws, replace(plan.spec, service_role=service_role), plan.bucket)
    objects = cluster.objects
    if not new and objects.has(STOPPING):
        raise UsageError(
            f"the cluster {request.name} is being taken down: end that first with "
            f"`spotelastic down {request.name}`, then run `spotelastic up` again"
        )
    cluster = _ship(cluster, request, new=new)
    provisions.ship(objects, request.etcd, say)
    if new and Objects(aws, plan.bucket, plan.spec.run).has("checkpoints/LATEST"):
        say(f"going on from the checkpoints of the run {plan.spec.run}")
    say(f"stack {its.stack}: network, queue, {len(MEMBERS)} control nodes")
    outputs = stack.ensure(aws, its.stack, {**plan.parameters, "ServiceRole": service_role}, say)
    size = plan.spec.settings.max_nodes
    purchase = "spot" if request.spot else "on-demand"
    group = plan.spec.worker_group
    instances = "instance" if size == 1 else "instances"
    say(f"workers {group}: {size} {purchase} {instances} of {request.instance_types[0]}")
    workers.ensure(
        aws,
        workers.Workers(
            names=its,
            types=request.instance_types,
            size=size,
            spot=request.spot,
            image=plan.image,
            bucket=plan.bucket,
            profile=outputs["WorkerProfile"],
            security_group=outputs["MemberGroup"],
            subnets=_subnets(plan, outputs, plan.worker_zones),
            first=_subnets(plan, outputs, _first(request, plan)),
            efa_cards=plan.efa_cards,
            public=None if plan.spec.vpc else True,
            placement_group=outputs["Placement"] if plan.parameters["PlacedIn"] else "",
        ),
    )
    return cluster


def _first(request: Request, plan: _Plan) -> tuple[str, ...]:
    """The zone that workers are packed into to begin with; none where they are spread."""
    return () if request.capacity.zones == "spread" else _packed(request, plan.worker_zones)


def _packed(request: Request, worker_zones: tuple[str, ...]) -> tuple[str, ...]:
    """The best of the zones."""
    best = [zone for zone in request.zones if zone in worker_zones]
    return (*best, *worker_zones)[:1]


def _subnets(plan: _Plan, outputs: Mapping[str, str], zones: Sequence[str]) -> tuple[str, ...]:
    """Those of the workers in these zones."""
    pairs = zip(plan.parameters["Zones"].split(","), outputs["Subnets"].split(","), strict=True)
    return tuple(subnet for zone, subnet in pairs if zone in zones)


def _undo(name: str, bucket: str, say: Say, aws: Aws) -> None:
    say(f"creating {name} did not succeed: deleting what there is of it")
    try:
        teardown.delete(name, bucket=bucket, say=say, aws=aws)
    except SpotelasticError as error:
        say(f"not all of {name} could be deleted: {error}; run `spotelastic down {name}`")


def describe(cluster: Cluster, spec: JobSpec, archive: bytes = b"") -> None:
    """Gives the cluster's job another description, for nodes that come from now on.

    `archive` is its code, where that is another.
    """
    objects, code = cluster.objects, f"code/{spec.code}.tar.gz"
    if archive and not objects.has(code):
        objects.put(code, archive)
    if spec.environment is not None:
        environment.forget_failures(objects, spec.environment)
    settings = replace(spec.settings, code=spec.release)
    objects.put(JOB, msgspec.json.encode(replace(spec, settings=settings)))


def find(name: str, aws: Aws | None = None) -> Cluster | None:
    """The cluster of that name; None where there is none."""
    aws = aws or Aws()
    if stack.describe(aws, Names(name).stack) is None:
        return None
    bucket = teardown.bucket_of(aws, Names(name))
    spec = Objects(aws, bucket, name).job()
    return None if spec is None else Cluster(aws, spec, bucket)


def all_names(aws: Aws | None = None) -> tuple[str, ...]:
    """The names of all clusters of the account and region, also of what is left of one."""
    aws = aws or Aws()
    return tuple(sorted({*stack.clusters(aws), *autoscaling.clusters(aws)}))


delete = teardown.delete


# -- create --------------------------------------------------------------------------------------


def _data(aws: Aws, bucket: str, request: Request) -> dict[str, str]:
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


def _ship(cluster: Cluster, request: Request, *, new: bool) -> Cluster:
    """Secrets, code and job: what an instance reads when it boots."""
    aws, spec, objects = cluster.aws, cluster.spec, cluster.objects
    its = Names(spec.cluster)
    _ensure_token(aws, its)
    hosts = (endpoint.rpartition(":")[0] for endpoint in spec.etcd)
    addresses = dict(zip(spec.etcd_members, hosts, strict=True))
    certificates.ensure(aws, its, addresses, datetime.now(UTC))
    code = f"code/{spec.code}.tar.gz"
    if not objects.has(code):
        objects.put(code, request.archive)
    if spec.environment is not None:
        environment.forget_failures(objects, spec.environment)
    spec = replace(spec, secrets=user_secrets.put(aws, spec.cluster, request.secrets))
    spec = replace(spec, settings=replace(spec.settings, code=spec.release))
    if new:
        # An earlier cluster of this name may have left its own account of things.
        for name in (STATUS, EVENTS, CURVE, REPORT, USAGE, STOPPING):
            objects.delete(name)
        objects.delete_all("etcd/")
    objects.put(JOB, msgspec.json.encode(spec))
    return replace(cluster, spec=spec)


def _ensure_token(aws: Aws, its: Names) -> None:
    try:
        with calling(f"store the secret {its.token}"):
            aws.ssm.put_parameter(
                Name=its.token,
                Description="What the nodes of one spotelastic cluster know each other by",
                Value=secrets.token_hex(32),
                Type="SecureString",
                Tags=[{"Key": CLUSTER, "Value": its.cluster}],
            )
    except Rejected as error:
        if error.code != "ParameterAlreadyExists":
            raise


def _offers(aws: Aws, request: Request) -> zones.Offers:
    wanted = {*request.instance_types, request.control_type}
    return offers.zones(aws, wanted)


def _networks(aws: Aws) -> tuple[str, ...]:
    with calling("list the networks in use"):
        pages = aws.ec2.get_paginator("describe_vpcs").paginate()
        return tuple(vpc["CidrBlock"] for page in pages for vpc in page["Vpcs"])


def _image(aws: Aws, parameter: str) -> str:
    with calling(f"find the machine image {parameter}"):
        return str(aws.ssm.get_parameter(Name=parameter)["Parameter"]["Value"])
