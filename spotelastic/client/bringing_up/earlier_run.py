"""Tells from which stored checkpoint a new cluster continues; with --fresh, starts it at step 0."""

from collections.abc import Callable

from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.validated_job import ValidatedJob
from spotelastic.client.storage import retried
from spotelastic.client.targets.cloud_target import CloudTarget
from spotelastic.cloud.bucket import CHECKPOINTS
from spotelastic.errors import OtherVersion, UsageError

Say = Callable[[str], None]


def check(config: JobConfig, known: ClusterRecord | None) -> None:
    """Raise `UsageError` if --fresh contradicts --resume or the cluster is already up."""
    if config.fresh and config.resume:
        raise UsageError(f"--fresh and --resume {config.resume}: give only one of them")
    if config.fresh and known is not None:
        raise UsageError(
            f"--fresh: the cluster {known.name} is training: end it first with "
            f"`spotelastic down {known.name}`, which keeps its checkpoints"
        )


def begin(target: CloudTarget, wanted: ValidatedJob, say: Say) -> None:
    """Report the step that a new cluster continues from.

    With --fresh the earlier checkpoints are set aside: they stay stored but are no longer used.
    """
    from spotelastic_checkpoints.commit.latest import LATEST
    from spotelastic_checkpoints.provenance import StoredRun, ago, without_secrets

    config = wanted.config
    bucket, run = config.bucket or target.bucket, config.resume or wanted.name
    left = BucketObjects(target.aws, bucket, run)
    if not left.has(CHECKPOINTS + LATEST):
        return
    url = left.url(CHECKPOINTS.rstrip("/"))
    with retried(lambda: target.storage(url), say) as there:
        kept = StoredRun(there, run)
        commit = kept.commits.begin_afresh() if config.fresh else kept.commits.latest()
        if commit is None:
            return
        if config.fresh:
            say(
                f"beginning afresh: step {commit.step} and earlier ones stay in {url}, but are no "
                "longer used"
            )
            return
        saved = kept.saved_at(commit)
    when = f", saved {ago(saved)}" if saved else ""
    try:
        job = left.job()
    except OtherVersion:
        job = None  # what it was, only the version that made it can tell
    by = f" by {' '.join([job.script, *without_secrets(job.args)])}" if job else ""
    resumed = f"continuing from step {commit.step} of the run {run}{when}{by}"
    say(f"{resumed}; begin afresh with --fresh before the script")
    if job and job.script != wanted.spec.script:
        say(f"warning: that run was made by another script, {job.script}")
    elif job and job.args != wanted.spec.args:
        args = " ".join(without_secrets(job.args))
        say(f"warning: that run had other arguments: {args or 'none'}")
