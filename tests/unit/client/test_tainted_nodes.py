"""Taints of nodes that are about to go, as notices for the workers' pods on them."""

from typing import Any, cast

import pytest
from support.emulated_kubernetes.api.kinds import NODES, PODS
from support.kubernetes.operator_parts import node_rights, operator_rules
from support.kubernetes.stored_api import PLACE, StoredApi, namespace

from spotelastic.client.operator import tainted_nodes
from spotelastic.client.operator.tainted_nodes import TAINTS, TaintedNodes, going, leaving
from spotelastic.kubernetes.provider.api_client import KubeApi
from spotelastic.kubernetes.provider.kube_names import PART


def node(name: str, *taints: str) -> dict[str, Any]:
    spec = {"taints": [{"key": each, "effect": "NoSchedule"} for each in taints]} if taints else {}
    return {"metadata": {"name": name}, "spec": spec}


def pod(name: str, node: str | None, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **metadata}, "spec": {"nodeName": node} if node else {}}


def test_a_node_is_about_to_go_by_its_taint_alone() -> None:
    cordoned = node("cordoned", "node.kubernetes.io/unschedulable")
    spot = node("spot", "kubernetes.azure.com/scalesetpriority", "nvidia.com/gpu")
    leave = [node(f"n{at}", "nvidia.com/gpu", taint) for at, taint in enumerate(sorted(TAINTS))]
    assert going([node("plain"), cordoned, spot, *leave]) == {
        f"n{at}": taint for at, taint in enumerate(sorted(TAINTS))
    }


def test_pods_leave_a_node_that_goes_unless_they_are_leaving_already() -> None:
    pods = [
        pod("stays", "other"),
        pod("goes", "n"),
        pod("pending", None),
        pod("ending", "n", deletionTimestamp="2026-11-30T00:00:00Z"),
    ]
    assert leaving(pods, {"n": "taint"}) == {"goes": "taint"}


def test_no_pod_is_deleted_but_workers_and_a_right_that_lacks_is_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, said = namespace(), list[str]()
    store.create(NODES, "", node("n", "ToBeDeletedByClusterAutoscaler"))
    for name, labels in (("w", {PART: "worker"}), ("c", {PART: "control-pod"}), ("other", {})):
        made = pod(name, "n", labels=labels, namespace=PLACE)
        store.create(PODS, PLACE, {**made, "status": {"phase": "Running"}})
    (role, _), now = node_rights(PLACE), [0.0]
    monkeypatch.setattr(tainted_nodes, "steady", lambda: now[0])
    own = operator_rules()
    lacks = TaintedNodes(cast(KubeApi, StoredApi(store, own)), said.append)
    for now[0] in (10.0, 20.0, 30.0):
        lacks.look()
    assert len(said) == 1 and "resource='nodes'" in said[0]
    assert len(store.items(PODS)) == 3
    may = StoredApi(store, [*own, *role["rules"]])
    sees = TaintedNodes(cast(KubeApi, may), said.append)
    for now[0] in (40.0, 50.0):
        sees.look()
    left = [each for each in store.items(PODS) if "deletionTimestamp" not in each["metadata"]]
    assert {each["metadata"]["name"] for each in left} == {"c", "other"}
    assert len(said) == 2 and said[1].startswith("w: its node is about to go")
