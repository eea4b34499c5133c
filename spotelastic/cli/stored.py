"""What a command of `ckpt` names: a run, by a folder, a URL or its cluster, and a step of it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spotelastic.errors import EnvironmentFailure, Unavailable, UsageError

if TYPE_CHECKING:
    from spotelastic_checkpoints.catalog import Catalog, Checkpoint
    from spotelastic_checkpoints.commits import Commits
    from spotelastic_checkpoints.storage.port import Storage
    from spotelastic_checkpoints.wire import Commit


@dataclass(slots=True)
class Named:
    """What a URL names; the checkpoint is looked up when it is asked for."""

    catalog: "Catalog"
    url: str
    epoch: int | None
    step: int | None

    @property
    def commits(self) -> "Commits":
        from spotelastic_checkpoints.commits import Commits

        return Commits(self.catalog.storage, "")

    @property
    def checkpoint(self) -> "Checkpoint":
        found = self.catalog.find(self.step, self.epoch)
        self.step = found.commit.step
        return found

    @property
    def commit(self) -> "Commit":
        """Of the step that was named, be it damaged or never committed."""
        from spotelastic_checkpoints.wire import Commit

        entries = self.catalog.entries()
        found = [e for e in entries if e.step == self.step and self.epoch in (None, e.epoch)]
        if not found:
            raise UsageError(f"{self.url}: there is no step {self.step}")
        return Commit(found[-1].epoch, found[-1].step)

    def __str__(self) -> str:
        return f"{self.url}@{self.step}"


@contextmanager
def opened(text: str) -> Iterator[Named]:
    """Of `URL[@[EPOCH/]STEP]`, or a cluster's name instead of the URL."""
    from spotelastic_checkpoints.catalog import Catalog

    url, epoch, step = split(text)
    if "://" not in url and not Path(url).expanduser().is_dir():
        url = _storage_of(url)
    with storage(url) as there:
        yield Named(Catalog(there), url, epoch, step)


@contextmanager
def storage(url: str) -> Iterator["Storage"]:
    """Where AWS is not configured, S3 is that of the local cloud, if one runs."""
    from spotelastic_checkpoints.storage.open import open_storage

    from spotelastic.cli.place import Place, aws_is_configured

    if url.startswith("s3://") and not aws_is_configured():
        with suppress(UsageError):
            Place.find(True)
    with _explained():
        there = open_storage(url)
        try:
            yield there
        finally:
            there.close()


def _storage_of(cluster: str) -> str:
    """What the cluster writes to, or wrote to before it went."""
    from spotelastic.aws.names import Names
    from spotelastic.cli.place import Place

    try:
        Names(cluster)
        place = Place.find(None)
    except UsageError:
        raise UsageError(f"{cluster}: no such folder") from None
    try:
        return place.told(cluster, lambda _: None).spec.storage
    except UsageError as error:
        raise UsageError(f"{cluster}: no such folder, and {error}") from None


@contextmanager
def _explained() -> Iterator[None]:
    from spotelastic_checkpoints.errors import CheckpointsError, StorageUnavailable

    try:
        yield
    except StorageUnavailable as error:
        raise Unavailable(str(error)) from error
    except CheckpointsError as error:
        raise EnvironmentFailure(str(error)) from error


def split(text: str) -> tuple[str, int | None, int | None]:
    """URL, epoch and step of `URL[@[EPOCH/]STEP]`."""
    match = re.fullmatch(r"(.+)@(?:(\d+)/)?(\d+)", text)
    if match is None:
        if "@" in text.rpartition("/")[2]:
            raise UsageError(f"{text}: behind the @ goes a step, or EPOCH/STEP")
        return text, None, None
    return match[1], int(match[2]) if match[2] else None, int(match[3])
