"""Creates, changes, finds and lists clusters in an AWS account.

`create` works in an order in which booting instances find what they read:

* the network that clusters share, if it does not exist yet
* the bucket with code and job, and the log group
* the stack: roles, queues, and the control nodes, which boot as soon as their groups exist
* the worker groups, while the stack is still being made: workers boot beside the control nodes, and
  wait for these

`teardown.py` works in the opposite order. Both can be repeated at any point.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec

from spotelastic.aws.artifacts import boot_artifacts, environments
from spotelastic.aws.base import account
from spotelastic.aws.base.clients import Aws, calling, passing
from spotelastic.aws.base.demands import own_of
from spotelastic.aws.base.names import SHARED_NETWORK, Names
from spotelastic.aws.clusters import teardown
from spotelastic.aws.clusters.early_workers import EarlyWorkers, StackParts
from spotelastic.aws.compute import autoscaling, speeds, worker_groups
from spotelastic.aws.compute.images import RootDisk
from spotelastic.aws.compute.launch_template import WorkerGroups, launch_template
from spotelastic.aws.compute.network_interfaces import ORDINARY
from spotelastic.aws.messaging import command_queue, log_group
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.aws.network import cloudformation, shared_network, zones
from spotelastic.aws.network.cloudformation import UNUSABLE
from spotelastic.aws.planning import dry_run
from spotelastic.aws.planning.dry_run import LaunchRehearsal
from spotelastic.aws.planning.plan import ClusterSpec, LaunchPlan, packed, plan_of
from spotelastic.aws.planning.survey import demand
from spotelastic.aws.security import certificates
from spotelastic.aws.security import secrets as user_secrets
from spotelastic.clock import steady, wall
from spotelastic.cloud.bucket import (
    CURVE,
    EARLIER,
    EVENTS,
    JOB,
    MEASURED,
    MOVING,
    REPORT,
    STATUS,
    STOPPING,
    USAGE,
)
from spotelastic.errors import EnvironmentFailure, SpotelasticError, UsageError
from spotelastic.model.counting import counted, size
from spotelastic.model.in_place import FIRST
from spotelastic.model.job import NO_DEMANDS, AccountDemands, JobSpec
from spotelastic.model.requests.command import Command

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """A cluster that exists, as any holder of the account's credentials can find it."""

    aws: Aws
    spec: JobSpec
    bucket: str

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.spec.cluster

    @property
    def objects(self) -> BucketObjects:
        """The cluster's objects in the bucket."""
        return BucketObjects(self.aws, self.bucket, self.name)

    @property
    def output(self) -> log_group.GroupOutput:
        """What its workers have written."""
        return log_group.GroupOutput(self.aws, self.spec.log_group)

    def is_there(self) -> bool:
        """Whether the cluster still exists."""
        return find(self.name, self.aws) is not None

    def send(self, command: Command) -> None:
        """Send a command to its controller."""
        command_queue.send(self.aws, self.name, command)

    def change(self, how: Callable[[JobSpec], JobSpec], archive: bytes = b"") -> JobSpec:
        """Change the stored description of the job, keeping what others change at the same time.

        `archive` is its code, if that is new.
        """
        objects = self.objects
        return objects.change_job(lambda spec: _prepare(objects, how(spec), archive))


def create(request: ClusterSpec, say: Say, aws: Aws | None = None) -> ClusterRecord:
    """Bring up a cluster and start its job; returns when all instances have been requested.

    What exists stays, and is changed where the request differs, so an interrupted `up` can be
    repeated. Raises `UsageError` and `EnvironmentFailure` before anything is created. If a new
    cluster fails later, also by `KeyboardInterrupt`, what was created is deleted before the error
    is raised.
    """
    aws = aws or Aws()
    its = Names(request.name)
    known = cloudformation.of_cluster(aws, its.stack, request.name)
    plan = plan_of(request, aws, known)
    if known is None:
        _try(request, plan, aws, say)
        dry_run.ensure_service_roles(aws)
    bucket = plan.bucket
    if not plan.own_bucket:
        # If it is another account's, nothing must be undone.
        account.ensure_bucket(aws, bucket, plan.spec.demands.tags)
    say(f"bucket {bucket}: shipping {size(len(request.archive))} of code")
    maker = secrets.token_hex(8)
    try:
        return _bring_up(request, plan, aws, say, maker, known)
    except BaseException:
        if known is None:
            _undo(request.name, bucket, say, aws, maker)
        elif not cloudformation.stands(known):
            # An earlier `up` was killed midway: no controller leads there that would end it.
            say(
                f"{request.name} is incomplete and costs money: run `spotelastic up` again, or "
                f"`spotelastic down {request.name}`"
            )
        raise


def _try(request: ClusterSpec, plan: LaunchPlan, aws: Aws, say: Say) -> None:
    """Try the launches to come. Raises `EnvironmentFailure` where AWS would refuse one."""
    refused = dry_run.dry_run(
        aws,
        rehearsals(request, plan),
        plan.spec.demands,
        block=plan.parameters["Cidr"],
        zone=plan.worker_zones[0],
        vpc=plan.parameters["GivenVpc"],
        subnet=next(iter(zones.given(plan.parameters["GivenSubnets"])), ""),
    )
    if refused and not request.force:
        raise EnvironmentFailure(dry_run.told(refused))
    if refused:
        say(f"warning: {dry_run.told(refused)}")


def _bring_up(
    request: ClusterSpec,
    plan: LaunchPlan,
    aws: Aws,
    say: Say,
    maker: str,
    known: Mapping[str, Any] | None,
) -> ClusterRecord:
    its, new, demands = Names(request.name), known is None, plan.spec.demands
    service_role = account.ensure_service_role(aws, demands)
    objects = BucketObjects(aws, plan.bucket, request.name)
    if not new and objects.has(STOPPING):
        raise UsageError(
            f"the cluster {request.name} is being taken down: end that first with "
            f"`spotelastic down {request.name}`, then run `spotelastic up` again"
        )
    plan = _in_its_network(request, plan, aws, say, known)
    cluster = ClusterRecord(aws, replace(plan.spec, service_role=service_role), plan.bucket)
    began = steady()
    cluster = ship(cluster, request, new=new)
    if warning := cluster.spec.validity.warning(request.name, wall()):
        say(f"warning: {warning}")
    log_group.ensure(aws, its, demands)
    boot_artifacts.ship(objects, request.etcd, say)
    say(f"code, certificates and software: shipped after {steady() - began:.0f} s")
    control = 0 if request.asleep else len(plan.spec.etcd_members)
    say(f"stack {its.stack}: queue, roles, {counted(control, 'control node')}")
    if known is not None and own_of(cloudformation.tags(known)) != demands.tags:
        say("tags: nodes that run, with their disks, and secrets that are stored keep theirs")
    make = partial(_make_workers, request, plan, aws, say)
    early = EarlyWorkers(aws, its, plan.parameters, make)
    outputs = cloudformation.ensure(
        aws,
        its.stack,
        {**plan.parameters, "ServiceRole": service_role},
        say,
        maker=maker,
        store=partial(_store_template, objects),
        own_tags=demands.tags,
        meanwhile=early.look,
        clear=early.end,
    )
    if not new:
        log_group.ensure(aws, its, demands)  # in stacks of 0.1 the group was a part, which goes now
    if not early.made:
        make(StackParts.of(outputs))
    return cluster


def _store_template(objects: BucketObjects, body: str) -> str:
    """Put a long template into the bucket, and return its URL."""
    objects.put("template.yaml", body.encode())
    return objects.web_url("template.yaml")


def _in_its_network(
    request: ClusterSpec,
    plan: LaunchPlan,
    aws: Aws,
    say: Say,
    known: Mapping[str, Any] | None,
) -> LaunchPlan:
    """Return the plan in the network that clusters share, which is made if it is not there."""
    if not plan.shared or (known is not None and known["StackStatus"] not in UNUSABLE):
        return plan
    began = steady()
    wanted = zones.given(plan.parameters["Zones"])
    found = shared_network.ensure(aws, request.network, wanted, say, plan.spec.demands.tags)
    if found.vpc == plan.parameters["GivenVpc"]:
        return plan
    say(f"network {SHARED_NETWORK}: there after {steady() - began:.0f} s")
    return plan_of(request, aws, known, found)


def _make_workers(
    request: ClusterSpec, plan: LaunchPlan, aws: Aws, say: Say, parts: StackParts
) -> None:
    """Create or change the worker groups, which use these parts of the stack."""
    count = 0 if request.asleep else _launched(request)
    say(
        f"workers {plan.spec.worker_group}: {counted(count, 'spot instance')} of "
        f"{request.job.instance_types[0]}"
        + ("" if request.proven else ", once a control node answers: it is the first cluster here")
    )
    groups = replace(
        _workers(request, plan),
        profile=parts.profile,
        security_group=parts.security_group,
        subnets=_subnets(plan, parts, plan.worker_zones),
        first=_subnets(plan, parts, _first(request, plan)),
        reserved_subnets=_subnets(plan, parts, request.job.capacity.reserved_zones),
        placement_group=parts.placement_group if plan.parameters["PlacedIn"] else "",
    )
    worker_groups.ensure(aws, groups)


def _workers(request: ClusterSpec, plan: LaunchPlan) -> WorkerGroups:
    """Return the worker groups, without what the stack makes for them."""
    bought = request.job.capacity
    return WorkerGroups(
        names=Names(request.name),
        types=request.job.instance_types,
        size=plan.spec.settings.max_nodes,
        start=_start(request),
        image=plan.image,
        bucket=plan.bucket,
        profile=plan.parameters["GivenWorkerProfile"],
        security_group=plan.parameters["GivenGroup"],
        subnets=(),
        interfaces=plan.interfaces,
        disk=plan.disk,
        public=None if plan.spec.vpc else True,
        own_tags=plan.spec.demands.tags,
        key=plan.spec.demands.key,
        user_data=plan.parameters["BootScript"],
        max_price=bought.max_price,
        in_order=bool(speeds.relative(request.job.instance_types)),
        reservations=bought.reservations,
        buys=bought.base > 0,
        reserved_start=min(bought.reserved, _launched(request)) * _at_once(request),
    )


def rehearsals(request: ClusterSpec, plan: LaunchPlan) -> Iterator[LaunchRehearsal]:
    """Yield the launches that the cluster will need, of workers and of control nodes."""
    workers, nodes = _workers(request, plan), demand(plan.spec)
    own, types = not plan.spec.vpc, request.job.instance_types
    for spot, wanted in ((True, nodes.spot), (False, nodes.on_demand)):
        for kind in types if wanted else ():
            yield LaunchRehearsal(
                f"start {'spot' if spot else 'on-demand'} instances of {kind}",
                launch_template(replace(workers, types=(kind,), reservations=()), spot=spot),
                spot=spot,
                public=own and len(plan.interfaces) == 1,
            )
    for reserved in plan.spec.capacity.reservations:
        target = {"CapacityReservationId": reserved.id}
        specification = {"CapacityReservationSpecification": {"CapacityReservationTarget": target}}
        yield LaunchRehearsal(
            f"start instances of {reserved.type} in {reserved.id}",
            launch_template(workers, spot=False) | specification,
            public=own and len(plan.interfaces) == 1,
        )
    its = plan.spec.control_type
    control = replace(
        workers,
        image=plan.parameters["ControlImage"],
        types=(its,),
        reservations=(),
        profile=plan.parameters["GivenControlProfile"],
        disk=RootDisk(plan.parameters["ControlRoot"]),
        interfaces=ORDINARY,
    )
    yield LaunchRehearsal(
        f"start control nodes ({its})",
        launch_template(control, spot=False),
        public=own,
    )


def _start(request: ClusterSpec) -> int:
    """Return how many nodes are launched before a controller leads.

    None if the cluster is asleep, if prices must be judged first, or where it is not known that
    control nodes can work; never those that are to be bought on demand.
    """
    capacity = request.job.capacity
    if not _at_once(request) or capacity.max_price is not None:
        return 0
    wanted = _launched(request)
    return wanted - min(capacity.steady, wanted)


def _at_once(request: ClusterSpec) -> bool:
    """Return whether nodes may come before a controller leads."""
    return request.proven and not request.asleep


def _launched(request: ClusterSpec) -> int:
    """Return how many nodes are launched at first: one, where it rehearses for the others."""
    settings = request.job.settings
    return 1 if settings.rehearse == FIRST else settings.max_nodes


def _first(request: ClusterSpec, plan: LaunchPlan) -> tuple[str, ...]:
    """Return the zone into which workers are packed at first; none if they are spread."""
    return () if request.job.capacity.zones == "spread" else packed(request, plan.worker_zones)


def _subnets(plan: LaunchPlan, parts: StackParts, its_zones: Sequence[str]) -> tuple[str, ...]:
    """Return the workers' subnets in these zones."""
    pairs = zip(plan.parameters["Zones"].split(","), parts.subnets, strict=False)
    return tuple(subnet for zone, subnet in pairs if zone in its_zones)


def _undo(name: str, bucket: str, say: Say, aws: Aws, maker: str) -> None:
    """Delete what a failed `create` made.

    Nothing is deleted if another `up` has made a cluster of this name since.
    """
    try:
        found = cloudformation.describe(aws, Names(name).stack)
        if found is not None and cloudformation.tags(found).get(cloudformation.MAKER) != maker:
            say(f"another `up` has made {name} in the meantime: it is left as it is")
            return
        say(f"creating {name} failed: deleting what was created")
        teardown.delete(name, bucket=bucket, say=say, aws=aws)
    except SpotelasticError as error:
        say(f"not all of {name} could be deleted: {error}; run `spotelastic down {name}`")


def describe(cluster: ClusterRecord, spec: JobSpec, archive: bytes = b"") -> ClusterRecord:
    """Store this description of the cluster's job, for nodes that start from now on.

    `archive` is its code, if that is new.
    """
    spec = _prepare(cluster.objects, spec, archive)
    cluster.objects.put(JOB, msgspec.json.encode(spec))
    return replace(cluster, spec=spec)


def _prepare(objects: BucketObjects, spec: JobSpec, archive: bytes) -> JobSpec:
    """Put what a description refers to into the bucket, before the description itself."""
    code = f"code/{spec.code}.tar.gz"
    if archive and not objects.has(code):
        objects.put(code, archive)
    if spec.environment is not None:
        environments.forget_failures(objects, spec.environment)
    return replace(spec, settings=replace(spec.settings, code=spec.release))


def find(name: str, aws: Aws | None = None) -> ClusterRecord | None:
    """Return the cluster of that name, or None."""
    aws = aws or Aws()
    if cloudformation.describe(aws, Names(name).stack) is None:
        return None
    bucket = teardown.bucket_of(aws, Names(name))
    spec = BucketObjects(aws, bucket, name).job()
    return None if spec is None else ClusterRecord(aws, spec, bucket)


def all_names(aws: Aws | None = None) -> tuple[str, ...]:
    """Return the names of all clusters of the account and region, including incomplete ones."""
    aws = aws or Aws()
    return tuple(sorted({*cloudformation.clusters(aws), *autoscaling.clusters(aws)}))


def ship(cluster: ClusterRecord, request: ClusterSpec, *, new: bool) -> ClusterRecord:
    """Store secrets, code and job: what an instance reads when it boots."""
    aws, spec, objects = cluster.aws, cluster.spec, cluster.objects
    its = Names(spec.cluster)
    ensure_token(aws, its, spec.demands)
    hosts = (endpoint.rpartition(":")[0] for endpoint in spec.etcd)
    addresses = dict(zip(spec.etcd_members, hosts, strict=True))
    validity = certificates.ensure(aws, its, addresses, datetime.now(UTC), spec.demands)
    given = user_secrets.put(aws, spec.cluster, request.secrets, demands=spec.demands)
    build = user_secrets.put(aws, spec.cluster, request.build_secrets, "build", spec.demands)
    notify = user_secrets.put(aws, spec.cluster, request.notify, "notify", spec.demands)
    before = None if new else objects.job()
    born_at = spec.created_at if new else before.born_at if before else 0.0
    stored = replace(spec, secrets=given, build_secrets=build, notify=notify)
    spec = replace(stored, validity=validity, born_at=born_at)
    if new:
        # An earlier cluster of this name may have left its status and reports.
        earlier = () if request.moved else (CURVE, MEASURED, USAGE, EARLIER)
        noted = () if request.undone else (MOVING,)
        for name in (STATUS, EVENTS, REPORT, STOPPING, *noted, *earlier):
            objects.delete(name)
        objects.delete_all("etcd/")
    return describe(cluster, spec, request.archive)


def ensure_token(aws: Aws, its: Names, demands: AccountDemands = NO_DEMANDS) -> None:
    """Store the token by which the cluster's daemons know each other, unless it has one."""
    with passing("ParameterAlreadyExists"), calling(f"store the secret {its.token}"):
        aws.ssm.put_parameter(
            Name=its.token,
            Description="Secret by which nodes of a spotelastic cluster recognize each other",
            Value=secrets.token_hex(32),
            **user_secrets.parameter(its.cluster, demands),
        )
