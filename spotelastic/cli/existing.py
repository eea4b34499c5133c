"""What is there already when `up` is asked for a cluster: the cluster itself, or an earlier run."""

from spotelastic.aws import account, networks
from spotelastic.aws.cluster import Cluster
from spotelastic.aws.objects import Objects
from spotelastic.cli.place import Place, cost_of
from spotelastic.cli.request import Checked, Request
from spotelastic.controller.limits import is_spent
from spotelastic.controller.seen import Money, Policy
from spotelastic.errors import UsageError
from spotelastic.model.job import ENDED


def find(place: Place, request: Request, checked: Checked) -> Cluster | None:
    """The cluster of that name; None where it is to be made.

    Raises `UsageError` for one whose job has ended or may cost no more than it has, and for a run
    that cannot be resumed.
    """
    known = place.known(checked.name)
    if request.bucket or known is None:
        account.check_bucket(place.aws, request.bucket or place.bucket)
    if known is not None:
        status = known.objects.status()
        if status is not None and status.state in ENDED:
            raise UsageError(
                f"the job of {known.name} has {status.state}: let it go on with "
                f"`spotelastic restart {known.name}`, or end the cluster with `spotelastic down "
                f"{known.name}` and run this again; both go on from the last checkpoint"
            )
        networks.check_kept(known.name, known.spec.subnets, request.subnets)
        if request.resume and known.spec.run != request.resume:
            raise UsageError(
                f"--resume {request.resume}: the cluster {known.name} exists and trains the run "
                f"{known.spec.run}; choose another --name"
            )
        _check_cost(known, checked.capacity.max_cost)
    elif request.resume:
        _check_resumable(place, request)
    return known


def _check_cost(known: Cluster, limit: float | None) -> None:
    """The limit that it has already is no news: who says it again may come to see the end."""
    if limit is None or limit == known.spec.capacity.max_cost:
        return
    cost = cost_of(known)
    if is_spent(Money(cost.total_usd, cost.total_usd_per_hour), limit, Policy()):
        raise UsageError(
            f"--max-cost {limit:g}: {known.name} has cost ${cost.total_usd:.2f} already, at "
            f"${cost.total_usd_per_hour:.2f} an hour now, and would be stopped at once: say what "
            "it may cost in all"
        )


def _check_resumable(place: Place, request: Request) -> None:
    """One run is trained by one cluster at a time, and it must have got somewhere."""
    run = str(request.resume)
    for name in place.names():
        other = place.known(name)
        if other is not None and other.spec.run == run:
            raise UsageError(
                f"--resume {run}: the cluster {name} trains that run: end it first with "
                f"`spotelastic down {name}`"
            )
    bucket = request.bucket or place.bucket
    if not Objects(place.aws, bucket, run).has("checkpoints/LATEST"):
        raise UsageError(f"--resume {run}: there are no checkpoints of it in s3://{bucket}/{run}/")
