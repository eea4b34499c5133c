"""Reads an `ElasticJob`: what it is, and the job that it asks for."""

import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import msgspec

from spotelastic.aws.artifacts.code_archive import Archive
from spotelastic.client.config.job_code import PlacedCode
from spotelastic.client.kubernetes.cluster_mark import ClusterMark
from spotelastic.client.kubernetes.kube_job import KubeJob, kube_job
from spotelastic.client.kubernetes.pod_config import PodConfig
from spotelastic.client.operator.fields import fields
from spotelastic.errors import UsageError
from spotelastic.kubernetes import cluster_manifests, elastic_job, pod_files
from spotelastic.kubernetes.pods import Manifest
from spotelastic.kubernetes.provider.kube_names import KubeNames

CODE_FROM = "codeFrom"


@dataclass(frozen=True, slots=True)
class JobResource:
    """An ElasticJob."""

    name: str
    uid: str
    generation: int
    """Number of its specification, which differs after each change of that."""
    is_deleted: bool
    """Whether somebody has deleted it; it stays until nothing of its cluster is left."""
    is_held: bool
    """Whether it stays so long."""
    spec: Mapping[str, Any]
    status: Mapping[str, Any]
    folder: str = ""
    """The folder of the machine on which `up` has applied it; empty: not known."""
    queue: str = ""
    """The queue of Kueue that admits it; empty: none does."""
    priority_class: str = ""
    """Its class of priority in the queue; empty: none."""

    @classmethod
    def read(cls, found: Manifest) -> Self:
        """Return the resource that a manifest describes."""
        metadata = found["metadata"]
        labels = metadata.get("labels") or {}
        return cls(
            name=metadata["name"],
            uid=metadata["uid"],
            generation=int(metadata.get("generation", 1)),
            is_deleted=bool(metadata.get("deletionTimestamp")),
            is_held=elastic_job.FINALIZER in metadata.get("finalizers", ()),
            spec=found.get("spec") or {},
            status=found.get("status") or {},
            folder=(metadata.get("annotations") or {}).get(elastic_job.FOLDER, ""),
            queue=labels.get(elastic_job.QUEUE, ""),
            priority_class=labels.get(elastic_job.PRIORITY_CLASS, ""),
        )

    @property
    def reference(self) -> Manifest:
        """The reference to it as the owner of an object."""
        kind = {"apiVersion": elastic_job.API_VERSION, "kind": elastic_job.KIND}
        return {**kind, "name": self.name, "uid": self.uid}

    @property
    def code_map(self) -> str:
        """The ConfigMap that its code is in; empty: none."""
        return str((self.spec.get(CODE_FROM) or {}).get("configMap") or "")

    def condition(self, type_: str) -> Mapping[str, Any]:
        """Return a condition of its status; empty: it has none of that type yet."""
        known = self.status.get("conditions") or ()
        return next((each for each in known if each["type"] == type_), {})

    def mark(self, digest: str = "") -> bytes:
        """Return what is stored with its cluster: whose it is, and which job it was given last."""
        return msgspec.json.encode(ClusterMark(self.uid, digest, self.generation))


def wanted(its: JobResource, files: Mapping[str, bytes], image: str) -> KubeJob:
    """Return the job that a resource asks for.

    `files` are those of its `code_map`, and `image` is the control pod's.

    Raises `UsageError`.
    """
    config = _config(its)
    code = its.spec.get(CODE_FROM) or {}
    if its.code_map:
        job = _from_files(config, files)
    elif code:
        job = kube_job(config, PlacedCode(_elsewhere(code)))
    else:
        job = kube_job(config, PlacedCode())
    # A folder that was packed is one of the operator's, and means nothing to people. And the
    # operator ends the cluster after the job: once it has seen how that has ended.
    spec = replace(job.spec, folder=its.folder, linger=None)
    return replace(job, spec=spec, owner=its.reference, mark=its.mark(), control_image=image)


def digest(job: KubeJob) -> str:
    """Return what differs once the cluster of a job has to be changed."""
    its, spec = KubeNames(job.name), job.spec
    # These two tell when the job was read.
    lasting = replace(
        spec, created_at=0.0, born_at=0.0, capacity=replace(spec.capacity, deadline=0)
    )
    parts = (
        msgspec.json.encode(lasting, order="deterministic").decode(),
        cluster_manifests.worker_template(its, job.pods, spec),
        cluster_manifests.control_plane(its, job.pods, job.control_image, {}),
    )
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _config(its: JobResource) -> PodConfig:
    known = fields()
    given = {known[name].name: value for name, value in its.spec.items() if name in known}
    given.setdefault("secrets_from", its.name)
    if "pod_template" in given:
        given["pod_template"] = json.dumps(given["pod_template"])
    return PodConfig(**given, name=its.name, kube=True, yes=True)


def _from_files(config: PodConfig, files: Mapping[str, bytes]) -> KubeJob:
    with tempfile.TemporaryDirectory(prefix="spotelastic-code-") as folder:
        for name, data in files.items():
            Path(folder, name).write_bytes(data)
        return kube_job(config, Path(folder))


def _elsewhere(code: Mapping[str, str]) -> Archive:
    if "sha256" not in code:
        raise UsageError("spec.codeFrom.sha256: is missing: `sha256sum` prints it")
    if "url" not in code:  # `up` has shipped it
        return Archive(code["sha256"], b"", 0)
    if not code["url"].rpartition("/")[2]:
        raise UsageError(f"spec.codeFrom.url {code['url']}: name an archive, not a folder")
    return Archive(code["sha256"], pod_files.code_at(code["url"]), 0)
