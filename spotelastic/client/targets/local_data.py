"""Finds, describes and deletes checkpoints of the local cloud, as folders on this machine.

Works while no local cloud runs, too.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from spotelastic_checkpoints.commit.latest import LATEST, ForwardPointer, decoded
from spotelastic_checkpoints.decoders import from_json

from spotelastic.cloud.bucket import CHECKPOINTS, JOB
from spotelastic.errors import UsageError
from spotelastic.local import cloud
from spotelastic.local.base import kept_objects
from spotelastic.local.base.kept_logs import KeptLogs, KeptOutput
from spotelastic.model.counting import size
from spotelastic.model.job import JobSpec

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class KeptCluster:
    """The stored data of a local cluster, which may be gone."""

    cluster: str
    bucket: Path
    run: str

    @property
    def folder(self) -> Path:
        """The folder of the run's checkpoints."""
        return self.bucket / kept_objects.path_of(self.run) / CHECKPOINTS.rstrip("/")

    @property
    def step(self) -> int | None:
        """The newest committed step; None if there is none."""
        try:
            return committed((self.folder / LATEST).read_bytes())
        except OSError:
            return None

    @property
    def nbytes(self) -> int:
        """Bytes of the checkpoints."""
        return sum(
            Path(folder, file).stat().st_size
            for folder, _, files in os.walk(self.folder)
            for file in files
        )


def committed(latest: bytes) -> int | None:
    """Return the step that the object LATEST names.

    None if nothing is committed, or if the run was moved elsewhere.
    """
    try:
        found = decoded(latest)
    except msgspec.DecodeError:
        return None
    if isinstance(found, ForwardPointer) or found.commit is None:
        return None
    return found.commit.step


def output(cluster: str) -> KeptOutput:
    """Return what the workers of local clusters of that name have written."""
    return KeptOutput(KeptLogs(cloud.logs()), cluster)


def find(cluster: str) -> KeptCluster | None:
    """Return the data of the cluster of that name; None if it left none."""
    for name in kept_objects.names(cloud.buckets()):
        bucket = cloud.buckets() / name
        folder = bucket / kept_objects.path_of(cluster)
        if folder.is_dir():
            return KeptCluster(cluster, bucket, _run(folder) or cluster)
    return None


def _run(folder: Path) -> str | None:
    try:
        return from_json((folder / JOB).read_bytes(), JobSpec).run
    except (OSError, msgspec.DecodeError):
        return None


def tell(cluster: str, say: Say) -> None:
    """Tell where the checkpoints are and what can be done with them."""
    found = find(cluster)
    if output(cluster).streams():
        say(f"`spotelastic logs {cluster} --local` prints its output")
    if found is None or found.step is None:
        return
    say(
        f"the checkpoints of {found.run} are kept in {found.folder}: {size(found.nbytes)}, up to "
        f"step {found.step}; the same `spotelastic up` continues from them, "
        f"`spotelastic ckpt ls {cluster}` lists them, "
        f"`spotelastic down {cluster} --local --delete-data` deletes them"
    )


def tell_gone(found: KeptCluster, say: Say) -> None:
    """Tell that a cluster is gone, what it has left, and what deletes that."""
    say(f"{found.cluster} is gone")
    tell(found.cluster, say)
    if found.step is None:
        say(
            f"it has left no checkpoint; `spotelastic down {found.cluster} --local --delete-data` "
            "deletes what else it has left"
        )


def delete(found: KeptCluster, say: Say) -> None:
    """Delete the data while no local cloud runs. Raises `UsageError` if one has just started."""
    with cloud.alone():
        if cloud.find() is not None:
            raise UsageError("a local cloud has just started: run this again")
        its = (
            found.folder,
            found.bucket / kept_objects.path_of(found.cluster),
            cloud.logs() / found.cluster,
        )
        for folder in its:
            if folder.is_dir():
                say(f"deleting {folder}")
                shutil.rmtree(folder)
