"""A job for Kubeflow's Trainer keeps its models, and says the same as the Indexed Job."""

from collections.abc import Iterator
from typing import Any

import pytest
from kubeflow_trainer_api.models import (
    TrainerV1alpha1ClusterTrainingRuntime,
    TrainerV1alpha1TrainJob,
)
from support.kubernetes.pod_jobs import check_schema, of_kind, pod_job

from spotelastic.kubernetes.job_as_pods import PodPlacement, PodResources
from spotelastic.kubernetes.kubeflow import kubeflow_manifests
from spotelastic.kubernetes.manifests import manifests

MODELS = {
    "ClusterTrainingRuntime": TrainerV1alpha1ClusterTrainingRuntime,
    "TrainJob": TrainerV1alpha1TrainJob,
}
MORE: dict[str, Any] = {
    "namespace": "ml",
    "env": {"EPOCHS": "3"},
    "resources": PodResources(gpus=8, cpu="32", memory="400Gi", shared_memory="200Gi"),
    "placement": PodPlacement(
        node_selector={"karpenter.sh/capacity-type": "spot"},
        instance_types=("p4d.24xlarge",),
        spread=True,
    ),
    "service_account": "trainer",
    "deadline": 3600,
    "queue": "gpus",
    "metrics_port": 9464,
}


@pytest.mark.parametrize("given", [{}, MORE], ids=["least", "more"])
def test_runtime_and_job_keep_the_trainers_models(given: dict[str, Any]) -> None:
    made = kubeflow_manifests(pod_job(**given))
    for manifest in made:
        model: Any = MODELS.get(manifest["kind"])
        if model is None:
            check_schema(manifest)
        else:
            assert not list(lost(manifest, model.from_dict(manifest).to_dict()))


def lost(given: Any, kept: Any, at: str = "") -> Iterator[str]:
    """What a model does not know, and has therefore not kept."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            yield from lost(value, kept.get(key), f"{at}.{key}")
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for place, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from lost(one, other, f"{at}[{place}]")
    elif given != kept:
        yield at


def test_the_runtimes_job_keeps_the_schema_of_kubernetes() -> None:
    runtime = of_kind("ClusterTrainingRuntime", kubeflow_manifests(pod_job(**MORE)))
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    spec = replicated["template"]["spec"]
    check_schema(
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "node"}, "spec": spec}
    )


def test_the_job_runs_what_the_indexed_job_runs_at_its_own_names() -> None:
    job = pod_job(**MORE)
    trainer = of_kind("TrainJob", kubeflow_manifests(job))["spec"]["trainer"]
    pods = of_kind("Job", manifests(job))["spec"]["template"]["spec"]
    (container,) = pods["containers"]
    names = [f"train-node-0-{index}.train" for index in range(3)]
    endpoint = next(word for word in trainer["args"] if "endpoint" in word)
    assert endpoint == f"--rdzv-endpoint={','.join(f'{name}:29400' for name in names)}"
    others = [word for word in container["args"] if "endpoint" not in word]
    assert [word for word in trainer["args"] if "endpoint" not in word] == others
    assert trainer["resourcesPerNode"] == container["resources"]
    assert all(each in container["env"] for each in trainer["env"])


def test_one_runtime_serves_jobs_of_all_kinds() -> None:
    some = pod_job(3, 8)
    other = pod_job(1, 2, name="other", image="other:2", **MORE)
    runtimes = [of_kind("ClusterTrainingRuntime", kubeflow_manifests(job)) for job in (some, other)]
    assert runtimes[0] == runtimes[1]


def test_the_budget_and_the_policy_are_of_the_jobsets_pods() -> None:
    made = kubeflow_manifests(pod_job())
    label = {"jobset.sigs.k8s.io/jobset-name": "train"}
    assert of_kind("NetworkPolicy", made)["spec"]["podSelector"]["matchLabels"] == label
    assert of_kind("PodDisruptionBudget", made)["spec"]["selector"]["matchLabels"] == label
