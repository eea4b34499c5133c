"""Turns a `PodConfig` into what a cluster on Kubernetes is made of."""

from dataclasses import dataclass, replace
from pathlib import Path

from spotelastic import validation
from spotelastic.client.config.job_code import CodeSource
from spotelastic.client.config.validated_job import ValidatedJob, check
from spotelastic.client.kubernetes.kube_cluster import released
from spotelastic.client.kubernetes.pod_config import PodConfig
from spotelastic.client.kubernetes.pod_job import pod_job
from spotelastic.clock import wall
from spotelastic.kubernetes import cluster_manifests
from spotelastic.kubernetes.job_as_pods import PodJob
from spotelastic.kubernetes.pods import Manifest
from spotelastic.kubernetes.provider.kube_names import KubeNames
from spotelastic.kubernetes.provider.pod_reading import POD
from spotelastic.model.job import JobSpec

MEMBER = "a"


@dataclass(frozen=True, slots=True)
class KubeJob:
    """A job that has passed all checks that need no cluster."""

    config: PodConfig
    spec: JobSpec
    pods: PodJob
    validated: ValidatedJob
    owner: Manifest | None = None
    """Reference to the object that the cluster belongs to; None: to nobody."""
    control_image: str = ""
    """Image of the control pod: spotelastic's own, and none of the job's."""
    mark: bytes = b""
    """What says which ElasticJob the cluster is made for (`elastic_job.MARK`); empty: nothing."""

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.spec.cluster

    @property
    def archive(self) -> bytes:
        """The code."""
        return self.validated.archive.data

    @property
    def secrets(self) -> dict[str, str]:
        """The values for the cluster's own Secret; none if another Secret is named."""
        return {} if self.config.secrets_from else dict(self.validated.secrets)


def kube_job(config: PodConfig, folder: Path | CodeSource) -> KubeJob:
    """Return the job of the script in `folder`, or wherever else the code comes from.

    Raises `UsageError`.
    """
    own = replace(config, secret=()) if config.secrets_from else config
    found = check(own, folder)
    name = found.name
    its = KubeNames(name)
    pods = pod_job(
        replace(
            config,
            # Code that is shipped is unpacked elsewhere.
            workdir=None if found.spec.code else config.workdir,
            secrets_from=config.secrets_from or its.secrets,
        ),
        found,
    )
    now, settings = wall(), found.spec.settings
    workers = config.nproc_per_node or config.gpus or 1
    spec = replace(
        found.spec,
        # With --secrets-from, a file of variables may have the value of one that is secret.
        env={each: text for each, text in found.spec.env.items() if each not in config.secret},
        run=config.resume or name,
        storage=pods.storage,
        etcd=(cluster_manifests.endpoint(its),),
        etcd_members=(MEMBER,),
        worker_group=its.spot,
        instance_types=(POD,),
        environment=None,
        created_at=now,
        born_at=now,
        gpus=config.gpus or 0,
        secrets=dict.fromkeys(config.secret, 0),
        settings=replace(settings, workers=workers),
        # The scheduler chooses zones, as the pods' template asks; the controller does not.
        capacity=replace(found.spec.capacity, zones="spread"),
    )
    cluster_manifests.worker_template(its, pods, spec)  # refuses a template of the user's
    validation.sizes(minimum=config.min, maximum=config.most, per_node=workers)
    return KubeJob(config, released(spec), pods, found)
