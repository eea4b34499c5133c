"""Finds checkpoints of the local cloud as folders on disk, also while no local cloud runs."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from spotelastic_checkpoints.commit.commit_protocol import LATEST, Latest

from spotelastic.aws.messaging.bucket import CHECKPOINTS, JOB
from spotelastic.errors import UsageError
from spotelastic.local import cloud
from spotelastic.local.base import kept_objects
from spotelastic.model.counting import size
from spotelastic.model.job import JobSpec

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class KeptCluster:
    """What a cluster has stored, or one that is gone."""

    cluster: str
    bucket: Path
    run: str

    @property
    def folder(self) -> Path:
        """Of the run's checkpoints."""
        return self.bucket / kept_objects.path_of(self.run) / CHECKPOINTS.rstrip("/")

    @property
    def step(self) -> int | None:
        """The newest one that is committed."""
        try:
            return committed((self.folder / LATEST).read_bytes())
        except OSError:
            return None

    @property
    def nbytes(self) -> int:
        """Of the checkpoints."""
        return sum(
            Path(folder, file).stat().st_size
            for folder, _, files in os.walk(self.folder)
            for file in files
        )


def committed(latest: bytes) -> int | None:
    """The step that LATEST names; None where nothing is committed yet."""
    try:
        commit = msgspec.json.decode(latest, type=Latest).commit
    except msgspec.DecodeError:
        return None
    return None if commit is None else commit.step


def find(cluster: str) -> KeptCluster | None:
    """Of the cluster of that name; None where none has left anything."""
    for name in kept_objects.names(cloud.buckets()):
        bucket = cloud.buckets() / name
        folder = bucket / kept_objects.path_of(cluster)
        if folder.is_dir():
            return KeptCluster(cluster, bucket, _run(folder) or cluster)
    return None


def _run(folder: Path) -> str | None:
    try:
        return msgspec.json.decode((folder / JOB).read_bytes(), type=JobSpec).run
    except (OSError, msgspec.DecodeError):
        return None


def tell(cluster: str, say: Say) -> None:
    """Where the checkpoints are, and what can be done with them."""
    found = find(cluster)
    if found is None or found.step is None:
        return
    say(
        f"the checkpoints of {found.run} are kept in {found.folder}: {size(found.nbytes)}, up to "
        f"step {found.step}; the same `spotelastic up` goes on from them, "
        f"`spotelastic ckpt ls {cluster}` lists them, "
        f"`spotelastic down {cluster} --local --delete-data` deletes them"
    )


def delete(found: KeptCluster, say: Say) -> None:
    """While no local cloud runs. Raises `UsageError` where one has started meanwhile."""
    with cloud.alone():
        if cloud.find() is not None:
            raise UsageError("a local cloud has just started: run this again")
        for folder in (found.folder, found.bucket / kept_objects.path_of(found.cluster)):
            if folder.is_dir():
                say(f"deleting {folder}")
                shutil.rmtree(folder)
