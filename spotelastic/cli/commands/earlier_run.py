"""The checkpoints that a cluster of this name has left: from which step `up` goes on, or that it
begins afresh."""

from collections.abc import Callable

from spotelastic.aws.clusters.lifecycle import Cluster
from spotelastic.aws.messaging.bucket import CHECKPOINTS, BucketObjects
from spotelastic.client.job_config import JobRequest, ValidatedJob
from spotelastic.client.target import CloudTarget
from spotelastic.errors import UsageError

Say = Callable[[str], None]


def check(request: JobRequest, known: Cluster | None) -> None:
    """Raises `UsageError` where --fresh has no meaning."""
    if request.fresh and request.resume:
        raise UsageError(f"--fresh and --resume {request.resume}: give one of them")
    if request.fresh and known is not None:
        raise UsageError(
            f"--fresh: the cluster {known.name} is up and trains: end it first with "
            f"`spotelastic down {known.name}`, which keeps its checkpoints"
        )


def begin(place: CloudTarget, request: JobRequest, checked: ValidatedJob, say: Say) -> None:
    """Says what a new cluster goes on from. With --fresh nothing that is there counts any more; it
    is not deleted."""
    from spotelastic_checkpoints.commit.commit_protocol import LATEST
    from spotelastic_checkpoints.provenance import StoredRun, ago, without_secrets

    from spotelastic.cli.commands import ckpt_target

    bucket, run = request.bucket or place.bucket, request.resume or checked.name
    left = BucketObjects(place.aws, bucket, run)
    if not left.has(CHECKPOINTS + LATEST):
        return
    url = left.url(CHECKPOINTS.rstrip("/"))
    with ckpt_target.storage(url) as there:
        kept = StoredRun(there, run)
        commit = kept.commits.begin_afresh() if request.fresh else kept.commits.latest()
        if commit is None:
            return
        if request.fresh:
            say(
                f"beginning afresh: step {commit.step} and what was before it stay in {url}, and "
                "count no more"
            )
            return
        saved = kept.saved_at(commit)
    when = f", saved {ago(saved)}" if saved else ""
    job = left.job()
    by = f" by {' '.join([job.script, *without_secrets(job.args)])}" if job else ""
    say(f"going on from step {commit.step} of the run {run}{when}{by}; begin afresh with --fresh")
    if job and job.script != checked.script:
        say(f"warning: that run was made by another script, {job.script}")
    elif job and job.args != request.args:
        args = " ".join(without_secrets(job.args))
        say(f"warning: that run had other arguments: {args or 'none'}")
