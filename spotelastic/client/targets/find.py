"""Finds the account, AWS's or the local cloud's, in which a command looks for clusters."""

import os
import shlex

from spotelastic import systems
from spotelastic.aws.base.clients import Aws, has_credentials, refusable
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.client.progress import Say
from spotelastic.client.targets.account import configured, forward_pointer
from spotelastic.client.targets.asleep import awake, sleeps
from spotelastic.client.targets.aws_target import ATTEMPTS, READ_TIMEOUT, AwsTarget
from spotelastic.client.targets.cloud_target import CloudTarget, ClusterTarget
from spotelastic.client.targets.kube_target import KubePlace, KubeTarget
from spotelastic.client.targets.left_target import LeftTarget
from spotelastic.client.targets.local_target import LocalTarget
from spotelastic.client.targets.shown_cluster import ShownCluster
from spotelastic.errors import UsageError
from spotelastic.local import cloud

LAST_REPORT = "this is its last report"
WHAT_HAS_ENDED = "`spotelastic ls --all` lists what has ended here"
Place = bool | KubePlace | None
"""Where a command looks: True in the local cloud, False on AWS, None in the local cloud if one
runs."""


def find(where: Place, region: str | None, note: Say) -> ClusterTarget:
    """Return where the clusters are that a command is about.

    That is a namespace on Kubernetes if one is named, and what `account` returns otherwise.
    """
    return KubeTarget(where) if isinstance(where, KubePlace) else account(where, region, note)


def looked_at(where: Place, region: str | None, note: Say) -> ClusterTarget:
    """Return what `find` does, or else what local clusters have left on this machine.

    The latter is returned where no local cloud runs, and nothing else is meant. Raises `UsageError`
    if there is none.
    """
    try:
        return find(where, region, note)
    except UsageError:
        left = LeftTarget()
        if where is False or isinstance(where, KubePlace) or not left.ended(0.0):
            raise
        return left


def here_now() -> ClusterTarget:
    """Return the local cloud; while none runs, what its clusters have left on this machine."""
    running = cloud.find()
    return LeftTarget() if running is None else LocalTarget(running)


def goes_on_by(at: ClusterTarget, cluster: ShownCluster) -> str:
    """Return the command by which the job of a cluster that is gone goes on.

    What else was given to the command is left out, because it may hold secrets.
    """
    its = at.arguments_of(cluster.name) + (" --local" if isinstance(at, LocalTarget) else "")
    return f"spotelastic up --name {its} … {shlex.quote(cluster.spec.script)} …"


def account(where: bool | None, region: str | None, note: Say) -> CloudTarget:
    """Return the local cloud or AWS, for a command about clusters that exist.

    `where`: True means the local cloud, False AWS, None the local cloud if one runs. A region
    that the local cloud does not have is for AWS. By default it is what a variable or the file in
    this folder says, else what AWS's configuration says. `note` is called if it has no
    effect. Raises `UsageError` if there is none.
    """
    running = None if where is False else cloud.find()
    if running is not None:
        if region is not None and region in cloud.REGIONS:
            return LocalTarget(running, region=region)
        if region is not None:
            note(
                f"note: --region {region} has no effect: this command acts on the local "
                "cloud; add --aws for AWS"
            )
        return LocalTarget(running)
    if where:
        systems.require_linux("--local")
        raise UsageError(
            "no local cloud is running: start one with `spotelastic up --local --detach SCRIPT`; "
            f"{WHAT_HAS_ENDED}"
        )
    if where is None and not aws_is_configured():
        if not systems.has_linux():
            raise UsageError(
                "no AWS account is configured: log in with `aws configure sso` or `aws configure`, "
                "or set AWS_PROFILE"
            )
        raise UsageError(
            "no local cloud is running and no AWS account is configured: start a local one "
            "with `spotelastic up --local --detach SCRIPT`, or set AWS_PROFILE; "
            f"{WHAT_HAS_ENDED}"
        )
    return in_region(region)


def holding(home: ClusterTarget, name: str | None, note: Say) -> ClusterTarget:
    """Return the region in which the cluster of that name is now: jobs may be moved.

    `note` is called where that is not `home`, from which forward pointers lead there.
    """
    if not isinstance(home, AwsTarget | LocalTarget):
        return home  # there are no regions
    at: AwsTarget | LocalTarget = home
    seen = {home.aws.region}
    while name is not None and not _is_at(at, name):
        left = at.left(name)
        pointer = None if left is None else forward_pointer(left)
        if pointer is None or pointer.region in ("", *seen):
            return home
        at = at.in_region(pointer.region)
        seen |= {pointer.region}
    if at is not home:
        note(f"note: {name} was moved to {at.aws.region}")
    return at


def _is_at(at: AwsTarget | LocalTarget, name: str) -> bool:
    """Whether the cluster is there, also if its bucket refuses to say what job it has."""
    with refusable():
        return at.known(name) is not None
    return True


def following(at: ClusterTarget, cluster: ShownCluster, note: Say) -> ClusterTarget:
    """Return the region in which the job of this cluster is: the cluster may be asleep.

    `note` is called where that is not `at`, in which the cluster was found.
    """
    if not isinstance(at, AwsTarget | LocalTarget) or not isinstance(cluster, ClusterRecord):
        return at
    there = awake(at, cluster) if sleeps(cluster) else None
    if there is None:
        return at
    note(f"note: {cluster.name} is asleep in {at.aws.region}, and is in {there.aws.region} now")
    return there


def located(
    home: ClusterTarget,
    name: str | None,
    note: Say,
    *,
    gone: bool = False,
    left: str = LAST_REPORT,
) -> tuple[ClusterTarget, ShownCluster]:
    """Return the cluster of that name, or the only one, and where it is now: jobs may be moved.

    `gone`: also one that was taken down and has left its last report; `left` says what that is.
    `note` is called for both. Raises `UsageError` if there is none.
    """
    if gone:
        at = holding(home, name, note)
        its = at.cluster_or_gone(name, note, left)
    else:
        at = home
        try:
            its = at.cluster(name)
        except UsageError:
            if (at := holding(home, name, note)) is home:
                raise
            its = at.cluster(name)
    if (there := following(at, its, note)) is at:
        return at, its
    return there, there.cluster(its.name)


def found(
    name: str | None,
    where: Place,
    region: str | None,
    note: Say,
    *,
    gone: bool = False,
    left: str = LAST_REPORT,
) -> tuple[ClusterTarget, ShownCluster]:
    """Return what `located` finds where `find` looks, for a command about one cluster.

    `gone`: while no local cloud runs, also what a local cluster has left on this machine: before
    AWS is asked if `where` or the lack of an account says so, and otherwise if AWS has none of that
    name. Raises `UsageError` if there is none.
    """
    here = left_target(name, where) if gone and name is not None else None
    if here is not None and is_meant(where):
        return here, here.cluster_or_gone(name, note, left)
    try:
        return located(find(where, region, note), name, note, gone=gone, left=left)
    except UsageError:
        if here is None or region is not None:
            raise
        return here, here.cluster_or_gone(name, note, left)


def is_meant(where: Place) -> bool:
    """Whether a command means what is left on this machine before it asks AWS."""
    return bool(where) or not aws_is_configured()


def left_target(name: str, where: Place) -> LeftTarget | None:
    """Return what the local cluster of that name has left on this machine.

    None if a local cloud runs, if `where` means another place, or if there is nothing.
    """
    if where is False or isinstance(where, KubePlace) or cloud.find() is not None:
        return None
    return LeftTarget.of(name)


def moved_to(home: CloudTarget, cluster: ShownCluster) -> CloudTarget | None:
    """Return the region that the job of this cluster was moved to, once it is led there."""
    pointer = forward_pointer(home.cluster(cluster.name))
    if pointer is None or not pointer.region:
        return None
    at = home.in_region(pointer.region)
    there = at.known(cluster.name)
    return at if there is not None and there.objects.status() is not None else None


def in_region(region: str | None) -> AwsTarget:
    """Return AWS, in that region or the configured one."""
    aws = Aws(region or _configured_region(), read_timeout=READ_TIMEOUT, attempts=ATTEMPTS)
    return AwsTarget(aws, region)


def _configured_region() -> str | None:
    """Return the configured region; None lets boto3 read AWS's configuration.

    boto3 reads all of it but `AWS_REGION`.
    """
    return configured("region") or os.environ.get("AWS_REGION") or None


def aws_is_configured() -> bool:
    """Whether AWS credentials are configured."""
    return has_credentials()
