"""Chooses the region of a job, where `--regions` names several.

A job goes on where its cluster or its checkpoints are. Otherwise each region is surveyed, one after
another, as `up` surveys a single one; nothing is made anywhere.

Must never happen: a job begins at step 0 in one region while its checkpoints lie in another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spotelastic_checkpoints.commit.latest import LATEST, ForwardPointer

from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.client.bringing_up.plan import RegionPlan
from spotelastic.client.config.moving_policy import named
from spotelastic.client.config.validated_job import ValidatedJob
from spotelastic.client.progress import Say
from spotelastic.client.targets import local_data
from spotelastic.client.targets.account import pointer_of
from spotelastic.client.targets.asleep import sleeps
from spotelastic.client.targets.choice import chosen
from spotelastic.client.targets.cloud_target import CloudTarget
from spotelastic.cloud.bucket import CHECKPOINTS
from spotelastic.cloud.model import ZoneOffer, ranked
from spotelastic.errors import EnvironmentFailure, SpotelasticError, UsageError

Entered = tuple[CloudTarget, tuple[RegionPlan, ...]]
"""A region as a target, and what was compared to choose it."""


@dataclass(frozen=True, slots=True)
class Offered:
    """What a region offers, or why it offers nothing."""

    plan: RegionPlan
    zone: ZoneOffer | None = None


def enter(job: ValidatedJob, say: Say) -> Entered:
    """Return the account in which the cluster is to be, and the regions that were compared.

    Raises `UsageError` where the job is in several of them already, and `EnvironmentFailure` where
    it can be in none.
    """
    config = job.config
    home = chosen(config).enter(config, say)
    if not config.regions:
        return home, ()
    return choose(job, {name: home.in_region(name) for name in named(config.regions)}, say)


def choose(job: ValidatedJob, targets: Mapping[str, CloudTarget], say: Say) -> Entered:
    """Return the best of these regions for the job; see `enter`."""
    if (there := _there_already(job, targets, say)) is not None:
        return targets[there.region], (there,)
    offered = []
    for region, target in targets.items():
        say(f"looking at {region}")
        offered.append(_offered(job, region, target))
    plans = compared(offered)
    best = plans[0]
    if best.refusal:
        reasons = "; ".join(f"{each.region}: {each.refusal}" for each in plans)
        raise EnvironmentFailure(f"the job can be in none of the regions: {reasons}")
    say(f"begins in {best.region}: {best.chosen}")
    return targets[best.region], plans


def compared(offered: Sequence[Offered]) -> tuple[RegionPlan, ...]:
    """Return the regions, best first; the first says why it was chosen, if it is possible (pure).

    They are ranked as zones are, by the price of a node and the likelihood of getting it.
    """
    plans = {each.plan.region: each.plan for each in offered}
    zones = [each.zone for each in offered if each.zone is not None]
    order = [plans[zone.name] for zone in ranked(zones)]
    refused = [each.plan for each in offered if each.zone is None]
    if not order:
        return tuple(refused)
    best = order[0]
    by_score = any(each.score for each in order)
    if len(order) == 1:
        why = "the only one that is possible"
    elif not best.usd:
        why = "no price is known anywhere"
    else:
        why = "best by price and placement score" if by_score else "the cheapest"
    return (replace(best, chosen=why), *order[1:], *refused)


def _there_already(
    job: ValidatedJob, targets: Mapping[str, CloudTarget], say: Say
) -> RegionPlan | None:
    """Return the region that has the job's cluster, or else its checkpoints; None for no region."""
    up = _where_it_is(job, targets)
    if len(up) > 1:
        raise UsageError(
            f"--regions: {job.name} is up in {' and in '.join(up)}: end one of them with "
            f"`spotelastic down {job.name} --region {up[1]}`, or name the other with --region"
        )
    if up:
        say(f"{job.name} is up in {up[0]}")
        return RegionPlan(up[0], chosen=f"{job.name} is up there")
    if job.config.fresh:
        return _where_it_was_moved(job, targets, say)
    steps = {region: _committed(job, target) for region, target in targets.items()}
    found = {region: step for region, step in steps.items() if step is not None}
    if not found:
        return None
    region = max(found, key=lambda each: found[each])
    why = f"its checkpoints are there, the newest of step {found[region]}"
    say(f"goes on in {region}: {why} (--fresh begins in the best region, at step 0)")
    return RegionPlan(region, chosen=why)


def _where_it_is(job: ValidatedJob, targets: Mapping[str, CloudTarget]) -> list[str]:
    """Return the regions that have the job's cluster, without those where it is asleep.

    While the job is moved it may be asleep in all of them, or awake in two, of which one is closed.
    """
    known = {region: target.known(job.name) for region, target in targets.items()}
    found = {region: record for region, record in known.items() if record is not None}
    if len(found) < 2:
        return list(found)
    closed = [region for region in found if _pointer(job, targets[region]) is not None]
    awake = [region for region, record in found.items() if not sleeps(record)]
    likely = [region for region in awake if region not in closed] or awake
    if likely:
        return likely
    trained = [region for region in found if _committed(job, targets[region]) is not None]
    return (trained or [region for region in found if region not in closed] or list(found))[:1]


def _where_it_was_moved(
    job: ValidatedJob, targets: Mapping[str, CloudTarget], say: Say
) -> RegionPlan | None:
    """Return the region to which forward pointers lead: a run begins afresh there alone."""
    pointers = [_pointer(job, target) for target in targets.values()]
    moved = [region for region in targets if _committed(job, targets[region]) is not None]
    if not any(pointers) or len(moved) != 1:
        return None
    say(f"begins in {moved[0]}: its run was moved there")
    return RegionPlan(moved[0], chosen="its run was moved there")


def _pointer(job: ValidatedJob, target: CloudTarget) -> ForwardPointer | None:
    return pointer_of(_run(job, target))


def _run(job: ValidatedJob, target: CloudTarget) -> BucketObjects:
    bucket = job.config.bucket or target.bucket
    return BucketObjects(target.aws, bucket, job.config.resume or job.name)


def _committed(job: ValidatedJob, target: CloudTarget) -> int | None:
    """Return the step of the run's newest commit in this region; None if there is none."""
    latest = _run(job, target).get(f"{CHECKPOINTS}{LATEST}")
    return None if latest is None else local_data.committed(latest)


def _offered(job: ValidatedJob, region: str, target: CloudTarget) -> Offered:
    try:
        found = job.survey(target.aws)
    except SpotelasticError as error:
        return Offered(RegionPlan(region, refusal=str(error)))
    if found.obstacles and not job.config.force:
        return Offered(RegionPlan(region, refusal="; ".join(found.obstacles)))
    best = found.ranking[0] if found.ranking else ZoneOffer("", usd=found.price)
    plan = RegionPlan(
        region,
        instance_types=tuple(kind.name for kind in found.types),
        zone=best.name,
        score=best.score,
        usd=best.usd,
        usd_per_hour_at_max=found.estimate.high,
        warnings=found.warnings,
    )
    return Offered(plan, replace(best, name=region))
