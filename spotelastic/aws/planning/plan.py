"""Turns a cluster's specification into a launch plan for an account; looks up, creates nothing."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from spotelastic.aws.artifacts.boot_artifacts import BootRelease
from spotelastic.aws.base import account, boot_variables, names
from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.infra_files import boot_script
from spotelastic.aws.base.names import CLIENT_PORT, MEMBERS, Names, members_of
from spotelastic.aws.base.partitions import partition_of
from spotelastic.aws.compute import instance_types, offers, worker_groups
from spotelastic.aws.compute.estimate import DISK_MIB_S
from spotelastic.aws.compute.images import (
    AMAZON_LINUX,
    RootDisk,
    find_root_disk,
    find_workers_image,
    first_image,
    given_image,
)
from spotelastic.aws.compute.instance_types import InstanceType
from spotelastic.aws.compute.network_interfaces import Interface, choose_interfaces
from spotelastic.aws.network import cloudformation, existing_vpc, shared_network, zones
from spotelastic.aws.network.shared_network import SharedNetwork
from spotelastic.aws.planning import encryption_key, given_parts, session_preferences
from spotelastic.clock import wall
from spotelastic.errors import UsageError
from spotelastic.model.job import JobSpec
from spotelastic.notifications.urls import topics

PLACED_AND_SPREAD = (
    "--placement cluster puts all nodes into one zone, --zones spread into all: remove one of them"
)
LONGEST_USER_DATA = 4096
"""Characters, in base64, that fit into a stack's parameter."""
AWAKE, ASLEEP = "1", "0"
"""Values of the stack's parameter `ControlNodes`."""


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """The cluster that `up` asks for: a job, and the zones and network that it is to have."""

    job: JobSpec
    """The job as the user wants it, on instance types that are chosen. `plan_of` adds what only the
    account tells. `run` may be empty: by default the one that the cluster has, or its name."""
    archive: bytes
    """The code, as the job's `code` names it."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Values by the name of the variable."""
    build_secrets: Mapping[str, str] = field(default_factory=dict)
    """The same, for the build of packages alone."""
    notify: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Where notifications go: URLs by names that are not secret."""
    zones: tuple[str, ...] = ()
    """Zones for workers, the best first; by default in the order of their names."""
    placement: Literal["", "cluster"] = ""
    """"cluster": all workers in a placement group, and so in the first of `zones`."""
    network: str = "10.64.0.0/12"
    """Pool of addresses from which networks are taken: the shared one, or the cluster's own."""
    bucket: str = ""
    """The user's own bucket; by default the one that all clusters of the account share."""
    disk: int | None = None
    """Size of a worker's root disk in GiB; by default as its image needs."""
    key: str = ""
    """The KMS key of the user's own, in any of its names; by default AWS's keys."""
    moved: bool = False
    """Whether the job was moved here: its bill and its curve are in the bucket already."""
    undone: bool = False
    """Whether that undoes a move, whose record in the bucket stays until that is over."""
    etcd: BootRelease | None = None
    """The etcd that control nodes install; by default they have one."""
    asleep: bool = False
    """Whether the cluster is to have no instances: its job is in another region."""
    proven: bool = True
    """Whether a cluster has worked in this account before. Otherwise workers come after the control
    nodes."""
    force: bool = False
    """Whether it is made although AWS says beforehand that it would refuse its launches."""

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.job.cluster


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What a specification means in this account: all look-ups done, nothing created."""

    bucket: str
    own_bucket: bool
    """Whether the bucket is the user's, which is used as it is."""
    spec: JobSpec
    parameters: dict[str, str]
    """Parameters of the stack."""
    image: str
    worker_zones: tuple[str, ...]
    interfaces: tuple[Interface, ...]
    """Network interfaces of a worker."""
    disk: RootDisk

    @property
    def shared(self) -> bool:
        """Whether the cluster is in the network that clusters share, which may not exist yet."""
        return shared_network.is_shared(self.parameters)


def plan_of(
    request: ClusterSpec,
    aws: Aws,
    known: Mapping[str, Any] | None,
    shared: SharedNetwork | None = None,
) -> LaunchPlan:
    """Return the launch plan. `shared` is the network that clusters share, if it was just made.

    Raises `UsageError` for what contradicts the account or the cluster.
    """
    job, before = request.job, cloudformation.parameters(known or {})
    kinds = instance_types.describe(aws, job.instance_types)
    instance_types.check_fit(kinds)
    kind = instance_types.check_alike(kinds, unlike=job.mixes)
    if known is None:
        instance_types.control(aws, job.control_type)
    instance_types.check_spot(kinds, job.capacity, job.settings.max_nodes)
    interfaces = choose_interfaces([each.network for each in kinds])
    offered = offers.zones(aws, {*job.instance_types, job.control_type})
    private = len(interfaces) > 1
    network = _network(aws, request, offered, known, private=private, shared=shared)
    its_zones = zones.given(network["Zones"])
    worker_zones = zones.with_workers(offered, its_zones, job.instance_types)
    placed = _placed(request, worker_zones, kinds, known)
    worker_zones = tuple(zone for zone in worker_zones if placed in ("", zone))
    worker_zones = job.capacity.kept_in(worker_zones)
    if not worker_zones:
        raise UsageError(
            f"--instance-types {','.join(job.instance_types)}: none of the zones of the "
            f"cluster ({', '.join(its_zones)}) offers them; take the cluster down first"
        )
    # Running nodes keep their image: another Python or torch in the same job is refused.
    its = worker_groups.image(aws, Names(request.name)) if known is not None else ""
    image = its or find_workers_image(aws, kind.gpus, job.demands.worker_image)
    _check_image(request, image)
    disk = _disk(aws, request, image, known)
    usual = account.default_bucket(aws)
    bucket = _bucket(request, before.get("Bucket", "")) or usual
    account.check_bucket(aws, bucket)
    # Nodes of two runs do not see each other, and must not write the same checkpoints.
    run = before.get("Run") or job.run or request.name
    spec = _spec(request, kinds, bucket, run, network, len(interfaces), disk)
    bound = account.boundary(aws, spec.demands.boundary)
    demands = replace(spec.demands, boundary=bound, key=_key(aws, request, known))
    spec = replace(spec, demands=demands)
    parameters = {
        "Cluster": request.name,
        "Run": run,
        "Bucket": bucket,
        **_data(aws, bucket, request),
        **_moving(aws, spec),
        **network,
        "ControlNodes": _control_nodes(request, known),
        "PlacedIn": placed,
        "PrivateWorkers": "yes" if private else "no",
        **_control_image(aws, spec.demands.control_image),
        "ControlType": spec.control_type,
        **given_parts.profile_parameters(aws, spec),
        "BootScript": _user_data(aws, spec, network),
        "Boundary": spec.demands.boundary,
        "Key": spec.demands.key,
        "DataKeys": ",".join(spec.demands.data_keys) or zones.NONE,
        **session_preferences.parameters(aws, before),
    }
    return LaunchPlan(
        bucket, bucket != usual, spec, parameters, image, worker_zones, interfaces, disk
    )


def _spec(
    request: ClusterSpec,
    kinds: Sequence[InstanceType],
    bucket: str,
    run: str,
    network: Mapping[str, str],
    interfaces: int,
    disk: RootDisk,
) -> JobSpec:
    """Return the job with what the account adds to it."""
    job, its = request.job, Names(request.name)
    etcd = tuple(f"{host}:{CLIENT_PORT}" for host in zones.given(network["MemberAddresses"]))
    return replace(
        job,
        run=run,
        settings=replace(
            job.settings, workers=job.settings.workers or min(each.workers for each in kinds)
        ),
        storage=f"s3://{bucket}/{run}/checkpoints",
        etcd=etcd,
        etcd_members=MEMBERS[: len(etcd)],
        etcd_version=request.etcd.version if request.etcd else "",
        log_group=its.log_group,
        queue=its.queue,
        worker_group=its.workers,
        created_at=wall(),
        # The user's, not the one that clusters share.
        vpc="" if shared_network.is_shared(network) else network["GivenVpc"],
        subnets=() if shared_network.is_shared(network) else zones.given(network["GivenSubnets"]),
        nat_gateways=existing_vpc.gateways(interfaces, network["GivenVpc"]),
        disk_gib=disk.gib,
        disk_mib_s=DISK_MIB_S,
        gpus=min(each.gpus for each in kinds),
    )


def _placed(
    request: ClusterSpec,
    worker_zones: tuple[str, ...],
    kinds: Sequence[InstanceType],
    known: Mapping[str, Any] | None,
) -> str:
    """Return the zone of the placement group; "" for none. A cluster never changes that."""
    zone = "" if known is None else cloudformation.parameters(known).get("PlacedIn", "")
    if zone or not request.placement:
        return zone
    if known is not None:
        _check_kept(request, "placement", request.placement, "", "was made without it")
    if request.job.capacity.zones == "spread":
        raise UsageError(PLACED_AND_SPREAD)
    instance_types.check_placement(kinds, request.placement)
    return next(iter(packed(request, worker_zones)), "")


def _disk(aws: Aws, request: ClusterSpec, image: str, known: Mapping[str, Any] | None) -> RootDisk:
    """Return the root disk of workers; that of an existing cluster stays."""
    its = None if known is None else worker_groups.root_disk(aws, Names(request.name))
    if its is None:
        return find_root_disk(aws, image, request.disk)
    _check_kept(request, "disk", request.disk, its.gib, f"was made with disks of {its.gib} GiB")
    return its


def _check_image(request: ClusterSpec, its: str) -> None:
    """Raise `UsageError` where a cluster with the image `its` is to have another one.

    What a parameter names now is for new clusters.
    """
    given = request.job.demands.worker_image
    if given.startswith("ami-"):
        why = f"has nodes of {its}, and all of a job need the same Python and torch"
        _check_kept(request, "worker-image", given, its, why)


def _check_kept(request: ClusterSpec, flag: str, wanted: object, its: object, what: str) -> None:
    """Raise `UsageError` where another one is wanted than the cluster was made with."""
    if wanted and wanted != its:
        raise UsageError(
            f"--{flag} {wanted}: {request.name} {what}: take it down first, or choose another "
            "--name"
        )


def _control_image(aws: Aws, given: str) -> dict[str, str]:
    """Return the image of control nodes as the stack's parameters."""
    if given:
        image, root = given_image(aws, "control-image", given)
    else:
        image, root = first_image(aws, AMAZON_LINUX), RootDisk().device
    return {"ControlImage": image, "ControlRoot": root}


def _user_data(aws: Aws, spec: JobSpec, network: Mapping[str, str]) -> str:
    """Return what nodes boot with. Raises `UsageError` if that becomes too long for AWS."""
    demands, encrypted = spec.demands, boot_variables.encryption(os.environ)
    if not demands.proxy and not demands.index_url:
        return boot_script(boot_variables.exported(encrypted))
    its = existing_vpc.look(aws, spec.vpc, spec.subnets) if spec.vpc else None
    subnets = () if its is None else its.subnets
    gateways = (subnet.endpoints for subnet in subnets)
    found = boot_variables.variables(
        demands,
        zones.given(network["MemberAddresses"]),
        [subnet.block for subnet in subnets],
        (its.endpoints if its else frozenset()) | frozenset.union(frozenset(), *gateways),
        aws.region,
        partition_of(aws.region).domain,
    )
    made = boot_script(boot_variables.exported(found | encrypted))
    if len(made) > LONGEST_USER_DATA:
        over = (len(made) - LONGEST_USER_DATA) * 3 // 4
        raise UsageError(f"--no-proxy: it is {over} characters too long for nodes' user data")
    return made


def _key(aws: Aws, request: ClusterSpec, known: Mapping[str, Any] | None) -> str:
    """Return the ARN of the user's key, "" for none; that of an existing cluster stays."""
    wanted = encryption_key.find_key(aws, request.key) if request.key else ""
    if known is None:
        return wanted
    its = cloudformation.parameters(known).get("Key", "")
    _check_kept(request, "kms-key", wanted, its, f"was made with {its or 'AWS keys'}")
    return its


def _bucket(request: ClusterSpec, its: str) -> str:
    """Return the bucket of an existing cluster, or the user's; "" for the shared one."""
    if its:
        _check_kept(request, "bucket", request.bucket, its, f"has its objects in {its}")
    return its or request.bucket


def _network(
    aws: Aws,
    request: ClusterSpec,
    offered: zones.Offers,
    known: Mapping[str, Any] | None,
    *,
    private: bool,
    shared: SharedNetwork | None,
) -> dict[str, str]:
    """Return the parameters of the network; those of an existing cluster stay."""
    if known is not None:
        before = cloudformation.parameters(known)
        # A shared network may have been removed and made again since the stack failed.
        unusable = known["StackStatus"] in cloudformation.UNUSABLE
        if not (unusable and shared_network.is_shared(before)):
            return _kept_network(request, before)
    job, controls = request.job, len(members_of(request.job))
    wanted = job.instance_types, job.control_type, aws.region, controls
    if job.vpc:
        its = existing_vpc.look(aws, job.vpc, job.subnets)
        offered = existing_vpc.within(its, offered, job.instance_types, job.control_type, controls)
        chosen = zones.choose(offered, *wanted)
        subnets = its.of(chosen)
        members = existing_vpc.member_addresses(aws, subnets[:controls], request.name)
        return {
            **zones.NETWORK,
            "GivenVpc": job.vpc,
            "GivenSubnets": zones.padded([subnet.id for subnet in subnets]),
            "Zones": zones.padded(chosen),
            "MemberAddresses": zones.padded(members, len(MEMBERS)),
        }
    chosen = zones.choose(offered, *wanted)
    if private:
        return _own_network(aws, request, chosen)
    found = shared or shared_network.look(aws)
    if found is not None and (shared is not None or set(chosen) <= set(found.zones)):
        inside = {zone: offered[zone] for zone in found.zones if zone in offered}
        chosen = zones.choose(inside, *wanted)
    else:
        found = shared_network.planned(aws, request.network, chosen)
    return shared_network.parameters(aws, found, chosen, request.name, controls)


def _kept_network(request: ClusterSpec, parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of the network that the cluster is in."""
    given = {name: parameters.get(name, usual) for name, usual in zones.NETWORK.items()}
    its = () if shared_network.is_shared(given) else zones.given(given["GivenSubnets"])
    existing_vpc.check_kept(request.name, its, request.job.subnets)
    return given


def _own_network(aws: Aws, request: ClusterSpec, chosen: Sequence[str]) -> dict[str, str]:
    """Return the parameters of a network that the cluster's stack makes, with a NAT gateway.

    A NAT gateway costs money, so it has to go with the cluster. It is not in the shared network,
    because private subnets of many clusters would need blocks of their own in it.
    """
    # All nodes may be in one zone. Each has one address, however many network cards it has.
    size = names.block_size(request.job.settings.max_nodes)
    taken, controls = shared_network.networks(aws), len(members_of(request.job))
    free = names.addresses(request.network, taken, len(chosen), size, controls)
    return {
        **zones.NETWORK,
        "SubnetCidrs": zones.padded(free.subnets),
        "PrivateCidrs": zones.padded(free.private),
        "Zones": zones.padded(chosen),
        "Cidr": free.block,
        "MemberAddresses": zones.padded(free.members, len(MEMBERS)),
    }


def packed(request: ClusterSpec, worker_zones: tuple[str, ...]) -> tuple[str, ...]:
    """Return the best of the zones, as the only one."""
    best = [zone for zone in request.zones if zone in worker_zones]
    return (*best, *worker_zones)[:1]


def _data(aws: Aws, bucket: str, request: ClusterSpec) -> dict[str, str]:
    """Return the data and the topics that nodes may use, as the stack's parameters.

    Workers may access the data, and control nodes may send to the topics.

    A folder and a topic of the cluster's own name are always included: a policy cannot have an
    empty resource.
    """
    own = f"{bucket}/{request.name}/data/"
    own_topic = f"arn:{aws.partition}:sns:{aws.region}:{aws.account}:{names.PREFIX}{request.name}"

    def arns(places: Iterable[str]) -> str:
        return ",".join(sorted({f"arn:{aws.partition}:s3:::{place}" for place in places}))

    def objects(folders: Sequence[str]) -> str:
        """Add a folder's own name, which may be an object as well."""
        whole = (f"{folder.rstrip('/')}/*" for folder in (own, *folders))
        return arns((*whole, *(folder for folder in folders if not folder.endswith("/"))))

    folders = (*request.job.read, *request.job.write)
    prefixes = {pattern for folder in folders for pattern in _prefixes(folder.partition("/")[2])}
    return {
        "ReadObjects": objects(request.job.read),
        "WriteObjects": objects(request.job.write),
        "DataBuckets": arns(folder.partition("/")[0] for folder in folders) or objects(()),
        "DataPrefixes": ",".join(sorted(prefixes)) or zones.NONE,
        "Topics": ",".join((own_topic, *topics(request.notify.values()))),
    }


def _moving(aws: Aws, spec: JobSpec) -> dict[str, str]:
    """Return the buckets and objects of a job that moves, as the stack's parameters.

    The buckets are those of the regions between which the job moves by itself; the objects are the
    job's in them.
    """
    if spec.regions is None:
        return {"MovingBuckets": zones.NONE, "MovingObjects": zones.NONE}
    its = [
        f"arn:{aws.partition}:s3:::{names.bucket(aws.account, region)}"
        for region in sorted(spec.regions.names)
    ]
    folders = dict.fromkeys((f"{spec.cluster}/*", f"{spec.run}/checkpoints/*"))
    return {
        "MovingBuckets": ",".join(its),
        "MovingObjects": ",".join(f"{bucket}/{folder}" for bucket in its for folder in folders),
    }


def _control_nodes(request: ClusterSpec, known: Mapping[str, Any] | None) -> str:
    """Return the least size of the control nodes' groups, as the stack has it.

    Must never happen: a change of the stack wakes a cluster that is asleep, or ends the control
    nodes of one that was woken. CloudFormation may set a group's least size again, and Auto Scaling
    launches what a group lacks to have that. So 1 becomes 0 where the cluster is asleep, which ends
    nothing in one that wakes just then, and 0 never becomes 1.
    """
    if known is None or known["StackStatus"] in cloudformation.UNUSABLE:
        return ASLEEP if request.asleep else AWAKE
    return ASLEEP if request.asleep else cloudformation.parameters(known).get("ControlNodes", AWAKE)


def _prefixes(folder: str) -> tuple[str, ...]:
    """Return the patterns under which names may be listed, of a folder or a whole bucket ("")."""
    if not folder:
        return ("*",)
    return (f"{folder}*",) if folder.endswith("/") else (folder, f"{folder}/*")
