"""A cluster in an AWS account: create, find, delete.

`create` goes in this order, so that whatever boots finds what it reads: the bucket with the code
and the job; the stack (network, roles, queue, and the control nodes, which boot as soon as their
groups exist); the worker group. What fails on the way is undone. `delete` goes the other way, and
may be run again at any point.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from spotelastic.aws import autoscaling, names, stack, types
from spotelastic.aws.clients import Aws, Rejected, calling
from spotelastic.aws.identity import CLUSTER
from spotelastic.aws.names import MEMBERS, Names
from spotelastic.aws.objects import JOB, Objects
from spotelastic.aws.template import boot_script
from spotelastic.aws.waiting import until
from spotelastic.clock import wall
from spotelastic.errors import EnvironmentFailure, UsageError
from spotelastic.model.job import JobSpec, Settings

AMAZON_LINUX = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
DEEP_LEARNING = (
    "/aws/service/deeplearning/ami/x86_64/"
    "base-oss-nvidia-driver-gpu-amazon-linux-2023/latest/ami-id"
)
TERMINATE_TIMEOUT = 300.0

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
    run: str = ""
    """Name of the run; the cluster's by default."""
    network: str = "10.64.0.0/12"
    """Where the cluster's own network is taken from."""
    control_type: str = "t3.small"
    image: str = ""
    """Image of the workers; by default a Deep Learning one for GPUs, else Amazon Linux."""


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
    """Creates a cluster and starts its job; returns when all instances are asked for.

    Raises `UsageError` and `EnvironmentFailure` before anything is created; anything raised later
    (also `KeyboardInterrupt`) is raised after what had been created is deleted.
    """
    aws = aws or Aws()
    its = Names(request.name)
    if stack.describe(aws, its.stack) is not None:
        raise UsageError(
            f"--name {request.name}: a cluster of this name exists already; "
            f"choose another name, or end it with `spotelastic down {request.name}`"
        )
    kind = types.check_alike(types.describe(aws, request.instance_types))
    zones = _zones(aws, request)
    image = request.image or _image(aws, AMAZON_LINUX if kind.gpus == 0 else DEEP_LEARNING)
    control_image = _image(aws, AMAZON_LINUX)
    network = names.addresses(request.network, _networks(aws))
    bucket = names.bucket(_account(aws), aws.region)
    workers = request.settings.workers or kind.workers
    settings = replace(request.settings, workers=workers, code=request.code)
    spec = JobSpec(
        cluster=request.name,
        run=request.run or request.name,
        script=request.script,
        args=request.args,
        code=request.code,
        settings=settings,
        storage=f"s3://{bucket}/{request.name}/checkpoints",
        etcd=network.etcd,
        etcd_members=MEMBERS,
        log_group=its.log_group,
        queue=its.queue,
        worker_group=its.workers,
        instance_types=request.instance_types,
        created_at=wall(),
    )
    cluster = Cluster(aws, spec, bucket)
    try:
        say(f"bucket {bucket}: shipping {len(request.archive) / 2**20:.1f} MiB of code")
        _ship(cluster, request.archive)
        if cluster.objects.has("checkpoints/LATEST"):
            say(f"going on from the checkpoints of an earlier cluster named {request.name}")
        say(f"stack {its.stack}: network, queue, {len(MEMBERS)} control nodes")
        outputs = stack.create(
            aws,
            its.stack,
            {
                "Cluster": request.name,
                "Bucket": bucket,
                "Cidr": network.block,
                "SubnetCidrs": ",".join(network.subnets),
                "Zones": ",".join(zones),
                "MemberAddresses": ",".join(network.members),
                "ControlImage": control_image,
                "ControlType": request.control_type,
                "BootScript": boot_script(),
            },
            say,
        )
        size = settings.max_nodes
        purchase = "spot" if request.spot else "on-demand"
        say(f"workers {its.workers}: {size} {purchase} instances of {request.instance_types[0]}")
        autoscaling.create_workers(
            aws,
            autoscaling.WorkerGroup(
                names=its,
                types=request.instance_types,
                size=size,
                spot=request.spot,
                image=image,
                bucket=bucket,
                profile=outputs["WorkerProfile"],
                security_group=outputs["MemberGroup"],
                subnets=tuple(outputs["Subnets"].split(",")),
            ),
        )
    except BaseException:
        say(f"creating {request.name} did not succeed: deleting what there is of it")
        delete(request.name, say=say, aws=aws)
        raise
    return cluster


def find(name: str, aws: Aws | None = None) -> Cluster | None:
    """The cluster of that name; None where there is none."""
    aws = aws or Aws()
    if stack.describe(aws, Names(name).stack) is None:
        return None
    bucket = names.bucket(_account(aws), aws.region)
    spec = Objects(aws, bucket, name).job()
    return None if spec is None else Cluster(aws, spec, bucket)


def all_names(aws: Aws | None = None) -> tuple[str, ...]:
    """The names of all clusters of the account and region."""
    return stack.clusters(aws or Aws())


def delete(
    name: str, *, keep_data: bool = True, say: Say = lambda _: None, aws: Aws | None = None
) -> None:
    """Deletes everything of the cluster but its objects in the bucket, and waits until it is gone.

    `keep_data` False deletes these too, checkpoints included. What is not there is no error.
    """
    aws = aws or Aws()
    its = Names(name)
    say(f"ending the instances of {name}")
    for group in (its.workers, *(f"{its.stack}-control-{member}" for member in MEMBERS)):
        _delete_group(aws, group)
    _end_instances(aws, name)
    _delete_template(aws, its.workers)
    say(f"deleting the stack {its.stack}")
    stack.delete(aws, its.stack)
    _delete_token(aws, its.token)
    if not keep_data:
        objects = Objects(aws, names.bucket(_account(aws), aws.region), name)
        say(f"deleting {objects.url('')}")
        objects.delete_all()


# -- create --------------------------------------------------------------------------------------


def _ship(cluster: Cluster, archive: bytes) -> None:
    """Bucket, secret, code and job: what an instance reads when it boots."""
    aws, spec, objects = cluster.aws, cluster.spec, cluster.objects
    _ensure_bucket(aws, cluster.bucket)
    _ensure_token(aws, Names(spec.cluster))
    code = f"code/{spec.code}.tar.gz"
    if not objects.has(code):
        objects.put(code, archive)
    # An earlier cluster of this name may have left its own account of things.
    for name in ("status.json", "events.jsonl", "curve.json", "report.json", "usage.json"):
        objects.delete(name)
    objects.put(JOB, msgspec.json.encode(spec))


def _ensure_bucket(aws: Aws, bucket: str) -> None:
    where = {} if aws.region == "us-east-1" else {"LocationConstraint": aws.region}
    try:
        with calling(f"create the bucket {bucket}"):
            aws.s3.create_bucket(
                Bucket=bucket, **({"CreateBucketConfiguration": where} if where else {})
            )
    except Rejected as error:
        if error.code != "BucketAlreadyOwnedByYou":
            raise
        return
    with calling(f"protect the bucket {bucket}"):
        aws.s3.put_public_access_block(
            Bucket=bucket,
            PublicAccessBlockConfiguration={
                "BlockPublicAcls": True,
                "IgnorePublicAcls": True,
                "BlockPublicPolicy": True,
                "RestrictPublicBuckets": True,
            },
        )
        aws.s3.put_bucket_lifecycle_configuration(
            Bucket=bucket,
            LifecycleConfiguration={
                "Rules": [
                    {
                        "ID": "abandoned-uploads",
                        "Status": "Enabled",
                        "Filter": {"Prefix": ""},
                        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 2},
                    }
                ]
            },
        )


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


def _account(aws: Aws) -> str:
    with calling("find out which AWS account this is"):
        return str(aws.sts.get_caller_identity()["Account"])


def _zones(aws: Aws, request: Request) -> tuple[str, ...]:
    """Three zones that offer all the types asked for."""
    wanted = {*request.instance_types, request.control_type}
    with calling("find the zones that offer the instance types"):
        pages = aws.ec2.get_paginator("describe_instance_type_offerings").paginate(
            LocationType="availability-zone",
            Filters=[{"Name": "instance-type", "Values": sorted(wanted)}],
        )
        offers = [item for page in pages for item in page["InstanceTypeOfferings"]]
    by_zone: dict[str, set[str]] = {}
    for offer in offers:
        by_zone.setdefault(offer["Location"], set()).add(offer["InstanceType"])
    zones = tuple(sorted(zone for zone, offered in by_zone.items() if offered >= wanted))
    if len(zones) < len(MEMBERS):
        raise EnvironmentFailure(
            f"{aws.region} offers {', '.join(sorted(wanted))} together in {len(zones)} zones, "
            f"but {len(MEMBERS)} are needed: choose another --instance-types or --region"
        )
    return zones[: len(MEMBERS)]


def _networks(aws: Aws) -> tuple[str, ...]:
    with calling("list the networks in use"):
        pages = aws.ec2.get_paginator("describe_vpcs").paginate()
        return tuple(vpc["CidrBlock"] for page in pages for vpc in page["Vpcs"])


def _image(aws: Aws, parameter: str) -> str:
    with calling(f"find the machine image {parameter}"):
        return str(aws.ssm.get_parameter(Name=parameter)["Parameter"]["Value"])


# -- delete --------------------------------------------------------------------------------------


def _delete_group(aws: Aws, group: str) -> None:
    """With its instances, protected or not, and without waiting at its hooks."""
    try:
        with calling(f"delete the group {group}"):
            aws.autoscaling.delete_auto_scaling_group(AutoScalingGroupName=group, ForceDelete=True)
    except Rejected as error:
        if error.code != "ValidationError":  # there is none
            raise


def _end_instances(aws: Aws, cluster: str) -> None:
    """Waits until EC2 says that they are terminated: their interfaces are free only then."""

    def ended() -> bool | None:
        left = [m.id for m in autoscaling.machines(aws, cluster) if m.state != "terminated"]
        autoscaling.end(aws, left)
        return None if left else True

    until(ended, f"instances of {cluster} are still there", TERMINATE_TIMEOUT)


def _delete_template(aws: Aws, template: str) -> None:
    with calling(f"delete the launch template {template}"):
        named = [{"Name": "launch-template-name", "Values": [template]}]
        for found in aws.ec2.describe_launch_templates(Filters=named)["LaunchTemplates"]:
            aws.ec2.delete_launch_template(LaunchTemplateId=found["LaunchTemplateId"])


def _delete_token(aws: Aws, parameter: str) -> None:
    try:
        with calling(f"delete the secret {parameter}"):
            aws.ssm.delete_parameter(Name=parameter)
    except Rejected as error:
        if error.code != "ParameterNotFound":
            raise
