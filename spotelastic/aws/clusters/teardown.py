"""How a cluster ends, from the laptop or by its own leader: nothing that costs money is left.

In this order, and from any point again: a note that the cluster is stopping, so that no controller
launches and no `up` goes on; the worker groups and their instances, which are waited for, and their
interfaces, which lie in the network; the launch template; the secrets; the stack, with the control
nodes; disks that replaced one of it. The bucket's objects stay unless they are asked for, and so
does the note, unless they go.
"""

from collections.abc import Callable, Sequence

from spotelastic.aws.base import account
from spotelastic.aws.base.clients import Aws, Rejected, calling
from spotelastic.aws.base.names import MEMBERS, Names
from spotelastic.aws.base.waiting import until
from spotelastic.aws.clusters import stored_data
from spotelastic.aws.compute import autoscaling, worker_groups
from spotelastic.aws.messaging.bucket import STOPPING, BucketObjects
from spotelastic.aws.network import cloudformation
from spotelastic.aws.node import etcd_identity
from spotelastic.errors import UsageError

TERMINATE_TIMEOUT = 600.0
"""Seconds; a machine with many GPUs takes minutes to shut down."""
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
) -> None:
    """Deletes everything of the cluster but its objects in the bucket, and waits until it is gone.

    `keep_data` False deletes these too, and its run's checkpoints. What is not there is no error.
    Raises `UsageError`, and changes nothing, where a stack of that name is not the cluster's.
    """
    aws = aws or Aws()
    its = Names(name)
    objects = BucketObjects(aws, bucket_of(aws, its, bucket), name)
    say(f"ending the instances of {name}")
    _note(objects)
    worker_groups.delete(aws, its)
    for each in MEMBERS:
        worker_groups.delete_group(aws, its.control(each), name)
    _end_instances(aws, name)
    worker_groups.delete_template(aws, its)
    _delete_secrets(aws, its)
    say(f"deleting the stack {its.stack}")
    cloudformation.delete(aws, its.stack)
    etcd_identity.delete_disks(aws, name)
    if not keep_data:
        stored_data.delete(stored_data.of(aws, objects.bucket, name), say)


def dissolve(aws: Aws, name: str, bucket: str, service_role: str) -> None:
    """What the leader does on a control node: it ends with the stack, which goes without it."""
    its = Names(name)
    _note(BucketObjects(aws, bucket, name))
    worker_groups.delete(aws, its)
    _end_instances(aws, name, "worker")
    worker_groups.delete_template(aws, its)
    _delete_secrets(aws, its)
    etcd_identity.give_up_disks(aws, name)
    cloudformation.begin_deletion(aws, its.stack, service_role)


def bucket_of(aws: Aws, its: Names, otherwise: str = "") -> str:
    """The bucket that the cluster was made with; without a stack that one, or the account's own.

    Raises `UsageError` where it was made with another one than `otherwise`, and where a stack of
    that name is not the cluster's: it may name any bucket.
    """
    found = cloudformation.of_cluster(aws, its.stack, its.cluster)
    given = cloudformation.parameters(found).get("Bucket") if found else None
    if given and otherwise not in ("", given):
        raise UsageError(f"--bucket {otherwise}: {its.cluster} has its objects in {given}")
    return given or otherwise or account.default_bucket(aws)


def _note(objects: BucketObjects) -> None:
    try:
        objects.put(STOPPING, b"")
    except Rejected as error:
        if error.code != "NoSuchBucket":  # `up` never got as far as that
            raise


def _end_instances(aws: Aws, cluster: str, role: str = "") -> None:
    """Waits until EC2 says that they are terminated, and has taken back their interfaces: while one
    is there, the stack's subnets and security group cannot be deleted."""

    def ended() -> tuple[str, ...] | None:
        found = autoscaling.machines(aws, cluster, role)
        left = [machine.id for machine in found if machine.state != "terminated"]
        autoscaling.end(aws, left)
        return None if left else tuple(machine.id for machine in found)

    gone = until(ended, f"instances of {cluster} are still there", TERMINATE_TIMEOUT)

    def freed() -> bool | None:
        return None if _have_interfaces(aws, cluster, gone) else True

    until(freed, f"interfaces of {cluster} are still there", TERMINATE_TIMEOUT)


def _have_interfaces(aws: Aws, cluster: str, instances: Sequence[str]) -> bool:
    """Whether any of the instances has one. What they brought themselves has no tags."""
    for first in range(0, len(instances), AT_ONCE):
        asked = list(instances[first : first + AT_ONCE])
        with calling(f"list the network interfaces of {cluster}"):
            pages = aws.ec2.get_paginator("describe_network_interfaces").paginate(
                Filters=[{"Name": "attachment.instance-id", "Values": asked}]
            )
            if any(page["NetworkInterfaces"] for page in pages):
                return True
    return False


def has_secrets(aws: Aws, name: str) -> bool:
    """Whether an `up` that was killed early has left any: they are stored before the stack."""
    return bool(_secrets(aws, Names(name)))


def _secrets(aws: Aws, its: Names) -> list[str]:
    """Names of all parameters below the cluster's folder."""
    with calling(f"list the secrets of {its.cluster}"):
        pages = aws.ssm.get_paginator("describe_parameters").paginate(  # which tells no values
            ParameterFilters=[{"Key": "Path", "Option": "Recursive", "Values": [its.secrets]}]
        )
        return [item["Name"] for page in pages for item in page["Parameters"]]


def _delete_secrets(aws: Aws, its: Names) -> None:
    found = _secrets(aws, its)
    for first in range(0, len(found), 10):  # as many as one call takes
        with calling(f"delete the secrets of {its.cluster}"):
            aws.ssm.delete_parameters(Names=found[first : first + 10])
