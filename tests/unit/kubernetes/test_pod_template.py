"""A pod template of the user's: merged as kubectl does, and never over what a cluster relies on."""

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.emulated_kubernetes.api import patches
from support.kubernetes.pod_jobs import check_schema, pod_job

from spotelastic.client.kubernetes.pod_job import pod_template
from spotelastic.errors import UsageError
from spotelastic.kubernetes.cluster_manifests import worker_template
from spotelastic.kubernetes.pod_template import merged
from spotelastic.kubernetes.provider.kube_names import KubeNames
from spotelastic.model.job import JobSpec, Settings

SPEC = JobSpec("train", "train", "train.py", (), "c0de", Settings(1, 4), "s3://b/r", ("x:1",))


def template(**given: Any) -> dict[str, Any]:
    return worker_template(KubeNames("train"), pod_job(**given), SPEC)


MADE = template()
NODE = MADE["spec"]["containers"][0]
ALL: dict[str, Any] = {
    "metadata": {"labels": {"team": "vision"}, "annotations": {"a/b": "c"}},
    "spec": {
        "priorityClassName": "batch",
        "schedulerName": "volcano",
        "runtimeClassName": "nvidia",
        "serviceAccountName": "trainer",
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"pool": "spot"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
                    ]
                }
            }
        },
        "securityContext": {"runAsUser": 2000, "runAsGroup": None},
        "containers": [
            {
                "name": "node",
                "resources": {"limits": {"cpu": 8, "ephemeral-storage": "10Gi"}},
                "envFrom": [{"secretRef": {"name": "team"}}],
                "env": [{"name": "EPOCHS", "value": "3"}],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            },
            {"name": "sidecar", "image": "r/proxy:1"},
        ],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "9Gi"}},
        ],
    },
}


def test_whatever_kubernetes_takes_of_a_pod_is_merged_over_what_is_made() -> None:
    made = template(template=ALL)
    check_schema({"apiVersion": "v1", "kind": "Pod", **made})
    assert (
        made["metadata"]["labels"].items()
        >= {**MADE["metadata"]["labels"], "team": "vision"}.items()
    )
    spec = made["spec"]
    node, sidecar = spec["containers"]
    assert sidecar["name"] == "sidecar" and node["command"] == NODE["command"]
    assert node["resources"]["limits"] == {
        **NODE["resources"]["limits"],
        "cpu": 8,
        "ephemeral-storage": "10Gi",
    }
    assert spec["securityContext"]["runAsUser"] == 2000
    assert "runAsGroup" not in spec["securityContext"] and spec["securityContext"]["runAsNonRoot"]
    volumes = {each["name"]: each for each in spec["volumes"]}
    assert volumes["data"]["persistentVolumeClaim"] and "shared-memory" in volumes
    assert volumes["tmp"]["emptyDir"] == {"sizeLimit": "9Gi"}


def node(**given: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "node", **given}]}}


OWN: list[tuple[dict[str, Any], str]] = [
    ({"metadata": {"labels": dict.fromkeys(MADE["metadata"]["labels"])}}, "metadata.labels"),
    ({"metadata": {"labels": None}}, "metadata.labels"),
    ({"metadata": {"name": "x"}}, "give labels and annotations"),
    ({"kind": "Pod"}, "kind: expected"),
    ({"spec": []}, "spec: expected"),
    ({"spec": {"restartPolicy": "Always"}}, "restartPolicy"),
    ({"spec": {"terminationGracePeriodSeconds": 1}}, "terminationGracePeriodSeconds"),
    ({"spec": {"containers": None}}, "containers.node"),
    ({"spec": {"containers": [{"image": "x"}]}}, "containers.node"),
    ({"spec": {"containers": [{"name": "node", "$patch": "delete"}]}}, "containers.node"),
    ({"spec": {"volumes": [{"name": "shared-memory", "$patch": "delete"}]}}, "/dev/shm"),
    (node(command=["sh"]), "command"),
    (node(args=["x"]), "args"),
    (node(image="other"), "image"),
    (node(env=[{"name": "SPOTELASTIC_ZONE", "value": "x"}]), "SPOTELASTIC_ZONE"),
    (node(volumeMounts=[{"mountPath": "/dev/shm", "name": "other"}]), "/dev/shm"),
    (node(volumeMounts="none"), "/dev/shm"),
]


@pytest.mark.parametrize(("template", "told"), OWN)
def test_what_a_cluster_relies_on_is_not_the_users_to_change(
    template: dict[str, Any], told: str
) -> None:
    with pytest.raises(UsageError, match="--pod-template") as refused:
        merged(MADE, template)
    assert told in str(refused.value)


words = st.sampled_from(
    ["name", "node", "containers", "env", "volumes", "mountPath", "volumeMounts", "args", "tmp"]
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)


@given(
    labels=st.dictionaries(words, st.none() | words, max_size=3),
    spec=st.dictionaries(words, anything, max_size=4),
    container=st.dictionaries(words, anything, max_size=3),
)
def test_any_template_is_merged_as_kubectl_does_or_refused_in_a_line(
    labels: dict[str, Any], spec: dict[str, Any], container: dict[str, Any]
) -> None:
    """What is accepted is what the emulated API server makes of the same patch."""
    spec = {"containers": [{**container, "name": "node"}], **spec}
    template = {"metadata": {"labels": labels}, "spec": spec}
    before = copy.deepcopy(MADE)
    try:
        made = merged(MADE, template)
    except UsageError as error:
        assert "\n" not in str(error)
        return
    finally:
        assert before == MADE, "what is merged over stays as it is"
    assert made == patches.strategically_merged(MADE, template)
    its = next(each for each in made["spec"]["containers"] if each["name"] == "node")
    assert its["command"] == NODE["command"]


def test_a_template_of_a_file_is_what_json_can_say(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text("metadata: {annotations: {since: 2026-01-02}}")
    assert pod_template(str(file)) == {"metadata": {"annotations": {"since": "2026-01-02"}}}
    for text in ("spec: &a {x: *a}", "spec: {priority: .nan}", "spec: {? [a, b] : c}"):
        file.write_text(text)
        with pytest.raises(UsageError, match=f"--pod-template {file}: cannot be read"):
            pod_template(str(file))
