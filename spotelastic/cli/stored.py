"""What a command of `ckpt` names: a run, by a folder, a URL or its cluster, and a step of it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import typer

from spotelastic.errors import EnvironmentFailure, Unavailable, UsageError

if TYPE_CHECKING:
    from spotelastic_checkpoints.catalog import Catalog, Checkpoint
    from spotelastic_checkpoints.commits import Commits
    from spotelastic_checkpoints.storage.port import Storage
    from spotelastic_checkpoints.wire import Commit

WITHIN = 30.0
"""Seconds that the store may be away while a command runs."""
WORTH_A_WORD = 1.0
"""Seconds between two attempts that a person notices."""


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
    from spotelastic_checkpoints.storage.open import folder_of

    whole = folder_of(text)
    is_folder = whole is not None and whole.is_dir()  # its name may end in @2024
    url, epoch, step = (text, None, None) if is_folder else split(text)
    folder = folder_of(url)
    if folder is not None and not folder.is_dir():
        if "://" in url:
            raise UsageError(f"{url}: no such folder")
        url = _storage_of(url)
    with storage(url) as there:
        yield Named(Catalog(there), url, epoch, step)


@contextmanager
def storage(url: str) -> Iterator["Storage"]:
    """What does not answer is asked again; a folder is not, whose disk is full, say. Where AWS is
    not configured, S3 is that of the local cloud, if one runs."""
    from spotelastic_checkpoints.patience import Patience
    from spotelastic_checkpoints.storage.asked import Asked
    from spotelastic_checkpoints.storage.open import folder_of, open_storage

    from spotelastic.cli.place import Place, aws_is_configured

    if url.lower().startswith("s3://") and not aws_is_configured():
        with suppress(UsageError):
            Place.find(True)
    tell = partial(typer.echo, err=True)
    patience = Patience(tell, "this command", WITHIN, WORTH_A_WORD)
    with _explained():
        there: Storage
        if folder_of(url) is not None:
            there = open_storage(url)
        else:
            there = Asked(patience.ask(lambda: open_storage(url)), patience)
        try:
            yield there
        finally:
            patience.end()
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
