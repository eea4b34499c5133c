"""Takes down a job's clusters in all of its regions: one that moves by itself has one in each.

Must never happen: something that costs money is left in a region without being told. So what fails
in one region is told, and the others go on. The same command again finishes it: the description of
the job, which names the regions, goes last.
"""

from contextlib import suppress

from spotelastic.aws.base.clients import refusable
from spotelastic.aws.base.names import Names
from spotelastic.aws.clusters import stored_data, teardown
from spotelastic.aws.messaging import log_group
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.client.progress import Say
from spotelastic.client.targets.cloud_target import CloudTarget
from spotelastic.cloud.bucket import STOPPING
from spotelastic.errors import EnvironmentFailure, SpotelasticError, UsageError


def delete(
    home: CloudTarget, name: str | None, say: Say, *, keep_data: bool, bucket: str | None
) -> None:
    """Take the job's clusters down, that of `home` first, and tell what stays stored.

    Raises `EnvironmentFailure` if something is left in a region.
    """
    name = home.only_one() if name is None else name
    away = [home.in_region(region) for region in _others(home, name, say)]
    if not away:
        home.delete(name, say, keep_data=keep_data, bucket=bucket)
        return
    its = [at for at in (home, *away) if _has_parts(at, name)]
    if not its and keep_data:
        home.cluster(name)  # raises an error that lists the clusters
    for at in its:  # before anything goes, so that none is woken by another
        with suppress(SpotelasticError):  # its end tells that, too
            BucketObjects(at.aws, at.bucket, name).put(STOPPING, b"")
    failed = [at.aws.region for at in its if not _ends(at, name, say, keep_data=keep_data)]
    if failed:
        raise EnvironmentFailure(
            f"{name} is left in {' and in '.join(failed)}, where it costs money: run `spotelastic "
            f"down {name}` again"
        )
    for at in () if keep_data else (*away, home):
        log_group.delete(at.aws, Names(name))
        stored_data.delete(stored_data.of(at.aws, at.bucket, name), say)


def _others(home: CloudTarget, name: str, say: Say) -> tuple[str, ...]:
    """Return the job's other regions; none, and tell it, where the bucket refuses to say."""
    unsure = "if the job moves between regions, take it down in the others with --region"
    with refusable(lambda why: say(f"{why}: {unsure}")):
        return home.other_regions(name)
    return ()


def _has_parts(at: CloudTarget, name: str) -> bool:
    return name in at.names() or teardown.has_secrets(at.aws, name)


def _ends(at: CloudTarget, name: str, say: Say, *, keep_data: bool) -> bool:
    """Take the cluster down in one region; return False, and tell why, if something is left."""

    def tell(line: str) -> None:
        say(f"{at.aws.region}: {line}")

    try:
        if keep_data:
            at.delete(name, tell, keep_data=True, bucket=None)
        else:
            teardown.delete(name, say=tell, aws=at.aws)
    except SpotelasticError as error:
        if isinstance(error, UsageError) and not _has_parts(at, name):
            return True  # it has ended meanwhile
        tell(str(error))
        return False
    return True
