"""Reads what a local cluster has left on this machine, while no local cloud runs.

The objects of the local cloud's buckets are files, which outlive it. So a cluster that is gone is
shown as one on AWS is, by its last status, report and bill. Nothing is written there but by `down`.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

from spotelastic_checkpoints.storage.object_store import Storage
from spotelastic_checkpoints.storage.open import open_storage

from spotelastic.client.interrupt import InterruptionRequest
from spotelastic.client.progress import Say
from spotelastic.client.published import summary_of
from spotelastic.client.targets import local_data
from spotelastic.client.targets.cloud_target import CloudEnded, CloudTarget
from spotelastic.client.targets.local_data import KeptCluster
from spotelastic.client.targets.shown_cluster import ShownCluster
from spotelastic.cloud.bucket import JOB, STATUS, ClusterBucket
from spotelastic.errors import EnvironmentFailure, UsageError
from spotelastic.local import cloud
from spotelastic.local.base import kept_objects
from spotelastic.local.base.kept_logs import KeptOutput
from spotelastic.model.job import AccountDemands, JobSpec
from spotelastic.model.progress import ClusterSummary
from spotelastic.model.requests.command import Command

S3 = "s3://"
START = "start one with `spotelastic up --local --detach SCRIPT`"


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
        _refuse(self.cluster)

    def create(self, name: str, data: bytes) -> bool:
        """Raise `UsageError`."""
        _refuse(self.cluster)

    def replace(self, name: str, data: bytes, version: str) -> bool:
        """Raise `UsageError`."""
        _refuse(self.cluster)

    def delete(self, name: str) -> None:
        """Raise `UsageError`."""
        _refuse(self.cluster)

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
        return local_data.output(self.name)

    def is_there(self) -> bool:
        """Return False."""
        return False

    def send(self, command: Command) -> None:
        """Raise `UsageError`."""
        _refuse(self.name)

    def change(self, how: Callable[[JobSpec], JobSpec], archive: bytes = b"") -> JobSpec:
        """Raise `UsageError`."""
        _refuse(self.name)


def left_cluster(name: str) -> LeftCluster | None:
    """Return what the local cluster of that name has left; None if it has left no job.

    One that was moved has left a job in the bucket of each region: the newest status counts.
    """
    places = [KeptObjects(bucket, name) for bucket in _buckets()]
    places = [place for place in places if place.has(JOB)]
    newest = max(places, key=_written_at, default=None)
    spec = None if newest is None else newest.job()
    return None if newest is None or spec is None else LeftCluster(newest, spec)


class LeftTarget:
    """What local clusters have left on this machine: one of them, or all."""

    def __init__(self, left: LeftCluster | None = None) -> None:
        self._one = left

    @classmethod
    def of(cls, name: str) -> "LeftTarget | None":
        """Return where the cluster of that name has left its job; None if it has not."""
        left = left_cluster(name)
        return None if left is None else cls(left)

    @property
    def _left(self) -> LeftCluster:
        if self._one is None:
            raise UsageError(f"no local cloud is running: {START}")
        return self._one

    # -- what it has -----------------------------------------------------------------------------

    def names(self) -> tuple[str, ...]:
        """Return nothing: no cluster exists."""
        return ()

    def listing(self) -> tuple[ClusterSummary, ...]:
        """Return nothing: no cluster exists."""
        return ()

    def ended(self, since: float) -> tuple[ClusterSummary, ...]:
        """Return a summary of every cluster that was seen last since then (in epoch seconds)."""
        names = {name for bucket in _buckets() for name in kept_objects.names(bucket)}
        found = []
        for name in sorted(names):
            with suppress(EnvironmentFailure):  # what cannot be read is left out
                its = left_cluster(name)
                if its is not None and _written_at(its.objects) >= since * 1e9:
                    found.append(summary_of(its, is_gone=True))
        return tuple(each for each in found if each.at >= since)

    def known(self, name: str) -> ShownCluster | None:
        """Return None: no cluster exists."""
        return None

    def cluster(self, name: str | None) -> ShownCluster:
        """Raise `UsageError`."""
        _refuse(self._left.name)

    def cluster_or_gone(
        self, name: str | None, note: Say, left: str = "this is its last report"
    ) -> ShownCluster:
        """Return what the cluster has left, and `note` that it is gone."""
        its = self._one if self._one is not None or name is None else left_cluster(name)
        if its is None:
            raise UsageError(f"no local cluster {name or ''} has left anything: {START}")
        note(f"{its.name} is gone: {left}")
        return its

    def storage(self, url: str) -> Storage:
        """Open the folder that a URL of a bucket means. Raises `UsageError` if there is none."""
        if not url.startswith(S3):
            return open_storage(url)
        bucket, _, key = url[len(S3) :].partition("/")
        folder = cloud.buckets() / bucket / kept_objects.path_of(key.rstrip("/"))
        if not folder.is_dir():
            raise UsageError(f"{folder}: no such folder")
        return open_storage(str(folder))

    def account(self, what: str) -> CloudTarget:
        """Raise `UsageError`."""
        _refuse(self._left.name)

    # -- what is said of it ----------------------------------------------------------------------

    @property
    def where_to_look(self) -> str:
        """Where the files are."""
        return f"see {cloud.buckets() if self._one is None else self._one.objects.url('')}"

    def arguments_of(self, name: str) -> str:
        """Return the arguments by which other commands find the cluster of that name."""
        return f"{name} --local"

    # -- what is checked -------------------------------------------------------------------------

    def check(self) -> None:
        """Raise `CloudEnded` once a local cloud runs, in which the cluster may be up again."""
        if cloud.find() is not None:
            raise CloudEnded("the local cloud of this cluster has ended, and another one runs now")

    def control_failure(self, name: str, waited: float) -> str:
        """Return nothing: nobody knows."""
        return ""

    def note_worked(self, cluster: ShownCluster) -> None:
        """Note nothing."""

    def check_room(self, nodes: int, workers: int) -> None:
        """Raise `UsageError`."""
        _refuse(self._left.name)

    def check_spot(self, name: str, node: str) -> None:
        """Raise `UsageError`."""
        _refuse(self._left.name)

    def check_kind(self, what: InterruptionRequest) -> None:
        """Raise `UsageError`."""
        _refuse(self._left.name)

    def allow(self, spec: JobSpec, nodes: int, say: Say) -> None:
        """Raise `UsageError`."""
        _refuse(self._left.name)

    # -- how a cluster ends ----------------------------------------------------------------------

    def owns(self, name: str) -> bool:
        """Return False: it has ended."""
        return False

    def keep(self, name: str) -> None:
        """Raise `UsageError`."""
        _refuse(self._left.name)

    def leave(self, say: Say) -> bool:
        """Return False: no cloud is used."""
        return False

    def finish(self, name: str, say: Say) -> None:
        """Do nothing: it has ended."""

    def down(
        self, name: str | None, say: Say, *, keep_data: bool = True, bucket: str | None = None
    ) -> None:
        """Tell that it is gone and what deletes its data, or delete these."""
        if keep_data:
            local_data.tell_gone(self._data(), say)
        else:
            local_data.delete(self._data(), say)

    def data_of(self, cluster: ShownCluster) -> tuple[str, str]:
        """Return the run whose checkpoints `down` can delete, and their folder."""
        its = self._data()
        return its.run, str(its.folder)

    def _data(self) -> KeptCluster:
        its = self._left
        return KeptCluster(its.name, its.objects.bucket, its.spec.run)

    def remove_network(self, say: Say) -> None:
        """Do nothing: there is none."""

    def interrupt(self, what: InterruptionRequest, demands: AccountDemands) -> float | None:
        """Raise `UsageError`."""
        _refuse(self._left.name)


def _buckets() -> Iterator[Path]:
    return (cloud.buckets() / each for each in kept_objects.names(cloud.buckets()))


def _written_at(place: KeptObjects) -> int:
    found = place.read(STATUS) or place.read(JOB)
    return 0 if found is None else int(found[1])


def _refuse(name: str) -> NoReturn:
    raise UsageError(
        f"{name} is gone, and no local cloud is running: the same `spotelastic up --local` starts "
        "it again, from its newest checkpoint"
    )
