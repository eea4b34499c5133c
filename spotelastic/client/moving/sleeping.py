"""Wakes a cluster that is asleep in a region, so that it goes on with a job from another one.

It knows nothing of the time before it slept: its etcd begins anew, in a new generation, and what it
had published is gone. The job, its bill and its curve are in the bucket by then.
"""

from dataclasses import replace

from spotelastic.aws.clusters import asleep
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.cloud.bucket import EVENTS, MOVING, REPORT, STATUS, STOPPING
from spotelastic.controller.etcd.generations import SNAPSHOTS, Generation, Generations
from spotelastic.errors import EnvironmentFailure
from spotelastic.model.job import JobSpec


def wake(job: JobSpec, here: BucketObjects, there: BucketObjects) -> None:
    """Wake the cluster of the objects `there`, for the job as the objects `here` have it.

    Can be repeated at any point until it is awake.
    """
    if there.has(STOPPING):
        raise EnvironmentFailure(f"{job.cluster} is being taken down: it is not woken")
    if there != here:
        _take_code(job, here, there)
        there.change_job(lambda known: carried(known, job))
    for name in (STATUS, EVENTS, REPORT, MOVING):
        there.delete(name)
    if not asleep.is_awake(there.aws, there.cluster):
        generations = Generations(there)
        generations.open(Generation(generations.number() + 1))
        there.delete_all(SNAPSHOTS)  # of an earlier stay
        asleep.wake(there.aws, there.cluster)


def carried(known: JobSpec, job: JobSpec) -> JobSpec:
    """Return a region's description of the job with what was changed in another region (pure).

    What belongs to the region stays: network, queue, etcd, storage, roles, certificates, and the
    versions of secrets.
    """
    there = replace(
        known,
        script=job.script,
        args=job.args,
        code=job.code,
        settings=job.settings,
        container=job.container,
        capacity=job.capacity,
        linger=job.linger,
        environment=job.environment,
        setup=job.setup,
        env=job.env,
        folder=job.folder,
        regions=job.regions,
    )
    return replace(there, settings=replace(there.settings, code=there.release))


def _take_code(job: JobSpec, here: BucketObjects, there: BucketObjects) -> None:
    name = f"code/{job.code}.tar.gz"
    if there.has(name):
        return
    code = here.get(name)
    if code is None:
        raise EnvironmentFailure(f"{here.url(name)} is missing: the job cannot be moved")
    there.put(name, code)
