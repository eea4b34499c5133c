"""ElasticJobs that a cluster will not have: what is refused at once, and what is told later."""

import threading
from pathlib import Path
from typing import Any, cast

import pytest
from support.emulated_kubernetes.api.kinds import DEFINITIONS, NAMESPACES, QUOTAS
from support.emulated_kubernetes.api.objects import ObjectStore
from support.emulated_kubernetes.api.validate import completed
from support.emulated_kubernetes.control.control_plane import ControlPlane
from support.kubernetes.operator_parts import definition, operator_rules
from support.kubernetes.stored_api import PLACE, StoredApi, namespace

from spotelastic.client.kubernetes.kube_job import kube_job
from spotelastic.client.kubernetes.pod_config import PodConfig
from spotelastic.client.operator import apply
from spotelastic.client.operator.operator import JobOperator
from spotelastic.client.targets.kube_target import KubePlace, KubeTarget
from spotelastic.errors import EnvironmentFailure
from spotelastic.kubernetes.elastic_job import API_VERSION, KIND
from spotelastic.kubernetes.pods import Manifest
from spotelastic.kubernetes.provider.api_client import KubeApi

THEIRS: dict[str, dict[str, Any]] = {
    "Role": {"apiVersion": "rbac.authorization.k8s.io/v1", "rules": []},
    "Service": {"apiVersion": "v1", "spec": {"selector": {"app": "web"}}},
    "Deployment": {
        "apiVersion": "apps/v1",
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": "w", "command": ["web"]}]},
            },
        },
    },
}


class PolicedApi(StoredApi):
    """A namespace in which an admission webhook refuses groups of workers, until it is content."""

    content = False

    def create(self, manifest: Manifest) -> Manifest:
        if manifest["kind"] == "ReplicaSet" and not self.content:
            raise EnvironmentFailure("admission webhook denied the request: no label team")
        return super().create(manifest)


class Place:
    """A namespace with the definition, an operator and Kubernetes' own controllers."""

    def __init__(self, api: type[StoredApi] = StoredApi) -> None:
        self.store: ObjectStore = namespace()
        self.store.create(DEFINITIONS, "", completed(DEFINITIONS, definition()))
        self.api = cast(KubeApi, StoredApi(self.store))
        self.own = api(self.store, operator_rules())
        self.operator = JobOperator(cast(KubeApi, self.own), "r/se:1", lambda _: None)
        self.plane = ControlPlane(self.store)

    def apply(self, name: str = "gpt") -> None:
        made = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}}
        self.api.create({**made, "spec": {"image": "i", "storage": "s3://b/run"}})

    def look(self, times: int = 4, name: str = "gpt") -> None:
        for _ in range(times):
            self.operator.look_at(name)
            self.plane.reconcile()

    def status(self) -> dict[str, Any]:
        found = self.api.get(KIND, "gpt")
        assert found is not None
        return dict(found["status"])

    def told(self) -> list[str]:
        events = self.api.found("Event", {})
        about = (each for each in events if each["involvedObject"]["kind"] == KIND)
        return [each["message"] for each in about if each["reason"] == "Hindered"]


@pytest.mark.parametrize(
    "name", ["g" * 40, "g" * 70, "my.job", "9lives", "gpt-"], ids=lambda name: name[:8]
)
def test_a_name_that_no_cluster_can_have_is_refused_at_apply(name: str) -> None:
    with pytest.raises(EnvironmentFailure, match="a name has at most 39 lower-case letters"):
        Place().apply(name)


def test_a_quota_that_refuses_pods_is_told_in_the_status_and_once_as_an_event() -> None:
    place = Place()
    quota = {"metadata": {"name": "team"}, "spec": {"hard": {"pods": "0"}}}
    place.store.create(QUOTAS, PLACE, quota)
    place.apply()
    place.look(6)
    status = place.status()
    assert (status["state"], status["reason"]) == ("pending", "Hindered")
    assert "exceeded quota: team" in status["message"]
    assert len(place.told()) == 1
    place.store.delete(QUOTAS, PLACE, "team")
    place.look()
    assert place.status()["reason"] == "Pending"


def test_a_policy_that_refuses_a_group_is_told_until_it_is_content() -> None:
    place = Place(PolicedApi)
    place.apply()
    place.look()
    assert place.status()["reason"] == "Hindered"
    assert "no label team" in place.status()["message"]
    assert len(place.told()) == 1
    cast(PolicedApi, place.own).content = True
    place.look()
    assert place.status()["reason"] == "Pending"


@pytest.mark.parametrize("kind", ["Role", "Service", "Deployment"])
def test_an_object_of_somebody_else_that_has_a_name_of_the_clusters_is_left_alone(
    kind: str,
) -> None:
    place = Place()
    theirs = {"kind": kind, "metadata": {"name": "gpt-control"}, **THEIRS[kind]}
    before = place.api.create(theirs)
    place.apply()
    place.look()
    after = place.api.get(kind, "gpt-control")
    assert after is not None
    parts = ("rules", "spec")
    assert [after.get(part) for part in parts] == [before.get(part) for part in parts]
    assert f"the {kind} gpt-control in ml is not this job's" in place.status()["message"]
    place.api.delete(kind, "gpt-control")
    place.look()
    assert place.status()["reason"] == "Pending"


def test_up_says_what_keeps_the_operator_from_its_work(tmp_path: Path) -> None:
    (tmp_path / "gpt.py").write_text("print(1)")
    place, said, over = Place(PolicedApi), list[str](), threading.Event()
    job = kube_job(PodConfig("gpt.py", kube=True, image="i", storage="s3://b/run"), tmp_path)

    def operate() -> None:
        while not over.wait(0.02):
            place.look(1)
            policed = cast(PolicedApi, place.own)
            policed.content = any("no label team" in line for line in said)

    thread = threading.Thread(target=operate)
    thread.start()
    try:
        apply.carry_out(KubeTarget(KubePlace(), place.api), job, None, said.append)
    finally:
        over.set()
        thread.join()
    assert sum("gpt is pending: " in line and "no label team" in line for line in said) == 1


def test_a_namespace_that_ends_takes_no_events_and_its_jobs_go() -> None:
    place = Place()
    place.apply()
    place.look()
    place.store.delete(NAMESPACES, "", PLACE)
    place.look(10)
    assert place.api.get(KIND, "gpt") is None
    assert place.store.find(NAMESPACES, "", PLACE) is None
