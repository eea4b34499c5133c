"""From `up --kube` by an ElasticJob and its operator to a control pod's calls, each one with the
rights that it is given: in one process, on the objects of the emulated cluster.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from support.emulated_kubernetes.api import rbac
from support.emulated_kubernetes.api.kinds import DEFINITIONS, EVENTS, LIMITS, PODS, QUOTAS
from support.emulated_kubernetes.api.objects import ObjectStore
from support.emulated_kubernetes.api.validate import completed
from support.emulated_kubernetes.control.control_plane import ControlPlane
from support.kubernetes.operator_parts import (
    OWN,
    definition,
    operator_manifests,
    operator_rules,
    schema,
)
from support.kubernetes.pod_jobs import check_schema, example_job
from support.kubernetes.stored_api import PLACE, StoredApi, names, namespace
from support.processes.patience import eventually

from spotelastic.client.confirmation import agreed
from spotelastic.client.kubernetes.kube_cluster import KubeCluster
from spotelastic.client.kubernetes.kube_job import KubeJob, kube_job
from spotelastic.client.kubernetes.pod_config import PodConfig
from spotelastic.client.operator import apply
from spotelastic.client.operator.fields import fields
from spotelastic.client.operator.operator import JobOperator
from spotelastic.client.targets.kube_target import KubePlace, KubeTarget
from spotelastic.clock import wall
from spotelastic.errors import EnvironmentFailure, UsageError
from spotelastic.kubernetes.cluster_manifests import control_rules
from spotelastic.kubernetes.elastic_job import API_VERSION, KIND
from spotelastic.kubernetes.provider import queues
from spotelastic.kubernetes.provider.api_client import KINDS, KubeApi
from spotelastic.kubernetes.provider.kube_names import KubeNames
from spotelastic.kubernetes.provider.kubernetes_cloud import connect
from spotelastic.kubernetes.provider.lock import LeaseLock
from spotelastic.model.requests.command import Command

ITS = KubeNames("train")
CONTROL = "r/spotelastic:1"
NEEDED: dict[str, Any] = {"kube": True, "image": "r/train:1", "storage": "s3://b/run", "min": 2}


def kube(api: StoredApi) -> KubeApi:
    return cast(KubeApi, api)


@pytest.fixture
def store() -> ObjectStore:
    made = namespace()
    made.create(DEFINITIONS, "", completed(DEFINITIONS, definition()))
    return made


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("print(1)")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def job(folder: Path, **given: Any) -> KubeJob:
    return kube_job(PodConfig("train.py", **NEEDED | given), folder)


@contextmanager
def operating(store: ObjectStore) -> Iterator[StoredApi]:
    """An operator that looks after the namespace, with the rights of its Role."""
    api, over, said = StoredApi(store, operator_rules()), threading.Event(), list[str]()
    operator = JobOperator(kube(api), CONTROL, said.append)

    def look() -> None:
        while not over.wait(0.01):
            for each in StoredApi(store).found(KIND, {}):
                operator.look_at(each["metadata"]["name"])

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield api
    finally:
        over.set()
        thread.join()
    assert not [line for line in said if "no right" in line or "has not" in line], said


def up(store: ObjectStore, it: KubeJob) -> tuple[KubeTarget, KubeCluster]:
    target = KubeTarget(KubePlace(), kube(StoredApi(store)))
    known = apply.look(target, it, agreed)
    return target, apply.carry_out(target, it, known, lambda _: None)


def test_up_applies_an_elastic_job_whose_operator_makes_all_pods_run(
    store: ObjectStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "hidden")
    with operating(store) as api:
        target, cluster = up(store, job(folder, secret=("TOKEN",), max=3, deadline="2h"))
        assert (cluster.spec.settings.min_nodes, cluster.spec.settings.max_nodes) == (2, 3)
        assert cluster.spec.folder == str(folder)
        resource = target.api.get(KIND, "train")
        assert resource is not None and "hidden" not in str(resource)
        assert resource["spec"]["secretsFrom"] == ITS.secrets
        control = target.api.get("Deployment", ITS.control)
        assert control is not None
        assert control["spec"]["template"]["spec"]["containers"][0]["image"] == CONTROL
        up(store, job(folder, secret=("TOKEN",), max=4))
        assert store_spec(target).settings.max_nodes == 4
        target.down("train", lambda _: None)
        left = {kind: target.api.found(kind, ITS.labels()) for kind in KINDS}
        assert not any(left.values()) and target.api.get(KIND, "train") is None
        assert "secrets" not in {resource for _, _, resource in names(api.used)}
    assert names(api.used) <= {(verb, group, what) for group, what, own in OWN for verb in own}


def store_spec(target: KubeTarget) -> Any:
    found = target.known("train")
    assert found is not None
    return found.spec


def test_commands_change_the_resource_that_would_undo_them(
    store: ObjectStore, folder: Path
) -> None:
    with operating(store):
        target, cluster = up(store, job(folder, max=3))
        cluster.send(Command("c", "scale", None, 5))
        until(lambda: store_spec(target).settings.max_nodes == 5)
        (folder / "train.py").write_text("print(2)")
        other = job(folder)
        cluster.change(lambda spec: replace(spec, code=other.spec.code), other.archive)
        until(lambda: store_spec(target).code == other.spec.code)
        resource = target.api.get(KIND, "train")
        assert resource is not None
        assert (resource["spec"]["max"], resource["spec"]["codeFrom"]["sha256"]) == (
            *(5, other.spec.code),
        )
        target.down("train", lambda _: None)


LEVEL = {"pod-security.kubernetes.io/enforce": "restricted"}


def made_for(store: ObjectStore, it: KubeJob) -> None:
    """Make the cluster of a job, as its operator does."""
    with operating(store):
        up(store, it)


@pytest.mark.parametrize("form", ["cluster", "job"])
def test_a_restricted_namespace_with_quotas_and_limits_admits_all_pods(
    folder: Path, form: str
) -> None:
    store = namespace(**LEVEL)
    store.create(DEFINITIONS, "", completed(DEFINITIONS, definition()))
    hard = {"pods": "9", "limits.memory": "3200Gi", "requests.memory": "3200Gi"}
    store.create(QUOTAS, PLACE, {"metadata": {"name": "team"}, "spec": {"hard": hard}})
    most = {"type": "Container", "max": {"memory": "400Gi"}, "default": {"cpu": "4"}}
    store.create(LIMITS, PLACE, {"metadata": {"name": "l"}, "spec": {"limits": [most]}})
    it = job(folder, memory="20Gi", secrets_from="team", secret=("TOKEN",))
    if form == "job":
        for each in example_job():
            StoredApi(store).create(each)
    else:
        made_for(store, it)
        api = StoredApi(store)
        api.patch("ReplicaSet", ITS.spot, {"spec": {"replicas": 2}})
        for each in operator_manifests(CONTROL):
            api.create(each)
    plane = ControlPlane(store)
    plane.reconcile()
    assert len(store.items(PODS, PLACE)) == (8 if form == "job" else 4)
    assert not [each for each in store.items(EVENTS, PLACE) if each["reason"] == "FailedCreate"]
    for pod in store.items(PODS, PLACE):
        check_schema({**pod, "status": {}})
        (container,) = pod["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["resources"]["limits"]["memory"]
        assert isinstance(pod["spec"]["securityContext"]["runAsUser"], int)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"securityContext": {"runAsNonRoot": None}}, "runAsNonRoot != true"),
        ({"securityContext": {"seccompProfile": None}}, "seccompProfile"),
        ({"hostNetwork": True}, "host namespaces"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, "volume types"),
        (
            {"containers": [{"name": "node", "securityContext": {"capabilities": None}}]},
            "must drop ALL",
        ),
        (
            {"containers": [{"name": "node", "securityContext": {"privileged": True}}]},
            "privileged",
        ),
    ],
)
def test_a_template_that_is_less_strict_is_refused_by_the_namespace_and_told(
    folder: Path, change: dict[str, Any], told: str
) -> None:
    store = namespace(**LEVEL)
    store.create(DEFINITIONS, "", completed(DEFINITIONS, definition()))
    it = job(folder, memory="2Gi", pod_template=json.dumps({"spec": change}))
    made_for(store, it)
    StoredApi(store).patch("ReplicaSet", ITS.spot, {"spec": {"replicas": 2}})
    plane = ControlPlane(store)
    for _ in range(3):
        plane.reconcile()
    failed = [each for each in store.items(EVENTS, PLACE) if each["reason"] == "FailedCreate"]
    assert failed and all(told in each["message"] for each in failed)
    assert not StoredApi(store).found("Pod", ITS.labels("worker"))


def test_the_control_pod_does_all_of_its_work_with_its_rights_and_makes_no_pods(
    store: ObjectStore, folder: Path
) -> None:
    made_for(store, job(folder, max=3))
    api, plane = StoredApi(store, control_rules(ITS)), ControlPlane(store)
    lock = LeaseLock(kube(api), "train", "pod-a")
    assert lock.try_to_hold() and lock.try_to_hold()
    cloud = connect(kube(api), "train")
    groups = cloud.provider
    groups.postpone(wall() + 600.0)
    assert dict(groups.groups())[ITS.spot].desired == 0
    groups.set_desired(ITS.spot, 3)
    plane.reconcile()
    node, other, _ = (each["metadata"]["name"] for each in api.found("Pod", ITS.labels("worker")))
    for each in (node, other):  # there is no machine here
        store.update(PODS, PLACE, each, lambda pod: pod["spec"].update(nodeName="n"))
    assert {each.id for each in groups.instances()} == {node, other}
    groups.console(node)
    groups.replace(node)
    cloud.events.receive(0.0)
    groups.complete_drain(ITS.spot, other)
    groups.end([other])
    cloud.objects.put("status.json", b"x" * 10)
    cloud.objects.put("status.json", b"y")
    assert cloud.objects.create("once.json", b"1")
    _, version = cloud.objects.read("once.json") or (b"", "")
    assert cloud.objects.replace("once.json", b"2", version)
    cloud.objects.delete("once.json")
    queues.send(kube(StoredApi(store)), "train", b"{}")
    (command,) = cloud.commands.receive(0.0)
    cloud.commands.delete(command.receipt)
    with pytest.raises(EnvironmentFailure, match="no right"):
        api.create({"kind": "ReplicaSet", "apiVersion": "apps/v1", "metadata": {"name": "x"}})
    with pytest.raises(EnvironmentFailure, match="no right"):
        api.get("ReplicaSet", "other-workers")
    groups.tear_down()
    lock.release()
    used = {(each.verb, each.group, each.resource) for each in api.used}
    granted = {(each.verb, each.group, each.resource) for each in rbac.single(control_rules(ITS))}
    assert granted - used == {("patch", "", "pods")}, "only of a group that shrinks"


def test_the_operator_says_that_it_is_alive(store: ObjectStore, tmp_path: Path) -> None:
    over, alive = threading.Event(), tmp_path / "alive"
    operator = JobOperator(kube(StoredApi(store)), CONTROL, lambda _: None)
    thread = threading.Thread(target=operator.run, args=(over, alive))
    thread.start()
    try:
        eventually(alive.exists, "a sign of life")
    finally:
        over.set()
        thread.join()


def test_groups_that_are_gone_are_made_again_by_the_operator(
    store: ObjectStore, folder: Path
) -> None:
    with operating(store):
        target, _ = up(store, job(folder))
        target.api.delete("ReplicaSet", ITS.spot)
        control = connect(kube(StoredApi(store, control_rules(ITS))), "train").provider
        until(lambda: target.api.get("ReplicaSet", ITS.spot) is not None)
        control.set_desired(ITS.spot, 1)
        assert control.groups()[ITS.spot].desired == 1


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"min": 4}, "max is less than min"),
        ({"min": 0}, "spec.min"),
        ({"storage": "s3://b/other"}, "storage cannot be changed"),
        ({"storage": None}, "storage cannot be changed"),
        ({"lease": 4}, "lease cannot be changed"),
        ({"codeFrom": {"configMap": "c", "url": "s3://b/x"}}, "configMap or url, not both"),
        ({"codeFrom": {"url": "s3://b/x"}}, "url needs sha256"),
        ({"maxRestarts": -1}, "spec.maxRestarts"),
    ],
)
def test_the_api_server_refuses_what_makes_no_sense(
    store: ObjectStore, change: dict[str, Any], told: str
) -> None:
    api, spec = StoredApi(store), {"image": "i", "storage": "s3://b/run", "min": 2, "max": 3}
    made = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "gpt"}}
    api.create({**made, "spec": spec})
    api.patch(KIND, "gpt", {"spec": {"max": 5}})
    with pytest.raises(EnvironmentFailure, match=told):
        api.patch(KIND, "gpt", {"spec": {"max": 3, **change}})
    with pytest.raises(EnvironmentFailure, match="no storage was given"):
        api.create({**made, "metadata": {"name": "other"}, "spec": {"image": "i"}})


LEAST = {
    name: each["minimum"]
    for name, each in schema()["properties"]["spec"]["properties"].items()
    if "minimum" in each
}


@pytest.mark.parametrize("name", LEAST)
def test_what_is_below_a_fields_minimum_is_refused_by_the_product_as_well(
    name: str, folder: Path
) -> None:
    with pytest.raises(UsageError):
        job(folder, **{fields()[name].name: LEAST[name] - 1})


def until(holds: Callable[[], bool]) -> None:
    eventually(holds, "what the operator does")
