"""What local clusters have left on this machine: read, told of, and deleted.

The objects of the local cloud's buckets are files, which outlive it. Nothing is written there but
by `delete`.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

import msgspec
from spotelastic_checkpoints.commit.latest import LATEST, ForwardPointer, decoded

from spotelastic.client.progress import Say
from spotelastic.cloud.bucket import CHECKPOINTS, JOB, STATUS, ClusterBucket
from spotelastic.errors import UsageError
from spotelastic.local import cloud
from spotelastic.local.base import kept_objects
from spotelastic.local.base.kept_logs import KeptLogs, KeptOutput
from spotelastic.model.counting import size
from spotelastic.model.job import JobSpec
from spotelastic.model.requests.command import Command


@dataclass(frozen=True, slots=True)
class KeptObjects(ClusterBucket):
    """The objects that a cluster has left in the folder of a bucket. They can only be read."""

    is_left = True
    bucket: Path
    cluster: str

    def url(self, name: str) -> str:
        """Return the path of the object's file."""
        return str(self._path(name))

    def read(self, name: str) -> tuple[bytes, str] | None:
        """Return an object, and when it was written."""
        path = self._path(name)
        try:
            return path.read_bytes(), str(path.stat().st_mtime_ns)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def names(self, prefix: str) -> tuple[str, ...]:
        """Return the names of all objects with this prefix, in order."""
        its = self._path("")
        files = (path for path in its.rglob("*") if path.is_file())
        found = (kept_objects.key_of(path.relative_to(its)) for path in files)
        return tuple(sorted(name for name in found if name.startswith(prefix)))

    def has(self, name: str) -> bool:
        """Whether the object exists."""
        return self._path(name).is_file()

    def put(self, name: str, data: bytes | IO[bytes]) -> None:
        """Raise `UsageError`."""
        refuse(self.cluster)

    def create(self, name: str, data: bytes) -> bool:
        """Raise `UsageError`."""
        refuse(self.cluster)

    def replace(self, name: str, data: bytes, version: str) -> bool:
        """Raise `UsageError`."""
        refuse(self.cluster)

    def delete(self, name: str) -> None:
        """Raise `UsageError`."""
        refuse(self.cluster)

    def _path(self, name: str) -> Path:
        its = self.bucket / kept_objects.path_of(self.cluster)
        return its / kept_objects.path_of(name) if name else its


@dataclass(frozen=True, slots=True)
class LeftCluster:
    """A local cluster that is gone, by what it has left."""

    objects: KeptObjects
    spec: JobSpec

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.objects.cluster

    @property
    def output(self) -> KeptOutput:
        """What its workers have written."""
        return output(self.name)

    @property
    def run(self) -> str:
        """The run whose checkpoints are its own."""
        return self.spec.run or self.name

    @property
    def folder(self) -> Path:
        """The folder of the run's checkpoints."""
        return self.objects.bucket / kept_objects.path_of(self.run) / CHECKPOINTS.rstrip("/")

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

    def is_there(self) -> bool:
        """Return False."""
        return False

    def send(self, command: Command) -> None:
        """Raise `UsageError`."""
        refuse(self.name)

    def change(self, how: Callable[[JobSpec], JobSpec], archive: bytes = b"") -> JobSpec:
        """Raise `UsageError`."""
        refuse(self.name)


def left_cluster(name: str) -> LeftCluster | None:
    """Return what the local cluster of that name has left; None if it has left no job.

    One that was moved has left a job in the bucket of each region: the newest status counts.
    """
    places = [KeptObjects(bucket, name) for bucket in buckets()]
    places = [place for place in places if place.has(JOB)]
    newest = max(places, key=written_at, default=None)
    spec = None if newest is None else newest.job()
    return None if newest is None or spec is None else LeftCluster(newest, spec)


def buckets() -> Iterator[Path]:
    return (cloud.buckets() / each for each in kept_objects.names(cloud.buckets()))


def written_at(place: KeptObjects) -> int:
    found = place.read(STATUS) or place.read(JOB)
    return 0 if found is None else int(found[1])


def refuse(name: str) -> NoReturn:
    raise UsageError(
        f"{name} is gone, and no local cloud is running: the same `spotelastic up --local` starts "
        "it again, from its newest checkpoint"
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


def tell(cluster: str, say: Say) -> None:
    """Tell where the checkpoints are and what can be done with them."""
    found = left_cluster(cluster)
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


def tell_gone(found: LeftCluster, say: Say) -> None:
    """Tell that a cluster is gone, what it has left, and what deletes that."""
    say(f"{found.name} is gone")
    tell(found.name, say)
    if found.step is None:
        say(
            f"it has left no checkpoint; `spotelastic down {found.name} --local --delete-data` "
            "deletes what else it has left"
        )


def delete(found: LeftCluster, say: Say) -> None:
    """Delete the data while no local cloud runs. Raises `UsageError` if one has just started."""
    with cloud.alone():
        if cloud.find() is not None:
            raise UsageError("a local cloud has just started: run this again")
        its = (
            found.folder,
            found.objects.bucket / kept_objects.path_of(found.name),
            cloud.logs() / found.name,
        )
        for folder in its:
            if folder.is_dir():
                say(f"deleting {folder}")
                shutil.rmtree(folder)
