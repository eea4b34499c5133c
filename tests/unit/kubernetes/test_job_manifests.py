"""The example of a job without the operator, and the values of a job as pods."""

from typing import Any

import pytest
from support.kubernetes.pod_jobs import check_schema, example_job, of_kind, pod_job

from spotelastic.errors import UsageError
from spotelastic.kubernetes.cluster_manifests import worker_template
from spotelastic.kubernetes.job_as_pods import PodPlacement, PodResources, SecretKey
from spotelastic.kubernetes.provider.kube_names import KubeNames
from spotelastic.launcher.flags import parse
from spotelastic.launcher.rendezvous_config import meeting
from spotelastic.model.job import JobSpec, Settings

SPEC = JobSpec("train", "train", "train.py", (), "c0de", Settings(1, 4), "s3://b/r", ("x:1",))


def test_all_objects_of_the_example_keep_the_schema_of_kubernetes() -> None:
    made = example_job()
    assert [each["kind"] for each in made] == [
        *("Service", "NetworkPolicy", "PodDisruptionBudget", "Job")
    ]
    for manifest in made:
        check_schema(manifest)
        assert manifest["metadata"]["name"] == "gpt"


def test_its_pods_find_each_other_at_an_etcd_of_the_first_three() -> None:
    (container,) = of_kind("Job", example_job())["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["spotelastic", "run"]
    where = meeting(parse(container["args"], {}), 2, 8)
    assert where.endpoints == tuple(f"gpt-{index}.gpt:29400" for index in range(3))
    assert where.run == "gpt"


def test_its_budget_holds_the_last_of_the_pods_with_etcd_alone() -> None:
    budget = of_kind("PodDisruptionBudget", example_job())["spec"]
    assert budget["minAvailable"] == 1
    (only,) = budget["selector"]["matchExpressions"]
    assert only["values"] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("code", "conditions", "action"),
    [
        (137, ["DisruptionTarget"], "Ignore"),
        (1, ["DisruptionTarget"], "Ignore"),
        (143, [], "Ignore"),
        (1, [], "FailJob"),
        (2, [], "Count"),
        (137, [], "Count"),
    ],
)
def test_disruptions_do_not_count_and_a_failed_job_is_not_repeated(
    code: int, conditions: list[str], action: str
) -> None:
    policy = of_kind("Job", example_job())["spec"]["podFailurePolicy"]
    assert _action(policy, code, conditions) == action


def test_the_job_ends_when_a_node_has_seen_it_succeed() -> None:
    job = of_kind("Job", example_job())["spec"]
    assert job["successPolicy"] == {"rules": [{"succeededCount": 1}]}
    assert (job["completions"], job["parallelism"], job["maxFailedIndexes"]) == (8, 8, 6)
    assert job["completionMode"] == "Indexed"


def test_nothing_but_its_pods_reaches_them_and_they_have_no_token() -> None:
    made = example_job()
    policy = of_kind("NetworkPolicy", made)["spec"]
    (rule,) = policy["ingress"]
    assert rule == {"from": [{"podSelector": policy["podSelector"]}]}
    assert of_kind("Job", made)["spec"]["template"]["spec"]["automountServiceAccountToken"] is False


def test_secrets_are_references_and_a_script_gets_its_variables_unchanged() -> None:
    (container,) = _pod(env={"PATTERN": "$(date) $HOME"})["containers"]
    env = {each["name"]: each for each in container["env"]}
    assert env["PATTERN"]["value"] == "$$(date) $$HOME", "of $$ the kubelet makes $"
    assert env["WANDB_API_KEY"]["valueFrom"] == {
        "secretKeyRef": {"name": "train", "key": "WANDB_API_KEY"}
    }
    assert "value" not in env["WANDB_API_KEY"]


def test_shared_memory_is_sized_and_is_part_of_the_pods_memory() -> None:
    assert _shm(PodResources(memory="64Gi")) == "32768Mi"
    assert _shm(PodResources(memory="64Gi", shared_memory="48Gi")) == "48Gi"
    assert _shm(PodResources()) == "32Gi"
    with pytest.raises(UsageError, match="--shm-size 64Gi: counts as the pod's memory"):
        PodResources(memory="64Gi", shared_memory="64Gi")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"name": "Train"}, "--name Train: a name is lower-case letters"),
        ({"name": "t" * 64}, "a name is .* and has at most 63 characters"),
        ({"namespace": "a" * 64}, "a: a name is .* and has at most 63 characters"),
        ({"image": ""}, "--image: name a container image"),
        ({"storage": "runs"}, "--storage runs: give a URL that all pods reach"),
    ],
)
def test_what_kubernetes_would_refuse_is_a_usage_error(given: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        pod_job(**given)


def test_a_namespace_may_begin_with_a_digit() -> None:
    assert pod_job(namespace="2026-team").namespace == "2026-team"


def test_wrong_quantities_and_names_are_told_with_their_flag() -> None:
    with pytest.raises(UsageError, match="--memory 64GB: expected a quantity"):
        PodResources(memory="64GB")
    with pytest.raises(UsageError, match="--node-selector a b=…"):
        PodPlacement(node_selector={"a b": "c"})
    with pytest.raises(UsageError, match="--secret Ctrain: a name is"):
        SecretKey("Ctrain", "KEY")


def _pod(**given: Any) -> Any:
    return worker_template(KubeNames("train"), pod_job(**given), SPEC)["spec"]


def _shm(resources: PodResources) -> str:
    volumes = _pod(resources=resources)["volumes"]
    (volume,) = (each for each in volumes if each["name"] == "shared-memory")
    assert volume["emptyDir"]["medium"] == "Memory"
    return str(volume["emptyDir"]["sizeLimit"])


def _action(policy: Any, code: int, conditions: list[str]) -> str:
    """What a Job's controller does for a pod that has failed, as Kubernetes documents it."""
    for rule in policy["rules"]:
        patterns = rule.get("onPodConditions", [])
        if any(each["type"] in conditions for each in patterns):
            return str(rule["action"])
        codes = rule.get("onExitCodes")
        if codes and (code in codes["values"]) == (codes["operator"] == "In"):
            return str(rule["action"])
    return "Count"
