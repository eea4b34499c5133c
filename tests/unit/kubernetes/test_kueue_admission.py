"""An ElasticJob with a queue: from its label by a Workload to pods and back, in one process, on the
objects of the emulated cluster, with the rights of the operator's Role.
"""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from support.emulated_kubernetes.api.kinds import DEFINITIONS, PODS
from support.emulated_kubernetes.api.objects import ObjectStore
from support.emulated_kubernetes.api.validate import completed
from support.emulated_kubernetes.control.control_plane import ControlPlane
from support.kubernetes.emulated_kueue import EmulatedKueue, definitions
from support.kubernetes.operator_parts import KUEUE, OWN, definition, operator_rules
from support.kubernetes.pod_jobs import check_schema
from support.kubernetes.stored_api import PLACE, StoredApi, names, namespace

from spotelastic.client.kubernetes.kube_cluster import KubeCluster
from spotelastic.client.kubernetes.kube_job import kube_job
from spotelastic.client.kubernetes.pod_config import PodConfig
from spotelastic.client.operator import apply
from spotelastic.client.operator.operator import JobOperator
from spotelastic.client.targets.kube_target import KubePlace, KubeTarget
from spotelastic.clock import wall
from spotelastic.errors import UsageError
from spotelastic.kubernetes.elastic_job import API_VERSION, KIND
from spotelastic.kubernetes.provider.api_client import KubeApi
from spotelastic.kubernetes.provider.config_map_objects import ConfigMapObjects
from spotelastic.kubernetes.provider.kube_names import KubeNames
from spotelastic.kubernetes.provider.kubernetes_cloud import connect
from spotelastic.model.progress import Status
from spotelastic.model.requests.command import Command

QUEUE, CLASS = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
MAY_READ_CLASSES = {"apiGroups": ["kueue.x-k8s.io"], "resources": ["workloadpriorityclasses"]}
MAY_READ_CLASSES |= {"verbs": ["get"]}


@dataclass
class Team:
    """A namespace with the operator and Kueue."""

    store: ObjectStore
    room: int = 0
    has_kueue: bool = True

    def __post_init__(self) -> None:
        for each in (definition(), *(definitions() if self.has_kueue else ())):
            self.store.create(DEFINITIONS, "", completed(DEFINITIONS, each))
        self.own = StoredApi(self.store, [*operator_rules(), MAY_READ_CLASSES])
        self.api = cast(KubeApi, StoredApi(self.store))
        self.said: list[str] = []
        self.operator = JobOperator(cast(KubeApi, self.own), "r/se:1", self.said.append)
        self.kueue = EmulatedKueue(self.api, self.room)
        self.plane = ControlPlane(self.store)

    def apply(self, name: str, *, labels: dict[str, str] | None = None, **spec: Any) -> None:
        metadata = {"name": name, "labels": {QUEUE: "team", **(labels or {})}}
        given = {"image": "i", "storage": f"s3://b/{name}", "min": 2, "max": 4, "cpu": "4"}
        made = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata}
        self.api.create({**made, "spec": {**given, **spec}})

    def look(self, times: int = 6) -> None:
        for _ in range(times):
            for each in self.api.found(KIND, {}):
                self.operator.look_at(each["metadata"]["name"])
            if self.has_kueue:
                self.kueue.look()
            self.plane.reconcile()

    def state(self, name: str) -> tuple[str, str]:
        found = self.api.get(KIND, name)
        assert found is not None
        return found["status"]["state"], found["status"]["message"]

    def objects(self, name: str) -> ConfigMapObjects:
        return ConfigMapObjects(self.api, name)

    def most(self, name: str) -> int:
        spec = self.objects(name).job()
        assert spec is not None
        return spec.settings.max_nodes

    def publish(self, name: str, state: str, step: int = 7) -> None:
        told = Status(name, state, wall(), step=step, reason=f"it is {state}")
        self.objects(name).put("status.json", msgspec.json.encode(told))

    def pods(self, name: str) -> list[str]:
        found = self.api.found("Pod", KubeNames(name).labels())
        return [each["metadata"]["name"] for each in found]

    def grow(self, name: str, count: int) -> None:
        """Make workers, as a controller does, each on a machine."""
        self.api.patch("ReplicaSet", KubeNames(name).spot, {"spec": {"replicas": count}})
        self.plane.reconcile()
        for each in self.api.found("Pod", KubeNames(name).labels("worker")):
            called = each["metadata"]["name"]
            self.store.update(PODS, PLACE, called, lambda it: it["spec"].update(nodeName="n"))

    def end_pods(self, name: str) -> None:
        """End the pods whose grace is over."""
        for each in self.api.found("Pod", KubeNames(name).labels()):
            if each["metadata"].get("deletionTimestamp"):
                self.api.delete("Pod", each["metadata"]["name"], grace=0)


@pytest.fixture
def team() -> Team:
    return Team(namespace(), 5)


def test_a_job_waits_whole_and_is_admitted_whole(team: Team) -> None:
    team.room = team.kueue.room = 2
    team.apply("gpt")
    team.look()
    state, message = team.state("gpt")
    assert state == "queued" and "1 more needed" in message
    assert not team.pods("gpt") and not team.api.found("Deployment", {})
    assert not team.api.found("ConfigMap", {}), "nothing is created before"
    made = team.kueue.workload("gpt")
    assert made["spec"]["queueName"] == "team"
    control, workers = made["spec"]["podSets"]
    assert (control["name"], control["count"], control.get("minCount")) == ("control", 1, None)
    assert (workers["name"], workers["count"], workers["minCount"]) == ("workers", 4, 2)
    assert workers["template"]["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "4"}}
    for each in (control, workers):
        spec = each["template"]["spec"]
        check_schema({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec})
    team.kueue.room = 9
    team.look()
    assert len(team.pods("gpt")) == 1 and team.most("gpt") == 4
    assert names(team.own.used) <= {
        (verb, group, what) for group, what, verbs in OWN + KUEUE for verb in verbs
    }


def test_fewer_nodes_are_admitted_and_no_more_are_made(team: Team) -> None:
    team.kueue.room = 4
    team.apply("gpt")
    team.look()
    assert team.most("gpt") == 3
    team.api.patch(KIND, "gpt", {"spec": {"max": 8}})
    team.look()
    assert team.most("gpt") == 3, "until it is admitted anew"
    team.api.patch(KIND, "gpt", {"spec": {"max": 2}})
    team.look()
    assert team.most("gpt") == 2
    assert team.kueue.used() == 4
    cluster = KubeCluster.of(team.api, "gpt")
    assert cluster is not None
    cluster.send(Command("c", "scale", None, 9))
    (sent,) = connect(team.api, "gpt").commands.receive(0.0)
    assert sent.content is not None and sent.content.max_nodes == 2, "the operator does the rest"
    team.look()
    assert team.most("gpt") == 3


def test_an_evicted_job_gives_its_room_back_once_its_pods_are_gone(team: Team) -> None:
    team.apply("gpt")
    team.look()
    team.grow("gpt", 2)
    team.publish("gpt", "running")
    team.look()
    assert team.kueue.conditions("gpt")["PodsReady"] == (True, "Started")
    team.apply("other", labels={CLASS: "high"})
    value = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass"}
    team.look()
    assert any("there is no WorkloadPriorityClass high" in line for line in team.said)
    team.api.create({**value, "metadata": {"name": "high"}, "value": 100})
    team.look()
    assert team.kueue.workload("other")["spec"]["priority"] == 100
    state, message = team.state("gpt")
    assert (state, message) == ("suspended", "Preempted to accommodate a workload of other")
    assert len(team.pods("gpt")) == 3, "they have their grace, and the control pod ends last"
    control = team.api.found("Pod", KubeNames("gpt").labels("control-pod"))
    assert not control[0]["metadata"].get("deletionTimestamp")
    assert not team.pods("other") and team.kueue.used() == 5
    team.end_pods("gpt")
    team.look()
    team.end_pods("gpt")
    team.look()
    assert not team.pods("gpt") and len(team.pods("other")) == 1
    told = team.kueue.conditions("gpt")
    assert told["Requeued"] == (True, "Preempted") and told["PodsReady"][0] is False
    assert (told["Admitted"], told["QuotaReserved"][0]) == ((False, "NoReservation"), False)
    assert "admission" not in team.kueue.workload("gpt")["status"]
    team.kueue.room = 10
    team.look()
    assert len(team.pods("gpt")) == 1
    target = KubeTarget(KubePlace(), team.api)
    assert target.known("gpt") is not None


def test_its_end_is_told_and_a_restart_queues_anew(team: Team) -> None:
    team.apply("gpt")
    team.look()
    team.publish("gpt", "succeeded")
    team.look()
    assert team.kueue.conditions("gpt")["Finished"] == (True, "Succeeded")
    assert team.kueue.used() == 0 and team.state("gpt")[0] == "succeeded"
    first = team.kueue.workload("gpt")["metadata"]["uid"]
    team.publish("gpt", "running")
    team.look(12)
    assert team.kueue.workload("gpt")["metadata"]["uid"] != first
    assert team.kueue.used() == 5 and len(team.pods("gpt")) == 1
    team.api.delete(KIND, "gpt")
    team.look(12)
    assert team.api.get(KIND, "gpt") is None and not team.api.found("Workload", {})


def test_what_kueue_counts_is_asked_for_anew_and_nothing_else(team: Team) -> None:
    team.apply("gpt")
    team.look()
    team.grow("gpt", 1)
    first = team.kueue.workload("gpt")["metadata"]["uid"]
    team.api.patch(KIND, "gpt", {"spec": {"image": "i:2", "args": ["1"]}})
    team.look()
    assert team.kueue.workload("gpt")["metadata"]["uid"] == first and len(team.pods("gpt")) == 2
    team.api.patch(KIND, "gpt", {"spec": {"cpu": "8"}})
    team.look()
    told = "it asks for other pods than it was admitted with"
    assert team.state("gpt") == ("suspended", told)
    for _ in range(2):
        team.end_pods("gpt")
        team.look()
    made = team.kueue.workload("gpt")
    assert made["metadata"]["uid"] != first and len(team.pods("gpt")) == 1
    (container,) = made["spec"]["podSets"][1]["template"]["spec"]["containers"]
    assert container["resources"] == {"requests": {"cpu": "8"}}


def test_a_job_that_waits_is_changed_in_its_place(team: Team) -> None:
    team.kueue.room = 0
    team.apply("gpt")
    team.look()
    first = team.kueue.workload("gpt")
    team.api.patch(KIND, "gpt", {"spec": {"max": 8}})
    team.look()
    made = team.kueue.workload("gpt")
    assert made["metadata"]["uid"] == first["metadata"]["uid"]
    assert made["spec"]["podSets"][1]["count"] == 8
    target = KubeTarget(KubePlace(), team.api)
    with pytest.raises(UsageError, match=r"gpt is queued and has no pods .*more needed"):
        target.cluster("gpt")


def test_pods_are_where_the_checks_of_the_queue_place_them(team: Team) -> None:
    team.kueue.room = 0
    team.apply("gpt", toleration=["spot"])
    team.look()
    name = team.kueue.workload("gpt")["metadata"]["name"]
    update: dict[str, Any] = {
        "name": "workers",
        "nodeSelector": {"pool": "a"},
        "annotations": {"a/b": "c"},
    }
    update |= {"tolerations": [{"key": "pool", "operator": "Exists"}]}
    check = {"name": "c", "state": "Ready", "message": "", "podSetUpdates": [update]}
    team.api.patch("Workload", name, {"status": {"admissionChecks": [check]}}, "Status")
    team.kueue.room = 5
    team.look()
    group = team.api.get("ReplicaSet", KubeNames("gpt").spot)
    assert group is not None
    template = group["spec"]["template"]
    assert template["metadata"]["annotations"] == {"a/b": "c"}
    assert template["spec"]["nodeSelector"] == {"pool": "a"}
    assert {"spot", "pool", "nvidia.com/gpu"} <= {
        each["key"] for each in template["spec"]["tolerations"]
    }


def test_a_job_without_a_queue_asks_nothing_of_kueue_and_one_with_it_is_told(
    folder: Path,
) -> None:
    team = Team(namespace(), has_kueue=False)
    team.apply("plain", labels={QUEUE: ""})
    team.look()
    assert len(team.pods("plain")) == 1
    assert not [each for each in team.own.used if each.group == "kueue.x-k8s.io"]
    team.apply("gpt")
    team.look()
    assert not team.pods("gpt") and team.state("gpt")[0] == "queued"
    assert any("the resource Workload is not defined in this cluster" in it for it in team.said)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("print(1)")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_up_waits_for_the_queue_and_takes_what_it_admits(team: Team, folder: Path) -> None:
    config = PodConfig(
        "train.py", kube=True, image="i", storage="s3://b/r", min=2, max=8, queue="team"
    )
    job, said, over = kube_job(config, folder), list[str](), threading.Event()
    team.kueue.room = 2

    def operate() -> None:
        while not over.wait(0.02):
            team.look(1)
            if any("more needed" in line for line in said):
                team.kueue.room = 5

    thread = threading.Thread(target=operate)
    thread.start()
    try:
        target = KubeTarget(KubePlace(), team.api)
        cluster = apply.carry_out(target, job, None, said.append)
    finally:
        over.set()
        thread.join()
    assert cluster.spec.settings.max_nodes == 4
    assert sum("train is queued" in line for line in said) <= 2
    found = team.api.get(KIND, "train")
    assert found is not None and found["metadata"]["labels"] == {QUEUE: "team"}
    assert "queue" not in found["spec"]
