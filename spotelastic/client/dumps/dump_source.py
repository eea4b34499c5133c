"""Finds what a dump is made of: the stored objects of a cluster, and the cluster if it is there."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
from spotelastic_checkpoints.decoders import from_json
from spotelastic_checkpoints.provenance import without_secrets

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.security import secrets
from spotelastic.client.dumps.redaction import Redaction, typed_secrets
from spotelastic.client.targets import find as targets
from spotelastic.client.targets import local_data
from spotelastic.client.targets.cloud_target import CloudTarget
from spotelastic.client.targets.shown_cluster import ShownCluster
from spotelastic.cloud.bucket import JOB, STATUS
from spotelastic.errors import SpotelasticError
from spotelastic.local import cloud
from spotelastic.local.base import kept_objects
from spotelastic.model.job import JobSpec
from spotelastic.model.progress import Status
from spotelastic.redaction import telling


class StoredObjects(Protocol):
    """What a cluster has stored, by name."""

    def get(self, name: str) -> bytes | None: ...

    def names(self, prefix: str) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class FolderObjects:
    """What a local cluster that is gone has left in a folder on this machine."""

    folder: Path

    def get(self, name: str) -> bytes | None:
        path = self.folder / kept_objects.path_of(name)
        return path.read_bytes() if path.is_file() else None

    def names(self, prefix: str) -> tuple[str, ...]:
        below = (self.folder / kept_objects.path_of(prefix.rstrip("/"))).rglob("*")
        return tuple(
            sorted(
                kept_objects.key_of(path.relative_to(self.folder))
                for path in below
                if path.is_file()
            )
        )


@dataclass(frozen=True, slots=True)
class DumpSource:
    """What a dump is made of."""

    name: str
    objects: StoredObjects
    cluster: ClusterRecord | None
    """The cluster; None if only its stored objects are left."""

    @classmethod
    def of(cls, target: CloudTarget, record: ShownCluster) -> "DumpSource":
        """Return what a cluster has, or has left if it is gone."""
        return cls(record.name, record.objects, target.known(record.name))

    def status(self) -> Status | None:
        """Return the published status; None if there is none that this version can read."""
        return _decoded(self.objects.get(STATUS), Status)

    def job(self) -> JobSpec | None:
        """Return the job's description; None if there is none that this version can read."""
        return _decoded(self.objects.get(JOB), JobSpec)


def find(
    name: str | None, where: bool | None, region: str | None, note: Callable[[str], None]
) -> DumpSource:
    """Return what the cluster of that name has, or has left. Raises `UsageError`."""
    if name is not None and where is not False and cloud.find() is None:
        kept = local_data.find(name) if where or not targets.aws_is_configured() else None
        if kept is not None:
            note(f"{name} is gone: this is what it has left")
            folder = kept.bucket / kept_objects.path_of(kept.cluster)
            return DumpSource(name, FolderObjects(folder), None)
    target = targets.account(where, region, note)
    return DumpSource.of(target, target.cluster_or_gone(name, note))


@dataclass(frozen=True, slots=True)
class KnownSecrets:
    """The secret values that a dump must not tell."""

    values: tuple[str, ...]
    complete: bool
    """Whether the values of all secrets of the job are known."""

    def redaction(self, job: JobSpec | None) -> Redaction:
        if job is None:
            return Redaction(self.values)
        typed = typed_secrets(job.args)
        return Redaction((*self.values, *typed, *telling(job.env.values())))


def known_secrets(source: DumpSource, job: JobSpec | None) -> KnownSecrets:
    """Read the secrets of the job, to leave them out. Those of a cluster that is gone are gone."""
    if job is None or not job.secrets:
        return KnownSecrets((), complete=job is not None)
    if source.cluster is None:
        return KnownSecrets((), complete=False)
    aws: Aws = source.cluster.aws
    try:
        found = secrets.known(aws, source.cluster.name, tuple(job.secrets))
    except SpotelasticError:
        return KnownSecrets((), complete=False)
    return KnownSecrets(found, complete=len(found) == len(job.secrets))


def job_without_secrets(job: JobSpec, *, known: bool) -> dict[str, object]:
    """Return the job as plain values, with the names of its variables alone.

    Without `known`, secrets might stand anywhere in what the user has typed, which is left out.
    """
    plain: dict[str, object] = msgspec.to_builtins(job)
    plain["env"], plain["secrets"] = sorted(job.env), sorted(job.secrets)
    plain["args"] = without_secrets(job.args)
    if not known:
        plain["args"] = plain["setup"] = "left out: it may hold a secret whose value is not known"
    return plain


T = TypeVar("T")


def _decoded(data: bytes | None, kind: type[T]) -> T | None:
    try:
        return None if data is None else from_json(data, kind)
    except msgspec.MsgspecError:
        return None
