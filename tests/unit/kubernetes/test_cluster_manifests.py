"""The objects of `up --kube`: they keep Kubernetes' schema, and give nobody more than is needed."""

import json
from typing import Any

import pytest
from support.emulated_kubernetes.api import rbac
from support.kubernetes.pod_jobs import check_schema, of_kind, pod_job

from spotelastic.kubernetes import cluster_manifests, pod_files
from spotelastic.kubernetes.job_as_pods import PodPlacement, PodResources, SecretKey
from spotelastic.kubernetes.provider import pod_groups
from spotelastic.kubernetes.provider.kube_names import KubeNames
from spotelastic.model.job import JobSpec, Settings

ITS = KubeNames("train")
IMAGE = "r/spotelastic:1"
ROOT = {**cluster_manifests.root(ITS)}
ROOT["metadata"] = {**ROOT["metadata"], "uid": "u-1"}
SPEC = JobSpec("train", "train", "train.py", (), "c0de", Settings(1, 4), "s3://b/r", ("x:1",))
EVERYTHING: dict[str, Any] = {
    "resources": PodResources(gpus=8, cpu="32", memory="400Gi"),
    "placement": PodPlacement(
        node_selector={"karpenter.sh/capacity-type": "spot"},
        instance_types=("p4d.24xlarge",),
        spread=True,
    ),
    "service_account": "trainer",
    "secrets": {"TOKEN": SecretKey("train-secrets", "TOKEN")},
    "metrics_port": 9464,
}


@pytest.mark.parametrize("given", [{}, EVERYTHING], ids=["least", "everything"])
def test_all_objects_keep_the_schema_and_belong_to_the_first(given: dict[str, Any]) -> None:
    job = pod_job(**given)
    template = cluster_manifests.worker_template(ITS, job, SPEC)
    switch = pod_groups.switch(ITS, IMAGE, ROOT, 3600.0)
    owned = [
        *cluster_manifests.control_plane(ITS, job, IMAGE, ROOT),
        cluster_manifests.secret(ITS, {"TOKEN": "x"}, ROOT),
        cluster_manifests.code(ITS, 0, b"code", ROOT),
        switch,
    ]
    for each in owned:
        assert [owner["uid"] for owner in each["metadata"]["ownerReferences"]] == ["u-1"]
    switch["metadata"]["uid"] = "u-2"
    made = pod_groups.group(ITS, ITS.spot, template, switch)
    for each in (ROOT, *owned, made):
        check_schema(each)
        assert each["metadata"]["labels"]["spotelastic/cluster"] == "train"


def test_workers_have_no_token_and_no_manifest_has_a_secrets_value() -> None:
    template = cluster_manifests.worker_template(ITS, pod_job(**EVERYTHING), SPEC)
    assert template["spec"]["automountServiceAccountToken"] is False
    (container,) = template["spec"]["containers"]
    (token,) = (each for each in container["env"] if each["name"] == "TOKEN")
    assert token["valueFrom"]["secretKeyRef"] == {"name": "train-secrets", "key": "TOKEN"}
    assert "value" not in token


def test_the_controller_may_do_nothing_outside_of_its_namespace_or_with_secrets() -> None:
    made = cluster_manifests.control_plane(ITS, pod_job(), IMAGE, ROOT)
    assert {each["kind"] for each in made}.isdisjoint({"ClusterRole", "ClusterRoleBinding"})
    rules = of_kind("Role", made)["rules"]
    named = {resource for rule in rules for resource in rule["resources"]}
    assert named == {
        *("configmaps", "pods", "pods/log", "replicasets", "replicasets/scale", "jobs", "leases")
    }
    assert "*" not in json.dumps(rules)
    rights = rbac.single(rules)
    makes = {each.resource for each in rights if each.verb == "create"}
    assert makes == {"configmaps", "leases"}, "nothing of which pods are made"
    unnamed = {each.resource for each in rights if not each.name}
    assert unnamed == {"configmaps", "pods", "pods/log", "leases"}, "these have no fixed names"


def test_the_switch_never_has_a_pod_and_goes_once_it_has_ended() -> None:
    spec = pod_groups.switch(ITS, IMAGE, ROOT, 59.2)["spec"]
    assert (spec["parallelism"], spec["activeDeadlineSeconds"]) == (0, 60)
    assert spec["ttlSecondsAfterFinished"] == 0


def test_code_is_split_and_found_again(tmp_path: Any) -> None:
    archive = bytes(range(256)) * 6000
    parts = pod_files.parts(archive)
    assert len(parts) == 3
    for number, part in enumerate(parts):
        (tmp_path / pod_files.part_file(number)).write_bytes(part)
    assert pod_files.code(tmp_path) == archive
    assert len(pod_files.parts(bytes(pod_files.MOST_CODE))) <= pod_files.MOST_PARTS
