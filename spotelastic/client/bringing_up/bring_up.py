"""Carries out an `up`: looks what is there, prepares, and creates or changes the cluster.

Nothing is created before all checks have passed and the caller has confirmed the price.
"""

from collections.abc import Collection
from dataclasses import dataclass

from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.planning.plan import ClusterSpec
from spotelastic.aws.planning.survey import Survey
from spotelastic.aws.security import secrets
from spotelastic.client.bringing_up import earlier_run, other_regions, plan, preflight
from spotelastic.client.bringing_up.plan import Planned, RegionPlan
from spotelastic.client.cluster import Cluster
from spotelastic.client.config.differences import differences
from spotelastic.client.config.validated_job import ValidatedJob
from spotelastic.client.confirmation import Confirm, ConfirmationRequest, ensure
from spotelastic.client.moving import sleeping
from spotelastic.client.progress import FirstStepTimer, OnUpdate, Say, saying
from spotelastic.client.targets.asleep import sleeps
from spotelastic.client.targets.cloud_target import CloudTarget
from spotelastic.clock import steady
from spotelastic.errors import EnvironmentFailure, SpotelasticError
from spotelastic.model.counting import counted, usd
from spotelastic.model.progress import Event


@dataclass(frozen=True, slots=True)
class PreparedUp:
    """An `up` whose checks have passed; nothing was changed yet."""

    job: ValidatedJob
    target: CloudTarget
    known: ClusterRecord | None
    """The cluster, if it is up already."""
    found: Survey
    regions: tuple[RegionPlan, ...] = ()
    """What was compared, if several regions were named."""

    def plan(self) -> Planned:
        """Return what would be created or changed, and its price."""
        known = None if self.known is None else self.known.spec
        here = self.target.aws.region
        secret = self.changed_secrets()
        return plan.planned(self.job, self.found, known, secret, self.regions, here)

    def changed_secrets(self) -> Collection[str]:
        """Return the secrets and the notifications' receivers that differ in the known cluster.

        The cluster lacks them, or has them with another value.
        """
        if self.known is None:
            return ()
        aws, job = self.target.aws, self.job
        its = secrets.differing(aws, job.name, job.secrets)
        return (*its, *secrets.differing(aws, job.name, job.notify, "notify"))


def look(target: CloudTarget, job: ValidatedJob, confirm: Confirm) -> ClusterRecord | None:
    """Return the cluster of the job's name, if it is up already.

    `confirm` is asked about what another script or folder has made. Raises `UsageError` if the job
    cannot be brought up beside what is there.
    """
    known = preflight.find(target, job, confirm)
    earlier_run.check(job.config, known)
    return known


def prepare(
    target: CloudTarget,
    job: ValidatedJob,
    known: ClusterRecord | None,
    regions: tuple[RegionPlan, ...] = (),
) -> PreparedUp:
    """Look up what the account offers for the job. Raises `UsageError` if that contradicts it.

    `regions`: those that were compared before.
    """
    if known is not None:
        job = job.beside(known.spec)
    found = job.survey(target.aws, None if known is None else known.spec)
    plan.check_limits(job, found)
    return PreparedUp(job, target, known, found, regions)


def carry_out(prepared: PreparedUp, confirm: Confirm, on_update: OnUpdate) -> Cluster:
    """Create the cluster, or change the known one where its job differs.

    `confirm` is asked about the price, where it is billed. Raises `NotConfirmed` before anything is
    created.
    """
    job, target, known = prepared.job, prepared.target, prepared.known
    say = saying(on_update)
    if known is None:
        _check(prepared.found, force=job.config.force, say=say)
        if target.costs_money:
            ensure(_price(job.name, prepared.found), confirm)
        began = steady()
        earlier_run.begin(target, job, say)
        wanted = target.fitted(job.cluster(prepared.found))
        made = target.create(wanted, say, new=True)
        _everywhere(prepared, wanted, made, say)
        return Cluster(target, made, first=FirstStepTimer(began))
    told = _earlier(known, say)
    wanted = target.fitted(job.cluster(prepared.found))
    changes = "; ".join(differences(known.spec, wanted.job, prepared.changed_secrets()))
    say(f"{job.name} is up already; changes: {changes or 'none'}")
    made = target.create(wanted, say, new=False)
    if sleeps(made):  # a move was cut off when the job was in no region
        sleeping.wake(made.spec, made.objects, made.objects)
    other_regions.ensure(target, job, wanted, made, say)
    other_regions.end_former(target, known.spec, made.spec, say)
    return Cluster(target, made, told=told)


def _check(found: Survey, *, force: bool, say: Say) -> None:
    """Raise `EnvironmentFailure` where what is made could not work, and would be paid for."""
    if not found.obstacles:
        return
    told = "; ".join(found.obstacles)
    if not force:
        raise EnvironmentFailure(f"{told}. Nothing was created; --force tries it all the same")
    say(f"warning: {told}")


def _everywhere(prepared: PreparedUp, wanted: ClusterSpec, made: ClusterRecord, say: Say) -> None:
    """Make the clusters in other regions of the job; if that is interrupted, all of them go."""
    target, job = prepared.target, prepared.job
    try:
        other_regions.ensure(target, job, wanted, made, say)
    except BaseException:
        say(f"creating {job.name} was interrupted: deleting what was created, in all regions")
        try:
            target.down(job.name, say)
        except SpotelasticError as error:
            say(f"not all of {job.name} could be deleted: {error}")
        raise


def _price(name: str, found: Survey) -> ConfirmationRequest:
    high = found.estimate.high
    return ConfirmationRequest(
        about="price",
        what=f"creating {name} costs money, up to {usd(high)} an hour",
        question="Create it for this price?",
        declined="nothing was created",
    )


def _earlier(known: ClusterRecord, say: Say) -> list[Event]:
    """Return the events that a running cluster has already; they are not told again."""
    events = known.objects.events()
    if events:
        before = counted(len(events), "event")
        say(f"{known.name} has {before} from before: see spotelastic events {known.name}")
    return events
