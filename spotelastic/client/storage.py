"""Opens the storage of a run, and waits for object stores that do not answer."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from spotelastic_checkpoints.errors import CheckpointsError, StorageUnavailable
from spotelastic_checkpoints.storage.object_store import Storage
from spotelastic_checkpoints.storage.open import folder_of, open_storage
from spotelastic_checkpoints.storage.outage_retry import OutagePatience, OutageRetry
from spotelastic_checkpoints.storage.retrying import RetryingStorage

from spotelastic.errors import EnvironmentFailure, Unavailable
from spotelastic.local import cloud
from spotelastic.local.base import kept_objects

S3 = "s3://"
PATIENCE = OutagePatience(within=30.0, worth_a_word=1.0)
"""How long the storage may be unreachable."""


@contextmanager
def opened(
    url: str, tell: Callable[[str], None], patience: OutagePatience = PATIENCE
) -> Iterator[Storage]:
    """Open the storage at `url`, and retry object stores that do not answer.

    A folder is not retried: a full disk, for example, does not recover. An S3 URL means the local
    cloud if AWS is not configured; while no local cloud runs, the folder of its buckets is read
    directly.
    """
    url, is_local = _address_of(url)
    if is_local:
        use_local_cloud()
    if folder_of(url) is None:
        with retried(lambda: open_storage(url), tell, patience) as there:
            yield there
        return
    with explained(), closing(open_storage(url)) as there:
        yield there


def use_local_cloud() -> None:
    """Let this process, and those that list and abort uploads, use the local cloud if one runs."""
    running = cloud.find()
    if running is not None:
        os.environ.update(cloud.environment(running))


def _address_of(url: str) -> tuple[str, bool]:
    """Return the URL or folder to read from, and whether it is in the local cloud.

    While the local cloud runs, only it may change the folder of its buckets. While it does not run,
    its URLs become folders. Buckets of other names are AWS's, if an account is configured.
    """
    from spotelastic.client.targets.find import aws_is_configured

    shared = f"spotelastic-{cloud.ACCOUNT}-"  # no real AWS account has that number
    running = cloud.find() is not None
    if url.lower().startswith(S3):
        bucket, _, key = url[len(S3) :].partition("/")
        if not bucket.startswith(shared) and aws_is_configured():
            return url, False
        folder = cloud.buckets() / bucket / kept_objects.path_of(key.rstrip("/"))
        return (url, True) if running or not folder.is_dir() else (str(folder), False)
    folder_named = folder_of(url)
    if folder_named is None or not folder_named.is_relative_to(cloud.buckets()) or not running:
        return url, False
    bucket, *inside = folder_named.relative_to(cloud.buckets()).parts
    return f"{S3}{bucket}/{kept_objects.key_of(Path(*inside))}", True


@contextmanager
def retried(
    opening: Callable[[], Storage],
    tell: Callable[[str], None],
    patience: OutagePatience = PATIENCE,
) -> Iterator[Storage]:
    """Open an object store and repeat each call for a while if it does not answer.

    `tell` is called once if that happens.
    """
    retry = OutageRetry(tell, "this command", patience)
    with explained():
        there = RetryingStorage(retry.ask(opening), retry)
        try:
            yield there
        finally:
            retry.end()
            there.close()


@contextmanager
def explained() -> Iterator[None]:
    """Translate the storage's errors into spotelastic's."""
    try:
        yield
    except StorageUnavailable as error:
        raise Unavailable(str(error)) from error
    except CheckpointsError as error:
        raise EnvironmentFailure(str(error)) from error
