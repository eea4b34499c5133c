"""From `up --kube` by an ElasticJob and its operator to a control pod's calls, each one with the
rights that it is given: in one process, on the objects of the emulated cluster.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from support.emulated_kubernetes.api.kinds import DEFINITIONS, PODS
from support.emulated_kubernetes.api.objects import ObjectStore
from support.emulated_kubernetes.api.validate import completed
from support.emulated_kubernetes.control.control_plane import ControlPlane
from support.kubernetes.pod_jobs import check_schema
from support.kubernetes.stored_api import PLACE, StoredApi, names, namespace

from spotelastic.client.confirmation import agreed
from spotelastic.client.kubernetes.kube_cluster import KubeCluster
from spotelastic.client.kubernetes.kube_job import KubeJob, kube_job
from spotelastic.client.kubernetes.pod_config import PodConfig
from spotelastic.client.operator import apply
from spotelastic.client.operator.definition import definition
from spotelastic.client.operator.operator import JobOperator
from spotelastic.client.targets.kube_target import KubePlace, KubeTarget
from spotelastic.errors import EnvironmentFailure, LeaseLost, UsageError
from spotelastic.kubernetes.cluster_manifests import control_rules
from spotelastic.kubernetes.elastic_job import KIND
from spotelastic.kubernetes.operator_manifests import OWN, operator_rules
from spotelastic.kubernetes.provider import queues
from spotelastic.kubernetes.provider.api_client import KINDS, KubeApi
from spotelastic.kubernetes.provider.call_errors import Undefined
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
            for each in StoredApi(store).found(KIND, {}) or all_jobs(store):
                operator.look_at(each["metadata"]["name"])

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield api
    finally:
        over.set()
        thread.join()
    assert not [line for line in said if "tries again" in line], said


def all_jobs(store: ObjectStore) -> list[dict[str, Any]]:
    kind = next(each for each in store.kinds() if each.custom)
    return store.items(kind, PLACE)


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
        from dataclasses import replace

        cluster.change(lambda spec: replace(spec, code=other.spec.code), other.archive)
        until(lambda: store_spec(target).code == other.spec.code)
        resource = target.api.get(KIND, "train")
        assert resource is not None
        assert (resource["spec"]["max"], resource["spec"]["codeFrom"]["sha256"]) == (
            *(5, other.spec.code),
        )
        target.down("train", lambda _: None)


def until(holds: Callable[[], bool]) -> None:
    from support.processes.patience import eventually

    eventually(holds, "what the operator does")
