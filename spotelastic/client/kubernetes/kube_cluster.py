"""A cluster on Kubernetes that exists, as the commands see it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from spotelastic.client.kubernetes import code_shipping
from spotelastic.client.kubernetes.pod_output import PodOutput
from spotelastic.errors import EnvironmentFailure
from spotelastic.kubernetes import cluster_manifests, elastic_job, pod_files
from spotelastic.kubernetes.pods import Manifest
from spotelastic.kubernetes.provider import pod_reading, queues
from spotelastic.kubernetes.provider.api_client import KubeApi
from spotelastic.kubernetes.provider.call_errors import Conflicting
from spotelastic.kubernetes.provider.config_map_objects import ConfigMapObjects
from spotelastic.kubernetes.provider.kube_names import CLUSTER, KubeNames
from spotelastic.model.job import JobSpec
from spotelastic.model.requests.command import Command


@dataclass(frozen=True, slots=True)
class KubeCluster:
    """A cluster in a namespace."""

    api: KubeApi
    spec: JobSpec

    @classmethod
    def of(cls, api: KubeApi, name: str) -> "KubeCluster | None":
        """Return the cluster of that name, or what is left of it; None: there is nothing."""
        spec = ConfigMapObjects(api, name).job()
        return None if spec is None else cls(api, spec)

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.spec.cluster

    @property
    def objects(self) -> ConfigMapObjects:
        """What it publishes."""
        return ConfigMapObjects(self.api, self.name)

    @property
    def output(self) -> PodOutput:
        """What its workers have written."""
        return PodOutput(self.api, self.name, self.spec.born_at)

    def is_there(self) -> bool:
        """Whether the cluster still exists."""
        return root(self.api, self.name) is not None

    def send(self, command: Command) -> None:
        """Send a command to its controller. Its ElasticJob is given the same sizes before."""
        if not self.is_there():
            raise EnvironmentFailure(f"{self.name} accepts no commands: it is gone")
        given = {"min": command.min_nodes, "max": command.max_nodes}
        sizes = {name: size for name, size in given.items() if size is not None}
        self._ask_for(sizes)
        found = self.api.get(elastic_job.KIND, self.name) if sizes else None
        if found and elastic_job.QUEUE in (found["metadata"].get("labels") or {}):
            # The operator knows how much more a queue has admitted.
            most = self.spec.settings.max_nodes
            low, high = (size and min(size, most) for size in given.values())
            command = replace(command, min_nodes=low, max_nodes=high)
        queues.send(self.api, self.name, msgspec.json.encode(command))

    def change(self, how: Callable[[JobSpec], JobSpec], archive: bytes = b"") -> JobSpec:
        """Change the stored description of the job, and its ElasticJob.

        `archive` is its code, if that is new.
        """
        after = how(self.spec)
        within = after.capacity.within
        asked: Manifest = {}
        if within != self.spec.capacity.within:
            asked["deadline"] = None if within is None else f"{within:g}s"
        if archive:
            asked["codeFrom"] = self._shipped(after, archive)
        self._ask_for(asked, after.folder)
        return self.objects.change_job(lambda spec: released(how(spec)))

    def _shipped(self, after: JobSpec, archive: bytes) -> Manifest:
        """Ship code, and return where it comes from, as an ElasticJob says it."""
        owner = root(self.api, self.name)
        if owner is None:
            raise EnvironmentFailure(f"{self.name} is gone")
        given = code_shipping.ship(archive, self.spec.storage, lambda _: None)
        ship(self.api, KubeNames(self.name), given, owner)
        url = pod_files.url_of(given) or None
        return {"sha256": after.code, "url": url, "configMap": None}

    def _ask_for(self, asked: Manifest, folder: str = "") -> None:
        """Change the ElasticJob, which would else undo what is changed of its job."""
        if asked and self.api.get(elastic_job.KIND, self.name) is not None:
            noted = {"metadata": {"annotations": {elastic_job.FOLDER: folder}}} if folder else {}
            self.api.patch(elastic_job.KIND, self.name, {"spec": asked, **noted})


def released(spec: JobSpec) -> JobSpec:
    """Return a description whose settings name what its nodes must run."""
    return replace(spec, settings=replace(spec.settings, code=spec.release))


def root(api: KubeApi, name: str) -> Manifest | None:
    """Return the object that owns a cluster; None if it is gone, or goes."""
    found = api.get("ConfigMap", KubeNames(name).root)
    return None if found is None or pod_reading.is_ending(found) else found


def ship(api: KubeApi, its: KubeNames, archive: bytes, owner: Manifest) -> None:
    """Store the code, or what stands in its place, for pods that start from now on."""
    parts = pod_files.parts(archive)
    for number, part in enumerate(parts):
        put(api, cluster_manifests.code(its, number, part, owner))
    for number in range(len(parts), pod_files.MOST_PARTS):
        api.delete("ConfigMap", pod_files.part_name(its.cluster, number))


def put(api: KubeApi, manifest: Manifest) -> None:
    """Create an object, or give the cluster's that is there the same content.

    Raises `EnvironmentFailure` if it is no object of the cluster.
    """
    try:
        api.create(manifest)
    except Conflicting as error:
        kind, its = manifest["kind"], manifest["metadata"]
        own = api.found(kind, {CLUSTER: its["labels"][CLUSTER]})
        if its["name"] not in {each["metadata"]["name"] for each in own}:
            raise EnvironmentFailure(
                f"the {kind} {its['name']} in {api.namespace} is not this job's: delete it, or "
                "give the job another name"
            ) from error
        content = {key: value for key, value in manifest.items() if key not in ("metadata", "kind")}
        api.patch(kind, its["name"], content)
