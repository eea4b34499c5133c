"""Makes the objects that run a job with Kubeflow's Trainer, from version 2.2 (pure).

    ClusterTrainingRuntime  what all jobs have in common: made once by who runs the cluster
    TrainJob                one job: image, script, nodes, variables, resources
    NetworkPolicy, PodDisruptionBudget  as for an Indexed Job

The Trainer makes a JobSet of the first two, whose pods are named JOB-node-0-0, JOB-node-0-1, ...
"""

from spotelastic.kubernetes.job_as_pods import GRACE, MOST_HOSTS, PodJob
from spotelastic.kubernetes.manifests import (
    QUEUE,
    disruption_budget,
    end_policies,
    labels,
    named,
    network_policy,
)
from spotelastic.kubernetes.pods import (
    CONTAINER,
    CONTAINER_SECURITY,
    GPU_TOLERATION,
    INDEX,
    MACHINE,
    SHARED_MEMORY,
    SHARED_MEMORY_MOUNT,
    ZONE,
    Manifest,
    downward,
    pod_security,
    ports,
    requested,
    scheduling,
    shared_memory,
    variables,
)
from spotelastic.kubernetes.run_command import COMMAND, arguments

API = "trainer.kubeflow.org/v1alpha1"
RUNTIME = "spotelastic"
"""Name of the runtime unless another one is given."""
NODE = "node"
"""Name of the one replicated Job of the JobSet."""
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
"""Label that the pods of a JobSet have."""
STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
"""Label of the Job that the Trainer fills in."""
MANAGER = "spotelastic.io/render"
"""Who has written the TrainJob's patch of its runtime."""


def kubeflow_manifests(job: PodJob, runtime: str = RUNTIME) -> list[Manifest]:
    """Return the objects of a job, in the order in which they are to be created."""
    selector = {JOBSET_NAME: job.name}
    return [
        training_runtime(runtime),
        network_policy(job, selector),
        *disruption_budget(job, selector),
        train_job(job, runtime),
    ]


def training_runtime(name: str = RUNTIME) -> Manifest:
    """Return the runtime, which is the same for all jobs: the TrainJob brings what is its own."""
    policies = end_policies()
    template = {"spec": _shared_spec()}
    replicated = {
        "name": NODE,
        "template": {
            "metadata": {"labels": STEP},
            "spec": {"completionMode": "Indexed", **policies, "template": template},
        },
    }
    network = {"enableDNSHostnames": True, "publishNotReadyAddresses": True}
    return {
        "apiVersion": API,
        "kind": "ClusterTrainingRuntime",
        "metadata": {
            "name": name,
            "labels": {
                "app.kubernetes.io/managed-by": "spotelastic",
                "trainer.kubeflow.org/framework": "spotelastic",
            },
        },
        "spec": {
            # No policy of the Trainer's own: `spotelastic run` finds the other nodes.
            "mlPolicy": {"numNodes": 1},
            "template": {"spec": {"network": network, "replicatedJobs": [replicated]}},
        },
    }


def train_job(job: PodJob, runtime: str = RUNTIME) -> Manifest:
    """Return the job itself."""
    metadata = named(job)
    if job.queue:
        metadata["labels"] |= {QUEUE: job.queue}
    hosts = [f"{job.name}-{NODE}-0-{index}.{job.name}" for index in range(job.hosts)]
    trainer: Manifest = {
        "numNodes": job.settings.max_nodes,
        "image": job.image,
        "args": arguments(job, hosts),
        "env": variables(job),
        "resourcesPerNode": requested(job.resources),
    }
    spec: Manifest = {
        "runtimeRef": {"apiGroup": API.partition("/")[0], "kind": "ClusterTrainingRuntime"},
        "trainer": {key: value for key, value in trainer.items() if value},
        "runtimePatches": [_patch(job)],
    }
    spec["runtimeRef"]["name"] = runtime
    if job.deadline:
        spec["activeDeadlineSeconds"] = job.deadline
    return {"apiVersion": API, "kind": "TrainJob", "metadata": metadata, "spec": spec}


def _shared_spec() -> Manifest:
    """Return what the pods of all jobs have."""
    node = {
        "name": CONTAINER,
        "command": list(COMMAND),
        "env": downward(),
        "ports": ports(),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [SHARED_MEMORY_MOUNT],
    }
    return {
        **pod_security(),
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE,
        "topologySpreadConstraints": _spread(),
        "tolerations": [GPU_TOLERATION],
        "containers": [node],
        # The TrainJob says how large it is.
        "volumes": [{"name": SHARED_MEMORY, "emptyDir": {"medium": "Memory"}}],
    }


def _spread() -> list[Manifest]:
    """Return the wish that the etcd members of one job share no zone, and no machine."""
    first = [str(index) for index in range(MOST_HOSTS)]
    selector = {"matchExpressions": [{"key": INDEX, "operator": "In", "values": first}]}
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": selector,
            "matchLabelKeys": [JOBSET_NAME],
        }
        for key in (ZONE, MACHINE)
    ]


def _patch(job: PodJob) -> Manifest:
    """Return what the job changes in its runtime."""
    where = scheduling(job, {JOBSET_NAME: job.name})
    spec: Manifest = {
        "terminationGracePeriodSeconds": job.grace,
        **{key: where[key] for key in ("nodeSelector", "affinity", "tolerations") if key in where},
        "volumes": [shared_memory(job.resources)],
    }
    if job.service_account:
        spec["serviceAccountName"] = job.service_account
    pods = {"metadata": {"labels": labels(job)}, "spec": spec}
    replicated = {"name": NODE, "template": {"spec": {"template": pods}}}
    return {
        "manager": MANAGER,
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [replicated]}}},
    }
