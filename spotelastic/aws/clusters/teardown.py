"""Takes a cluster down, from the user's machine or from its leading controller.

The order, which can begin again at any point:

* a note that the cluster is stopping, so that no controller launches and no `up` continues
* the worker groups and their instances, waiting until these and their network interfaces are gone
* the launch template and the secrets
* the stack, with the control nodes
* disks that replaced one of the stack's

The bucket's objects, and with them the note, stay unless their deletion is requested. So do the
lines in the log group.
"""

from collections.abc import Callable, Sequence

import msgspec
from spotelastic_checkpoints.commit.latest import LATEST, ForwardPointer, decoded

from spotelastic.aws.base import account
from spotelastic.aws.base.clients import Aws, Rejected, calling, listed, passing, refusable
from spotelastic.aws.base.identity import CLUSTER
from spotelastic.aws.base.names import MEMBERS, Names
from spotelastic.aws.base.waiting import until
from spotelastic.aws.clusters import stored_data
from spotelastic.aws.compute import autoscaling, worker_groups
from spotelastic.aws.messaging import log_group
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.aws.network import cloudformation
from spotelastic.aws.node import etcd_identity
from spotelastic.clock import steady
from spotelastic.cloud.bucket import CHECKPOINTS, STOPPING
from spotelastic.errors import SpotelasticError, UsageError
from spotelastic.model.counting import counted

TERMINATE_TIMEOUT = 1800.0
"""Seconds. An instance with eight GPUs may take a quarter of an hour to shut down."""
TOLD_EVERY = 60.0
"""Seconds between two lines about instances that still shut down."""
AT_ONCE = 200
"""Values that EC2 takes in one filter."""

Say = Callable[[str], None]


def delete(
    name: str,
    *,
    bucket: str = "",
    keep_data: bool = True,
    say: Say = lambda _: None,
    aws: Aws | None = None,
    within: float = TERMINATE_TIMEOUT,
    told_every: float = TOLD_EVERY,
) -> None:
    """Delete everything of the cluster except objects and logs, and wait until it is gone.

    Its instances should be gone `within` seconds; `say` hears of them every `told_every` seconds.

    With `keep_data` False also its objects, the run's checkpoints, and the logs of all clusters of
    this name. Missing parts are not an
    error. Raises `UsageError`, and changes nothing, if a stack of that name does not belong to the
    cluster.
    """
    aws = aws or Aws()
    its = Names(name)
    objects = BucketObjects(aws, bucket_of(aws, its, bucket), name)
    say(f"ending the instances of {name}")
    _note(objects, say)
    worker_groups.delete(aws, its, unseen=True)  # an `up` that fails has just made them
    for each in MEMBERS:
        worker_groups.delete_group(aws, its.control(each), name)
    _end_instances(aws, name, within=within, told_every=told_every, say=say)
    worker_groups.delete_template(aws, its, unseen=True)
    _delete_secrets(aws, its)
    say(f"deleting the stack {its.stack}")
    cloudformation.delete(aws, its.stack)
    etcd_identity.delete_disks(aws, name)
    if keep_data:
        log_group.delete_if_empty(aws, its)
    else:
        log_group.delete(aws, its)
        stored_data.delete(stored_data.of(aws, objects.bucket, name), say)


def delete_from_within(
    aws: Aws, name: str, bucket: str, service_role: str, *, leave_others: bool = False
) -> None:
    """Delete the cluster from one of its control nodes, which itself ends with the stack.

    A job that moves between regions by itself has a cluster in each, and all of them end with it:
    the others first, as nobody is left afterwards who would. One whose region the job has left ends
    alone. Raises an error, with its own stack still there and without workers, if another region or
    the bucket does not answer, unless `leave_others`.
    """
    left: list[SpotelasticError] = []
    try:
        others = () if leave_others else _others(aws, name, bucket)
    except Rejected:  # by the bucket, which alone knows them
        _end_work(aws, Names(name), bucket)
        raise
    for region in others:
        there = Aws(region, account=aws.account)
        try:
            if not _is_owned(there, Names(name)):
                continue
            _delete_from_within(there, name, account.default_bucket(there), service_role)
        except SpotelasticError as error:
            left.append(error)
    if left:
        _end_work(aws, Names(name), bucket)
        raise left[0]
    _delete_from_within(aws, name, bucket, service_role)


def _others(aws: Aws, name: str, bucket: str) -> tuple[str, ...]:
    """Return the other regions that end with this one."""
    job = BucketObjects(aws, bucket, name).job()
    if job is None or job.regions is None or _was_moved(BucketObjects(aws, bucket, job.run)):
        return ()
    return tuple(region for region in job.regions.names if region != aws.region)


def _is_owned(aws: Aws, its: Names) -> bool:
    """Whether no stack of somebody else has the name: then `up` has made nothing in that region."""
    found = cloudformation.describe(aws, its.stack)
    return found is None or cloudformation.tags(found).get(CLUSTER) == its.cluster


def _was_moved(run: BucketObjects) -> bool:
    """Whether the run trains in another region now: ending the job is for the cluster there."""
    latest = run.get(f"{CHECKPOINTS}{LATEST}")
    try:
        return latest is not None and isinstance(decoded(latest), ForwardPointer)
    except msgspec.DecodeError:
        return True  # only a newer version can tell: the job may train there


def _delete_from_within(aws: Aws, name: str, bucket: str, service_role: str) -> None:
    its = Names(name)
    _end_work(aws, its, bucket)
    worker_groups.delete_template(aws, its)
    _delete_secrets(aws, its)
    etcd_identity.give_up_disks(aws, name)
    cloudformation.begin_deletion(aws, its.stack, service_role)


def _end_work(aws: Aws, its: Names, bucket: str) -> None:
    """End the workers, and wait until they are gone."""
    _note(BucketObjects(aws, bucket, its.cluster))
    worker_groups.delete(aws, its)
    _end_instances(aws, its.cluster, "worker")


def end_workers(aws: Aws, its: Names) -> None:
    """End the workers of a cluster whose stack has failed, and wait until they are gone.

    The stack that is made again has another security group and instance profile, so the launch
    template goes, too.
    """
    worker_groups.delete(aws, its)
    _end_instances(aws, its.cluster, "worker")
    worker_groups.delete_template(aws, its)


def bucket_of(aws: Aws, its: Names, otherwise: str = "") -> str:
    """Return the bucket that the cluster was made with.

    Without a stack it is `otherwise`, or else the shared one.

    Raises `UsageError` if the cluster was made with another one than `otherwise`. Also if a stack
    of that name does not belong to the cluster: it could name any bucket.
    """
    found = cloudformation.of_cluster(aws, its.stack, its.cluster)
    given = cloudformation.parameters(found).get("Bucket") if found else None
    if given and otherwise not in ("", given):
        raise UsageError(f"--bucket {otherwise}: {its.cluster} has its objects in {given}")
    return given or otherwise or account.default_bucket(aws)


def _note(objects: BucketObjects, say: Say = lambda _: None) -> None:
    """Note that the cluster is stopping, unless its bucket refuses that.

    Its key may be disabled, or a policy deny it. What costs money has to go all the same.
    """
    with (
        refusable(lambda why: say(f"{why}: the cluster ends all the same")),
        passing("NoSuchBucket"),  # `up` ended before it created one
    ):
        objects.put(STOPPING, b"")


def _end_instances(
    aws: Aws,
    cluster: str,
    role: str = "",
    *,
    within: float = TERMINATE_TIMEOUT,
    told_every: float = TOLD_EVERY,
    say: Say = lambda _: None,
) -> None:
    """Terminate the instances, and wait until EC2 has taken back their network interfaces.

    While an interface exists, the stack's subnets and security group cannot be deleted.
    """
    began = told = steady()

    def ended() -> tuple[str, ...] | None:
        nonlocal told
        found = autoscaling.instances(aws, cluster, role)
        left = [machine.id for machine in found if machine.state != "terminated"]
        autoscaling.end(aws, left)
        if left and steady() - told >= told_every:
            told = steady()
            say(f"{counted(len(left), 'instance')} still shutting down, {told - began:.0f} s")
        return None if left else tuple(machine.id for machine in found)

    gone = until(ended, f"instances of {cluster} still exist", within)

    def freed() -> bool | None:
        return None if _have_interfaces(aws, cluster, gone) else True

    until(freed, f"network interfaces of {cluster} still exist", within)


def _have_interfaces(aws: Aws, cluster: str, instances: Sequence[str]) -> bool:
    """Whether any of the instances has an interface. Those launched with it have no tags."""
    for first in range(0, len(instances), AT_ONCE):
        asked = list(instances[first : first + AT_ONCE])
        with calling(f"list the network interfaces of {cluster}"):
            its = [{"Name": "attachment.instance-id", "Values": asked}]
            call, key = "describe_network_interfaces", "NetworkInterfaces"
            if any(listed(aws.ec2, call, key, Filters=its)):
                return True
    return False


def has_secrets(aws: Aws, name: str) -> bool:
    """Whether an `up` that was killed early has left secrets: these are stored before the stack."""
    return bool(_secrets(aws, Names(name)))


def _secrets(aws: Aws, its: Names) -> list[str]:
    """Return the names of all parameters below the cluster's folder."""
    with calling(f"list the secrets of {its.cluster}"):
        below = [{"Key": "Path", "Option": "Recursive", "Values": [its.secrets]}]
        found = listed(aws.ssm, "describe_parameters", "Parameters", ParameterFilters=below)
        return [item["Name"] for item in found]


def _delete_secrets(aws: Aws, its: Names) -> None:
    found = _secrets(aws, its)
    for first in range(0, len(found), 10):  # one call takes ten
        with calling(f"delete the secrets of {its.cluster}"):
            aws.ssm.delete_parameters(Names=found[first : first + 10])
