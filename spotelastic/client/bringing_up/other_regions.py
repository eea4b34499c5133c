"""Makes and changes a job's clusters in the regions that it may move to, where they are asleep.

Each has all that the job needs, made with the user's rights, so that a control node needs none to
make anything. What fails in one region is told, and the job goes on without it.

Must never happen: a cluster that is asleep is woken here, and two of them train.
"""

from dataclasses import replace

from spotelastic_checkpoints.commit.latest import LATEST

from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.aws.planning.plan import ClusterSpec
from spotelastic.aws.planning.survey import survey
from spotelastic.client.config.validated_job import ValidatedJob
from spotelastic.client.progress import Say
from spotelastic.client.targets.account import pointer_of
from spotelastic.client.targets.asleep import other_regions
from spotelastic.client.targets.cloud_target import CloudTarget
from spotelastic.cloud.bucket import CHECKPOINTS
from spotelastic.errors import SpotelasticError
from spotelastic.model.job import JobSpec


def ensure(
    home: CloudTarget, job: ValidatedJob, wanted: ClusterSpec, record: ClusterRecord, say: Say
) -> None:
    """Make or change the clusters that sleep.

    `wanted` is the one in which the job is, `record` is that as it was made.
    """
    for region in other_regions(record.spec, home.aws.region):
        at = home.in_region(region)
        say(f"{region}: a cluster of {job.name} that is asleep until the job moves there")
        try:
            _ensure(at, job, wanted, record, _of(region, say))
        except SpotelasticError as error:
            say(
                f"warning: {job.name} cannot move to {region} for now: {error}; it goes on in "
                f"{home.aws.region}: fix that, and run the same `spotelastic up` again"
            )


def _ensure(
    at: CloudTarget, job: ValidatedJob, wanted: ClusterSpec, record: ClusterRecord, say: Say
) -> None:
    spec = replace(wanted.job, run=record.spec.run)
    known = at.known(job.name)
    found = survey(
        at.aws,
        spec,
        placed=bool(job.config.placement),
        disk=job.config.disk,
        known=None if known is None else known.spec,
    )
    for warning in found.warnings:
        say(f"warning: {warning}")
    zones = tuple(zone.name for zone in found.ranking)
    at.create(at.fitted(replace(wanted, job=spec, zones=zones, asleep=True)), say, new=False)
    run = BucketObjects(at.aws, at.bucket, spec.run)
    if run.has(f"{CHECKPOINTS}{LATEST}") and pointer_of(run) is None:
        say(
            f"warning: {run.url(CHECKPOINTS)} has checkpoints of an earlier job, so that this one "
            "cannot move here: delete them, or choose another --name"
        )


def end_former(home: CloudTarget, known: JobSpec, now: JobSpec, say: Say) -> None:
    """Take down what is asleep in regions that the job does not move to any more.

    It is made a job of that region alone before, so that its end, by whomever, is none of this one.
    """
    for region in set(other_regions(known, home.aws.region)) - set(
        other_regions(now, home.aws.region)
    ):
        at = home.in_region(region)
        if known.cluster not in at.names():
            continue
        say(f"{region}: {known.cluster} ends, as the job does not move there any more")
        try:
            if (there := at.known(known.cluster)) is not None:
                there.change(lambda spec: replace(spec, regions=None))
            at.delete(known.cluster, _of(region, say), keep_data=True, bucket=None)
        except SpotelasticError as error:
            say(
                f"warning: {known.cluster} is left in {region}, where its disks cost money: "
                f"{error}; run `spotelastic down {known.cluster} --region {region}`"
            )


def _of(region: str, say: Say) -> Say:
    return lambda line: say(f"{region}: {line}")
