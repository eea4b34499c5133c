"""Finds the cluster or earlier run that `up` would continue, and refuses conflicts.

It does so before anything is made.
"""

from collections.abc import Iterator

from spotelastic_checkpoints.commit.latest import LATEST

from spotelastic import __version__
from spotelastic.aws.artifacts import boot_artifacts
from spotelastic.aws.base import account
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.aws.network import existing_vpc
from spotelastic.client import confirmation
from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.validated_job import ValidatedJob
from spotelastic.client.confirmation import Confirm
from spotelastic.client.published import cost_of
from spotelastic.client.targets import local_data
from spotelastic.client.targets.account import pointer_of
from spotelastic.client.targets.asleep import awake, sleeps
from spotelastic.client.targets.cloud_target import CloudTarget
from spotelastic.client.watch import goes_to
from spotelastic.cloud.bucket import CHECKPOINTS
from spotelastic.controller.decisions.limits import is_spent
from spotelastic.controller.model.observation import ControllerPolicy, Money
from spotelastic.errors import OtherVersion, UsageError
from spotelastic.model.counting import dollars
from spotelastic.model.job import ENDED
from spotelastic.model.protocol import PROTOCOL


def find(target: CloudTarget, job: ValidatedJob, confirm: Confirm) -> ClusterRecord | None:
    """Return the cluster of that name; None if it is to be created.

    Raises `UsageError` for a cluster whose job has ended or has used up its cost limit. Also for a
    run that cannot be resumed, and for a job of another script or folder unless that is confirmed.
    """
    config = job.config
    known = target.known(job.name)
    if config.bucket or known is None:
        account.check_bucket(target.aws, config.bucket or target.bucket)
    if known is not None:
        _check_awake(target, known)
        status = None if sleeps(known) else known.objects.status()
        if status is not None and status.state in ENDED and (region := goes_to(known)):
            raise UsageError(
                f"{known.name} is just moving to {region}: run this again when it trains there"
            )
        if status is not None and status.state in ENDED:
            raise UsageError(
                f"the job of {known.name} has {status.state}: continue it with "
                f"`spotelastic restart {known.name}`, or end the cluster with `spotelastic down "
                f"{known.name}` and run this again; both continue from the last checkpoint "
                "(the second one with --fresh: from step 0)"
            )
        existing_vpc.check_kept(known.name, known.spec.subnets, tuple(config.subnets))
        if config.resume and known.spec.run != config.resume:
            raise UsageError(
                f"--resume {config.resume}: the cluster {known.name} exists and trains the run "
                f"{known.spec.run}; choose another --name"
            )
        check_spent(known, job.spec.capacity.max_cost)
        _check_meant(known, job, confirm)
        return known
    _check_moved(target, job)
    if config.resume:
        _check_resumable(target, config)
    else:
        _check_gone(target, job, confirm)
    return known


def versions(known: ClusterRecord | None) -> Iterator[str]:
    """Says what becomes of nodes that run another spotelastic than this command ships.

    Another major version was refused when the cluster's job was read.
    """
    other = boot_artifacts.other_release(known.objects) if known is not None else ""
    if known is not None and other:
        yield (
            f"{known.name} runs spotelastic {other} (protocol {known.spec.protocol}), and this "
            f"command is {__version__} (protocol {PROTOCOL}): nodes that start from now on have "
            "this one; those that run keep theirs until they are replaced, and work with them"
        )


def _check_awake(target: CloudTarget, known: ClusterRecord) -> None:
    """Raise `UsageError` for a cluster that is asleep while its job is in another region."""
    there = awake(target, known) if sleeps(known) else None
    if there is not None:
        raise UsageError(
            f"{known.name} is asleep in {target.aws.region}: its job is in {there.aws.region}, and "
            f"moves by itself: run `spotelastic up` with its --regions and --region-patience, or "
            f"with `--region {there.aws.region}`"
        )


def _check_moved(target: CloudTarget, job: ValidatedJob) -> None:
    """Raise `UsageError` for a run that was moved to another region: it can train there alone."""
    run = job.config.resume or job.name
    bucket = job.config.bucket or target.bucket
    pointer = pointer_of(BucketObjects(target.aws, bucket, run))
    if pointer is not None:
        raise UsageError(
            f"the run {run} was moved to {pointer.region}: add `--region {pointer.region}`, or "
            f"bring it back with `spotelastic move {job.name} --region {target.aws.region}`"
        )


def _check_meant(known: ClusterRecord, job: ValidatedJob, confirm: Confirm) -> None:
    """Ask before the job of a running cluster is changed to another script or folder."""
    other = confirmation.difference(known.spec, job.spec.script, job.spec.folder)
    if other is not None:
        name = known.name
        confirmation.ensure_other(
            "other job",
            f"{name} is up already, and trains {other}",
            "Change its job to that?",
            f"give this one another --name, or end that one first with `spotelastic down {name}`",
            confirm,
        )


def _check_gone(target: CloudTarget, job: ValidatedJob, confirm: Confirm) -> None:
    """Ask before a new cluster continues checkpoints that another script or folder has made."""
    name = job.name
    objects = BucketObjects(target.aws, job.config.bucket or target.bucket, name)
    try:
        left = objects.job()
        other = left and confirmation.difference(left, job.spec.script, job.spec.folder)
    except OtherVersion:
        other = "another version of spotelastic, which may have trained something else"
    latest = objects.get(f"{CHECKPOINTS}{LATEST}") if other is not None else None
    if latest is not None and local_data.committed(latest) is not None:
        confirmation.ensure_other(
            "other checkpoints",
            f"the checkpoints of {name} were made by {other}",
            "Continue from them?",
            f"give this one another --name, or delete them with `spotelastic down {name} "
            "--delete-data`",
            confirm,
        )


def check_spent(known: ClusterRecord, limit: float | None) -> None:
    """Refuse a new cost limit that the cluster has already used up.

    The limit that it already has is accepted: the user may come back to watch the end.
    """
    if limit is None or limit == known.spec.capacity.max_cost:
        return
    cost = cost_of(known)
    if is_spent(Money(cost.total_usd, cost.total_usd_per_hour), limit, ControllerPolicy()):
        raise UsageError(
            f"--max-cost {limit:g}: {known.name} has cost {dollars(cost.total_usd)} already, at "
            f"{dollars(cost.total_usd_per_hour)} an hour now, and would be stopped at once: give a "
            "limit for the whole job"
        )


def _check_resumable(target: CloudTarget, config: JobConfig) -> None:
    """Check that no other cluster trains the run, and that it has checkpoints."""
    run = str(config.resume)
    for name in target.names():
        other = target.known(name)
        if other is not None and other.spec.run == run:
            raise UsageError(
                f"--resume {run}: the cluster {name} trains that run: end it first with "
                f"`spotelastic down {name}`"
            )
    bucket = config.bucket or target.bucket
    if not BucketObjects(target.aws, bucket, run).has("checkpoints/LATEST"):
        raise UsageError(f"--resume {run}: it has no checkpoints in s3://{bucket}/{run}/")
