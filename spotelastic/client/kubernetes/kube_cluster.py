"""A cluster on Kubernetes that exists, as the commands see it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from spotelastic.client.kubernetes import code_shipping
from spotelastic.client.kubernetes.pod_output import PodOutput
from spotelastic.client.progress import Say
from spotelastic.errors import EnvironmentFailure
from spotelastic.kubernetes import cluster_manifests, pod_files
from spotelastic.kubernetes.pods import Manifest
from spotelastic.kubernetes.provider import pod_reading, queues
from spotelastic.kubernetes.provider.api_client import KubeApi
from spotelastic.kubernetes.provider.call_errors import Conflicting
from spotelastic.kubernetes.provider.config_map_objects import ConfigMapObjects
from spotelastic.kubernetes.provider.kube_names import KubeNames
from spotelastic.model.job import JobSpec
from spotelastic.model.requests.command import Command


@dataclass(frozen=True, slots=True)
class KubeCluster:
    """A cluster in a namespace."""

    api: KubeApi
    spec: JobSpec

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
        """Send a command to its controller."""
        if not self.is_there():
            raise EnvironmentFailure(f"{self.name} accepts no commands: it is gone")
        queues.send(self.api, self.name, msgspec.json.encode(command))

    def change(
        self,
        how: Callable[[JobSpec], JobSpec],
        archive: bytes = b"",
        say: Say = lambda _: None,
    ) -> JobSpec:
        """Change the stored description of the job; `archive` is its code, if that is new."""
        if archive:
            owner = root(self.api, self.name)
            if owner is None:
                raise EnvironmentFailure(f"{self.name} is gone")
            ship(self.api, self.spec, archive, owner, say)
        return self.objects.change_job(lambda spec: released(how(spec)))


def released(spec: JobSpec) -> JobSpec:
    """Return a description whose settings name what its nodes must run."""
    return replace(spec, settings=replace(spec.settings, code=spec.release))


def root(api: KubeApi, name: str) -> Manifest | None:
    """Return the object that owns a cluster; None if it is gone, or goes."""
    found = api.get("ConfigMap", KubeNames(name).root)
    return None if found is None or pod_reading.is_ending(found) else found


def ship(api: KubeApi, spec: JobSpec, archive: bytes, owner: Manifest, say: Say) -> None:
    """Store the code, for pods that start from now on.

    Raises `UsageError` if it is too large, and `EnvironmentFailure` if the storage does not take
    it.
    """
    its = KubeNames(spec.cluster)
    parts = pod_files.parts(code_shipping.ship(archive, spec.storage, say))
    for number, part in enumerate(parts):
        put(api, cluster_manifests.code(its, number, part, owner))
    for number in range(len(parts), pod_files.MOST_PARTS):
        api.delete("ConfigMap", pod_files.part_name(spec.cluster, number))


def put(api: KubeApi, manifest: Manifest) -> None:
    """Create an object, or give the one that is there the same content."""
    try:
        api.create(manifest)
    except Conflicting:
        content = {key: value for key, value in manifest.items() if key not in ("metadata", "kind")}
        api.patch(manifest["kind"], manifest["metadata"]["name"], content)
