"""The emulated cluster as any client of Kubernetes sees it, with processes as its pods."""

import json
import ssl
import urllib.request
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lightkube import ApiError
from lightkube.models.coordination_v1 import LeaseSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.batch_v1 import Job
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import ConfigMap, Namespace, Pod
from support.kubernetes.kube_client import IMAGE, JOB_NAME, PLACE, Kube, indexed_job, kube, shell
from support.processes.patience import eventually

from spotelastic.errors import UsageError
from spotelastic.local.base.processes import marked

pytestmark = pytest.mark.soak  # only tests of `make soak` use it

__all__ = ["kube"]

IDLE = shell("trap 'exit 143' TERM", "sleep 1000 & wait")
STUBBORN = shell("trap '' TERM", "echo deaf", "while true; do sleep 1000; done")


def processes(kube: Kube, pod: Any) -> list[int]:
    """The processes of a pod, by their mark."""
    cloud = kube.cluster.folder.name.removeprefix("spotelastic-")
    return [each.pid for each in marked(cloud, pod.metadata.uid)]


@pytest.fixture(autouse=True)
def nothing_runs_afterwards(kube: Kube) -> Any:
    yield
    for kind in (Job, Deployment):
        for each in kube.client.list(kind):
            kube.client.delete(kind, each.metadata.name)
    for pod in kube.client.list(Pod):
        with suppress(ApiError):  # it may have gone meanwhile
            kube.client.delete(Pod, pod.metadata.name, grace_period=0)
    eventually(lambda: not list(kube.client.list(Pod)), "the end of all pods")


def test_pods_of_a_job_know_each_other_by_name_and_have_files_of_their_own(
    kube: Kube, tmp_path: Path
) -> None:
    found = tmp_path / "found"  # a pod that has ended has no name any more
    program = shell(
        'echo "$JOB_COMPLETION_INDEX $(hostname) $ADDRESS $SECRET $(cat /etc/team/size)"',
        "until getent hosts named-1.named; do sleep 0.1; done",
        f'test "$JOB_COMPLETION_INDEX" != 0 || touch {found}',
        f"until test -e {found}; do sleep 0.1; done",
        "cat /new/folder/key && touch /dev/shm/here && ls /dev/shm",
    )
    kube.create(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"},
         "type": "Opaque", "stringData": {"key": "hidden"}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"size": "8"}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "named"},
         "spec": {"clusterIP": "None", "publishNotReadyAddresses": True,
                  "selector": {JOB_NAME: "named"}, "ports": [{"port": 1}]}},
        indexed_job(
            "named", program, 2,
            pod={
                "subdomain": "named",
                "volumes": [
                    {"name": "size", "configMap": {"name": "m"}},
                    {"name": "key", "secret": {"secretName": "s"}},
                    {"name": "shm", "emptyDir": {"medium": "Memory"}},
                ],
            },
            container={
                "env": [
                    {"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                    {"name": "SECRET",
                     "valueFrom": {"secretKeyRef": {"name": "s", "key": "key"}}},
                ],
                "volumeMounts": [
                    {"name": "size", "mountPath": "/etc/team"},
                    {"name": "key", "mountPath": "/new/folder"},
                    {"name": "shm", "mountPath": "/dev/shm"},
                ],
            },
        ),
    )  # fmt: skip
    eventually(lambda: "Complete" in kube.conditions("named"), "the end of the job")
    pods = list(kube.client.list(Pod, labels={JOB_NAME: "named"}))
    first, second = sorted(pods, key=lambda pod: pod.spec.hostname)
    told = kube.log(first)
    assert told.startswith(f"0 named-0 {first.status.podIP} hidden 8\n")
    assert f"{second.status.podIP}" in told.splitlines()[1], "the other pod's address"
    assert told.endswith("hiddenhere\n")
    assert not Path("/new").exists() and not Path("/dev/shm/here").exists()
    assert "".join(kube.client.log(first.metadata.name)) == told


def test_a_deleted_pod_gets_its_grace_and_no_process_outlives_its_object(kube: Kube) -> None:
    kube.create(indexed_job("deaf", STUBBORN, pod={"terminationGracePeriodSeconds": 1}))
    pod = kube.running("deaf", 1)[0]
    eventually(lambda: "deaf" in kube.log(pod), "a process that ignores SIGTERM")
    assert processes(kube, pod)
    kube.client.delete(Pod, pod.metadata.name)
    assert not kube.is_gone(pod), "it has its grace"
    eventually(lambda: kube.is_gone(pod), "its end")
    assert not processes(kube, pod)
    eventually(lambda: kube.client.get(Job, "deaf").status.failed == 1, "its failure")


def test_an_evicted_pod_is_marked_as_disrupted_and_replaced(kube: Kube) -> None:
    rules = [{"action": "Ignore", "onPodConditions": [
        {"type": "DisruptionTarget", "status": "True"}]}]  # fmt: skip
    kube.create(indexed_job("moved", IDLE, 2, podFailurePolicy={"rules": rules}, backoffLimit=0))
    before = kube.running("moved", 2)
    kube.evict(before[0])
    eventually(lambda: kube.is_gone(before[0]), "the evicted pod's end")
    after = kube.running("moved", 2)
    assert after[0].metadata.uid != before[0].metadata.uid
    assert after[0].status.podIP != before[0].status.podIP, "a pod's address is its own"
    assert after[1].metadata.uid == before[1].metadata.uid
    status = kube.client.get(Job, "moved").status
    assert (status.failed, kube.conditions("moved")) == (0, {})


def test_a_budget_forbids_the_eviction_that_it_is_there_for(kube: Kube) -> None:
    selector = {"matchLabels": {JOB_NAME: "kept"}}
    kube.create(
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"},
         "spec": {"minAvailable": 1, "selector": selector}},
        indexed_job("kept", IDLE),
    )  # fmt: skip
    pod = kube.running("kept", 1)[0]
    with pytest.raises(ApiError) as refused:
        kube.evict(pod)
    assert refused.value.status.code == 429
    assert not kube.is_gone(pod)


def test_a_node_that_is_lost_takes_its_pods_along_and_another_one_comes(kube: Kube) -> None:
    kube.create(indexed_job("lost", IDLE, backoffLimit=5))
    pod, nodes = kube.running("lost", 1)[0], kube.nodes()
    kube.cluster.cause("lose-node", node=pod.spec.nodeName)
    eventually(lambda: kube.is_gone(pod), "its pod's end")
    assert not processes(kube, pod)
    assert pod.spec.nodeName not in kube.nodes() and len(kube.nodes()) == len(nodes)
    assert kube.running("lost", 1)[0].spec.nodeName != pod.spec.nodeName
    with pytest.raises(UsageError):
        kube.cluster.cause("lose-node", node=pod.spec.nodeName)


def test_an_image_that_cannot_be_pulled_is_pulled_once_it_can(kube: Kube) -> None:
    kube.cluster.cause("missing-image", image=IMAGE)
    kube.create(indexed_job("pulled", IDLE))

    def reason() -> str:
        for pod in kube.pods("pulled").values():
            for each in pod.status.containerStatuses or ():
                if each.state.waiting:
                    return str(each.state.waiting.reason)
        return ""

    eventually(lambda: reason() == "ImagePullBackOff", "a pull that fails")
    kube.cluster.cause("image-found", image=IMAGE)
    kube.running("pulled", 1)


def test_a_deployment_keeps_its_pods_and_replaces_them_with_its_template(kube: Kube) -> None:
    labels = {"app": "d"}
    container = {"name": "c", "image": IMAGE, "command": list(IDLE)}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    kube.create({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
                 "spec": spec})  # fmt: skip

    def ready() -> Any:
        found = [each for each in kube.client.list(Pod, labels=labels) if each.status.phase]
        good = len(found) == 1 and found[0].status.phase == "Running"
        return found[0] if good and not found[0].metadata.deletionTimestamp else None

    eventually(ready, "its pod")
    first = ready()
    kube.cluster.cause("kill-pod", namespace=PLACE, pod=first.metadata.name)
    eventually(lambda: ready() and ready().status.containerStatuses[0].restartCount, "a restart")
    assert ready().metadata.uid == first.metadata.uid, "the pod stays"
    change = {"spec": {"template": {"metadata": {"annotations": {"x": "y"}}}}}
    kube.client.patch(Deployment, "d", change)
    eventually(lambda: ready() and ready().metadata.uid != first.metadata.uid, "another pod")


def test_only_one_of_two_takes_a_lease(kube: Kube) -> None:
    made = kube.client.create(
        Lease(metadata=ObjectMeta(name="l"), spec=LeaseSpec(holderIdentity="a"))
    )
    made.spec.holderIdentity = "b"
    kube.client.replace(made)
    made.spec.holderIdentity = "c"
    with pytest.raises(ApiError) as refused:
        kube.client.replace(made)
    assert refused.value.status.code == 409
    assert kube.client.get(Lease, "l").spec.holderIdentity == "b"


def test_a_watch_goes_on_where_a_list_ended(kube: Kube) -> None:
    kube.client.create(ConfigMap(metadata=ObjectMeta(name="seen"), data={"n": "0"}))
    found = kube.client.list(ConfigMap)
    assert "seen" in [each.metadata.name for each in found]
    version = found.resourceVersion
    kube.client.patch(ConfigMap, "seen", {"data": {"n": "1"}})
    kube.client.delete(ConfigMap, "seen")
    told = []
    for word, each in kube.client.watch(ConfigMap, resource_version=version):
        told.append((word, each.data["n"]))
        if len(told) == 2:
            break
    assert told == [("MODIFIED", "1"), ("DELETED", "1")]


def test_a_namespace_goes_with_all_that_is_in_it(kube: Kube) -> None:
    kube.client.create(Namespace(metadata=ObjectMeta(name="team")))
    inside = ObjectMeta(name="c", namespace="team")
    kube.client.create(ConfigMap(metadata=inside, data={}))
    kube.client.delete(Namespace, "team")
    names = lambda: [each.metadata.name for each in kube.client.list(Namespace)]  # noqa: E731
    eventually(lambda: "team" not in names(), "the namespace's end")
    with pytest.raises(ApiError):
        kube.client.create(ConfigMap(metadata=inside, data={}))


def test_a_list_is_a_table_for_people_who_ask_for_one(kube: Kube) -> None:
    kube.create(indexed_job("shown", IDLE))
    pod = kube.running("shown", 1)[0]
    its = kube.cluster
    request = urllib.request.Request(
        f"{its.url}/api/v1/namespaces/{PLACE}/pods",
        headers={
            "Authorization": f"Bearer {its.token}",
            "Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
        },
    )
    trust = ssl.create_default_context(cafile=str(its.authority))
    with urllib.request.urlopen(request, context=trust) as response:
        found = json.load(response)
    names = [each["name"] for each in found["columnDefinitions"]]
    (row,) = (each for each in found["rows"] if each["cells"][0] == pod.metadata.name)
    told = dict(zip(names, row["cells"], strict=True))
    assert (told["Ready"], told["Status"], told["IP"]) == ("1/1", "Running", pod.status.podIP)


def test_nobody_gets_in_without_the_token(kube: Kube) -> None:
    other = replace(kube.cluster, token="guessed")
    with pytest.raises(UsageError, match="Unauthorized"):
        other.cause("missing-image", image="x")
