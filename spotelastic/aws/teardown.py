"""How a cluster ends, from the laptop or by its own leader: nothing that costs money is left.

In this order, and from any point again: a note that the cluster is stopping, so that no controller
launches and no `up` goes on; the worker groups and their instances, which are waited for, because
their interfaces lie in the network; the launch template; the secrets; the stack, with the control
nodes; disks that replaced one of it. The bucket's objects stay unless they are asked for, and so
does the note, unless they go.
"""

from collections.abc import Callable

from spotelastic.aws import account, autoscaling, data, member, stack, workers
from spotelastic.aws.clients import Aws, Rejected, calling
from spotelastic.aws.names import MEMBERS, Names
from spotelastic.aws.objects import STOPPING, Objects
from spotelastic.aws.waiting import until
from spotelastic.errors import UsageError

TERMINATE_TIMEOUT = 600.0
"""Seconds; a machine with many GPUs takes minutes to shut down."""

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
    """
    aws = aws or Aws()
    its = Names(name)
    objects = Objects(aws, bucket or bucket_of(aws, its), name)
    say(f"ending the instances of {name}")
    _note(objects)
    workers.delete(aws, its)
    for each in MEMBERS:
        workers.delete_group(aws, its.control(each), name)
    _end_instances(aws, name)
    workers.delete_template(aws, its)
    _delete_secrets(aws, its)
    say(f"deleting the stack {its.stack}")
    stack.delete(aws, its.stack)
    member.delete_disks(aws, name)
    if not keep_data:
        data.delete(data.of(aws, objects.bucket, name), say)


def dissolve(aws: Aws, name: str, bucket: str, service_role: str) -> None:
    """What the leader does on a control node: it ends with the stack, which goes without it."""
    its = Names(name)
    _note(Objects(aws, bucket, name))
    workers.delete(aws, its)
    _end_instances(aws, name, "worker")
    workers.delete_template(aws, its)
    _delete_secrets(aws, its)
    member.give_up_disks(aws, name)
    stack.begin_deletion(aws, its.stack, service_role)


def bucket_of(aws: Aws, its: Names, otherwise: str = "") -> str:
    """The bucket that the cluster was made with; without a stack that one, or the account's own.

    Raises `UsageError` where it was made with another one than `otherwise`.
    """
    found = stack.describe(aws, its.stack)
    given = stack.parameters(found).get("Bucket") if found else None
    if given and otherwise not in ("", given):
        raise UsageError(f"--bucket {otherwise}: {its.cluster} has its objects in {given}")
    return given or otherwise or account.default_bucket(aws)


def _note(objects: Objects) -> None:
    try:
        objects.put(STOPPING, b"")
    except Rejected as error:
        if error.code != "NoSuchBucket":  # `up` never got as far as that
            raise


def _end_instances(aws: Aws, cluster: str, role: str = "") -> None:
    """Waits until EC2 says that they are terminated: their interfaces are free only then."""

    def ended() -> bool | None:
        found = autoscaling.machines(aws, cluster, role)
        left = [machine.id for machine in found if machine.state != "terminated"]
        autoscaling.end(aws, left)
        return None if left else True

    until(ended, f"instances of {cluster} are still there", TERMINATE_TIMEOUT)


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
