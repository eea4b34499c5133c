"""Finds the storage and checkpoint that an argument of `ckpt` names.

The argument is a folder, a URL or a cluster's name.
"""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import typer

from spotelastic.errors import UsageError
from spotelastic.wrapping import note

if TYPE_CHECKING:
    from spotelastic_checkpoints.catalog.catalog import Catalog, Checkpoint
    from spotelastic_checkpoints.commit.commit_protocol import Commits
    from spotelastic_checkpoints.storage.object_store import Storage
    from spotelastic_checkpoints.types import Commit


@dataclass(slots=True)
class Named:
    """The run and step that a URL names. The checkpoint is looked up on first use."""

    catalog: "Catalog"
    url: str
    epoch: int | None
    step: int | None

    @property
    def commits(self) -> "Commits":
        """The commit records of the run's storage."""
        from spotelastic_checkpoints.commit.commit_protocol import Commits

        return Commits(self.catalog.storage, "")

    @property
    def checkpoint(self) -> "Checkpoint":
        """The named checkpoint, or the latest committed one; sets `step`."""
        found = self.catalog.find(self.step, self.epoch)
        self.step = found.commit.step
        return found

    @property
    def commit(self) -> "Commit":
        """The named step's commit record, even if it is damaged or was never committed."""
        from spotelastic_checkpoints.types import Commit

        entries = self.catalog.entries()
        found = [e for e in entries if e.step == self.step and self.epoch in (None, e.epoch)]
        if not found:
            raise UsageError(f"{self.url}: there is no step {self.step}")
        return Commit(found[-1].epoch, found[-1].step)

    def __str__(self) -> str:
        return f"{self.url}@{self.step}"


@contextmanager
def opened(text: str) -> Iterator[Named]:
    """Open what `URL[@[EPOCH/]STEP]` names; a cluster's name may replace the URL."""
    from spotelastic_checkpoints.catalog.catalog import Catalog
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


def storage(url: str) -> AbstractContextManager["Storage"]:
    """Open the storage at `url`, and retry object stores that do not answer."""
    from spotelastic.client import storage as opening

    return opening.opened(url, partial(typer.echo, err=True))


def _storage_of(cluster: str) -> str:
    """Return the URL or folder that the cluster writes to, or wrote to before it was taken down."""
    from spotelastic.aws.base.names import Names
    from spotelastic.client.storage import use_local_cloud
    from spotelastic.client.targets import local_data
    from spotelastic.client.targets.find import find

    why = ""
    try:
        Names(cluster)
        why = ", and no cluster of that name has left checkpoints on this machine"
        target = find(None, None, note)
        why = ", and {}"
        url = target.cluster_or_gone(cluster, lambda _: None).spec.storage
        use_local_cloud()  # where `find` has found it, if one runs, whatever its bucket is
        return url
    except UsageError as error:
        found = local_data.left_cluster(cluster)
        if found is not None and found.folder.is_dir():
            return str(found.folder)
        raise UsageError(f"{cluster}: no such folder{why.format(error)}") from None


def split(text: str) -> tuple[str, int | None, int | None]:
    """Split `URL[@[EPOCH/]STEP]` into URL, epoch and step."""
    match = re.fullmatch(r"(.+)@(?:(\d+)/)?(\d+)", text)
    if match is None:
        if "@" in text.rpartition("/")[2]:
            raise UsageError(f"{text}: after the @, give a step or EPOCH/STEP")
        return text, None, None
    return match[1], int(match[2]) if match[2] else None, int(match[3])
