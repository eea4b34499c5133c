"""Makes the objects that run a job as an Indexed Job (pure).

    Service              gives the pods names: JOB-0.JOB, JOB-1.JOB, ...
    NetworkPolicy        lets only the job's pods reach each other
    PodDisruptionBudget  keeps an eviction from taking all etcd members at once
    Job                  one pod for each index, of which `spotelastic run` trains with MIN to MAX

Must never happen: a manifest holds a secret's value. `SecretKey` has none.
"""

from collections.abc import Mapping
from typing import Any

from spotelastic.kubernetes.job_as_pods import PORT, PodJob
from spotelastic.kubernetes.pod_template import merged
from spotelastic.kubernetes.pods import Manifest, hosts_only, pod, ports
from spotelastic.kubernetes.run_command import COMMAND, arguments

JOB_NAME = "batch.kubernetes.io/job-name"
"""Label that Kubernetes gives the pods of a Job."""
RETRIES = 3
"""Failures of one index, with pauses that double, until it is given up."""
FAILED = 1
"""Exit code of a node whose job has failed: no pod can change that."""
ASKED_TO_LEAVE = 143
"""Exit code of a node that SIGTERM has asked to leave."""
QUEUE = "kueue.x-k8s.io/queue-name"
FEWEST = "kueue.x-k8s.io/job-min-parallelism"


def manifests(job: PodJob) -> list[Manifest]:
    """Return the objects of a job, in the order in which they are to be created."""
    selector = {JOB_NAME: job.name}
    budget = disruption_budget(job, selector)
    return [service(job), network_policy(job, selector), *budget, indexed_job(job)]


def host_names(job: PodJob) -> list[str]:
    """Return the names of the pods that run etcd members, as the job's other pods know them."""
    return [f"{job.name}-{index}.{job.name}" for index in range(job.hosts)]


def indexed_job(job: PodJob) -> Manifest:
    """Return the Job."""
    metadata = named(job)
    if job.queue:
        metadata["labels"] |= {QUEUE: job.queue}
        metadata["annotations"] = {FEWEST: str(job.settings.min_nodes)}
    template = {
        "metadata": {"labels": labels(job)},
        "spec": {
            "subdomain": job.name,
            "restartPolicy": "Never",
            **pod(job, {JOB_NAME: job.name}, _container(job)),
        },
    }
    spec = {**job_policies(job), "template": merged(template, job.template)}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _container(job: PodJob) -> Manifest:
    args = arguments(job, host_names(job))
    return {"command": list(COMMAND), "args": args, "ports": ports(job.metrics_port)}


def job_policies(job: PodJob) -> Manifest:
    """Return how many pods a Job has, and what their ends mean to it."""
    low, high = job.settings.min_nodes, job.settings.max_nodes
    policies: Manifest = {
        "completionMode": "Indexed",
        "parallelism": high,
        "completions": high,
        "maxFailedIndexes": high - low,
        "successPolicy": {"rules": [{"succeededCount": 1}]},
        "backoffLimitPerIndex": RETRIES,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": _failure_rules()},
    }
    if job.deadline:
        policies["activeDeadlineSeconds"] = job.deadline
    return policies


def _failure_rules() -> list[Manifest]:
    """Return what a pod's failure means; the first rule that fits counts."""
    disrupted = {"type": "DisruptionTarget", "status": "True"}
    return [
        {"action": "Ignore", "onPodConditions": [disrupted]},
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [ASKED_TO_LEAVE]}},
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [FAILED]}},
    ]


def service(job: PodJob) -> Manifest:
    """Return the headless Service that gives the pods their names."""
    spec = {
        "clusterIP": "None",
        "selector": {JOB_NAME: job.name},
        # Pods have to find each other before they are ready.
        "publishNotReadyAddresses": True,
        "ports": [{"name": "etcd", "port": PORT}, {"name": "etcd-peer", "port": PORT + 1}],
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": named(job), "spec": spec}


def network_policy(job: PodJob, selector: Mapping[str, str]) -> Manifest:
    """Return the policy by which nothing but the job's own pods reaches them.

    Neither etcd nor the workers' stores have a password. Metrics may be read from elsewhere.
    """
    pods = {"matchLabels": dict(selector)}
    ingress: list[Manifest] = [{"from": [{"podSelector": pods}]}]
    if job.metrics_port:
        ingress.append({"ports": [{"port": job.metrics_port}]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": named(job),
        "spec": {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": ingress},
    }


def disruption_budget(job: PodJob, selector: Mapping[str, str]) -> list[Manifest]:
    """Return the budget of the pods that run etcd members; none if there is one of them.

    Where a budget refuses an eviction, a spot machine that is reclaimed takes its pod along without
    a warning. So it refuses the last one alone: a node that leaves with a warning takes its member
    out of the count, and the job outlives that of two.
    """
    if job.hosts == 1:
        return []
    spec = {
        "minAvailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": hosts_only(job, selector),
    }
    return [
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": named(job),
            "spec": spec,
        }
    ]


def named(job: PodJob) -> dict[str, Any]:
    """Return the metadata of an object of the job."""
    where = {"namespace": job.namespace} if job.namespace else {}
    return {"name": job.name, **where, "labels": labels(job)}


def labels(job: PodJob) -> dict[str, str]:
    """Return the labels by which people and tools find the objects of a job."""
    return {
        "app.kubernetes.io/managed-by": "spotelastic",
        "app.kubernetes.io/name": "spotelastic",
        "app.kubernetes.io/instance": job.name,
    }
