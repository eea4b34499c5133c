"""The objects that run a job as an Indexed Job: they keep Kubernetes' schema, and say what they
are meant to."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.kubernetes.pod_jobs import check_schema, of_kind, pod_job

from spotelastic.errors import UsageError
from spotelastic.kubernetes.job_as_pods import PodPlacement, PodResources, SecretKey
from spotelastic.kubernetes.manifests import manifests
from spotelastic.launcher import options as launcher_options
from spotelastic.launcher.flags import parse
from spotelastic.launcher.rendezvous_config import meeting
from spotelastic.model.in_place import REHEARSE_MODES
from spotelastic.model.interval import Interval
from spotelastic.model.job import Settings
from spotelastic.model.replication import Replication

EVERYTHING: dict[str, Any] = {
    "namespace": "ml",
    "flags": ("--preload", "datasets"),
    "workers": "4",
    "env": {"EPOCHS": "3"},
    "resources": PodResources(
        gpus=8, cpu="32", memory="400Gi", shared_memory="200Gi", more={"vpc.amazonaws.com/efa": "4"}
    ),
    "placement": PodPlacement(
        node_selector={"karpenter.sh/capacity-type": "spot"},
        instance_types=("p4d.24xlarge", "p4de.24xlarge"),
        tolerations=({"key": "spot", "operator": "Exists"},),
        spread=True,
    ),
    "workdir": "/workspace",
    "service_account": "trainer",
    "deadline": 3600,
    "queue": "gpus",
    "metrics_port": 9464,
}


@pytest.mark.parametrize("given", [{}, EVERYTHING], ids=["least", "everything"])
def test_all_objects_keep_the_schema_of_kubernetes(given: dict[str, Any]) -> None:
    made = manifests(pod_job(**given))
    assert [each["kind"] for each in made] == [
        *("Service", "NetworkPolicy", "PodDisruptionBudget", "Job")
    ]
    for manifest in made:
        check_schema(manifest)
        assert manifest["metadata"]["name"] == "train"
        assert manifest["metadata"].get("namespace", "") == given.get("namespace", "")


def test_the_pods_find_each_other_at_an_etcd_of_the_first_three() -> None:
    made = manifests(pod_job(2, 8))
    assert of_kind("Service", made)["spec"]["clusterIP"] == "None"
    assert of_kind("Service", made)["spec"]["publishNotReadyAddresses"] is True
    told = _run_options(made)
    where = meeting(told, 2, 8)
    assert where.endpoints == tuple(f"train-{index}.train:29400" for index in range(3))
    assert where.run == "train"


def test_a_job_of_two_has_one_etcd_member_and_no_budget_that_would_hold_it() -> None:
    made = manifests(pod_job(1, 2))
    assert meeting(_run_options(made), 1, 2).endpoints == ("train-0.train:29400",)
    assert not [each for each in made if each["kind"] == "PodDisruptionBudget"]


def test_the_budget_holds_the_last_of_the_pods_with_etcd_alone() -> None:
    budget = of_kind("PodDisruptionBudget", manifests(pod_job()))["spec"]
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
    policy = of_kind("Job", manifests(pod_job()))["spec"]["podFailurePolicy"]
    assert _action(policy, code, conditions) == action


def test_the_job_ends_when_a_node_has_seen_it_succeed() -> None:
    job = of_kind("Job", manifests(pod_job(2, 8)))["spec"]
    assert job["successPolicy"] == {"rules": [{"succeededCount": 1}]}
    assert (job["completions"], job["parallelism"], job["maxFailedIndexes"]) == (8, 8, 6)
    assert job["completionMode"] == "Indexed"


def test_secrets_are_references_and_a_script_gets_its_words_unchanged() -> None:
    command = ("train.py", "$(HOSTNAME)", "$$", "--", "a b")
    pod = _pod(pod_job(command=command, env={"PATTERN": "$(date) $HOME"}))
    (container,) = pod["containers"]
    words = [_expanded(word) for word in container["args"]]
    assert tuple(words[-5:]) == command
    env = {each["name"]: each for each in container["env"]}
    assert _expanded(env["PATTERN"]["value"]) == "$(date) $HOME"
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


def test_no_pod_has_privileges_or_a_token_of_the_cluster() -> None:
    pod = _pod(pod_job())
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert "hostNetwork" not in pod


def test_the_etcd_members_are_spread_over_zones_and_all_pods_if_asked_for() -> None:
    zone, machine = _pod(pod_job())["topologySpreadConstraints"]
    assert zone["topologyKey"] == "topology.kubernetes.io/zone"
    assert zone["labelSelector"] == machine["labelSelector"]
    assert zone["labelSelector"]["matchExpressions"][0]["values"] == ["0", "1", "2"]
    zone, _ = _pod(pod_job(placement=PodPlacement(spread=True)))["topologySpreadConstraints"]
    assert "matchExpressions" not in zone["labelSelector"]


def test_nothing_but_the_jobs_pods_reaches_them() -> None:
    policy = of_kind("NetworkPolicy", manifests(pod_job()))["spec"]
    (rule,) = policy["ingress"]
    assert rule == {"from": [{"podSelector": policy["podSelector"]}]}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"name": "Train"}, "--name Train: a name is lower-case letters"),
        ({"name": "a" * 64}, "a: a name has at most 63 characters"),
        ({"name": "t" * 53}, "has more than 52 characters"),
        ({"image": ""}, "--image: name a container image"),
        ({"command": ()}, "no script was given"),
        ({"storage": "runs"}, "--storage runs: give a URL that all pods reach"),
        ({"grace": 0}, "--grace-period 0: needs to be at least 1"),
    ],
)
def test_what_kubernetes_would_refuse_is_a_usage_error(given: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        pod_job(**given)


def test_wrong_quantities_and_names_are_told_with_their_flag() -> None:
    with pytest.raises(UsageError, match="--memory 64GB: expected a quantity"):
        PodResources(memory="64GB")
    with pytest.raises(UsageError, match="--node-selector a b=…"):
        PodPlacement(node_selector={"a b": "c"})
    with pytest.raises(UsageError, match="--secret Ctrain: a name is"):
        SecretKey("Ctrain", "KEY")


steps = st.one_of(
    st.just(Interval()),
    st.integers(0, 10**6).map(lambda n: Interval(steps=n)),
    st.integers(1, 10**5).map(lambda n: Interval(seconds=float(n))),
)
all_settings = st.builds(
    Settings,
    min_nodes=st.integers(1, 4),
    max_nodes=st.integers(4, 9),
    max_restarts=st.integers(0, 9),
    gang=st.booleans(),
    stall_timeout=st.sampled_from([0.0, 90.0]),
    exit_barrier=st.sampled_from([300.0, 60.0]),
    snapshot_every=steps,
    checkpoint_every=steps,
    keep_last=st.integers(1, 9),
    keep_every=st.integers(0, 99),
    outputs=st.sampled_from([(), ("out",), ("out", "a,b/c d")]),
    replicate=st.sampled_from([Replication(), Replication(None), Replication(5e7)]),
    rehearse=st.sampled_from(REHEARSE_MODES),
    exact=st.booleans(),
)


@given(settings=all_settings)
def test_spotelastic_run_reads_from_the_arguments_what_the_job_is_to_have(
    settings: Settings,
) -> None:
    made = manifests(pod_job(settings=settings, resources=PodResources()))
    assert launcher_options.settings(_run_options(made)) == settings


def _pod(job: Any) -> Any:
    return of_kind("Job", manifests(job))["spec"]["template"]["spec"]


def _shm(resources: PodResources) -> str:
    volumes = _pod(pod_job(resources=resources))["volumes"]
    (volume,) = (each for each in volumes if each["name"] == "shared-memory")
    assert volume["emptyDir"]["medium"] == "Memory"
    return str(volume["emptyDir"]["sizeLimit"])


def _run_options(made: list[Any]) -> Any:
    """What `spotelastic run` reads from the container's arguments."""
    (container,) = of_kind("Job", made)["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["spotelastic", "run"]
    return parse([_expanded(word) for word in container["args"]], {})


def _expanded(text: str) -> str:
    """The text as a container gets it: $(NAME) is replaced if there is NAME, and $$ is one $."""
    return text.replace("$$", "$")


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
