"""What a pod of the emulated cluster is given: names, variables, files, and a node."""

import base64
from typing import Any

import pytest
from support.emulated_kubernetes.api.kinds import CONFIG_MAPS, SECRETS, ObjectKind
from support.emulated_kubernetes.control.scheduling import place
from support.emulated_kubernetes.nodes.pod_names import hosts_file
from support.emulated_kubernetes.nodes.pod_settings import MissingReference, files_of, settings


def pod(name: str = "p", address: str = "", **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "labels": {"app": "a", "zone": "x"}}
    status = {"phase": "Running", "podIP": address} if address else {}
    return {"metadata": metadata, "spec": spec, "status": status}


def service(**spec: Any) -> dict[str, Any]:
    metadata = {"name": "s", "namespace": "default"}
    return {"metadata": metadata, "spec": {"selector": {"app": "a"}, **spec}}


def find(kind: ObjectKind, name: str) -> dict[str, Any] | None:
    known = {
        (SECRETS, "hidden"): {"data": {"key": base64.b64encode(b"value").decode()}},
        (CONFIG_MAPS, "plain"): {"data": {"size": "8"}, "binaryData": {"b": "AAE="}},
    }
    return known.get((kind, name))


# -- names ----------------------------------------------------------------------------------------


def test_a_pod_with_a_subdomain_has_a_name_in_its_service() -> None:
    pods = [pod("p", "127.0.1.1", hostname="p-0", subdomain="s"), pod("q", "127.0.1.2")]
    text = hosts_file(pods[1], "q", [service(publishNotReadyAddresses=True)], pods)
    assert "127.0.1.2 q\n" in text
    names = {line.split()[0]: line.split()[1:] for line in text.splitlines() if " p-0." in line}
    assert names == {
        "127.0.1.1": ["p-0.s.default.svc.cluster.local", "p-0.s.default.svc", "p-0.s.default",
                      "p-0.s"]
    }  # fmt: skip
    assert " q.s" not in text, "it names no subdomain"


def test_names_of_pods_that_are_not_ready_are_hidden_unless_the_service_says_otherwise() -> None:
    pods = [pod("p", "127.0.1.1", hostname="p-0", subdomain="s")]
    assert "p-0.s" not in hosts_file(pods[0], "p-0", [service()], pods)
    pods[0]["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    assert "p-0.s" in hosts_file(pods[0], "p-0", [service()], pods)


# -- variables and files --------------------------------------------------------------------------


def test_variables_come_from_the_pod_secrets_and_maps_and_refer_to_each_other() -> None:
    env = [
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "ZONE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['zone']"}}},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "hidden", "key": "key"}}},
        {"name": "URL", "value": "http://$(IP):$(PORT)/$$(IP)"},
        {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}},
    ]
    container = {
        "command": ["run", "--at=$(URL)"], "args": ["$$HOME"], "env": env,
        "envFrom": [{"prefix": "P_", "configMapRef": {"name": "plain"}}],
        "resources": {"limits": {"memory": "2Gi"}},
    }  # fmt: skip
    its = settings(container, pod(address="127.0.1.1"), {"PORT": "80"}, _text_only)
    assert its.argv == ("run", "--at=http://127.0.1.1:80/$(IP)", "$HOME")
    told = {name: its.env[name] for name in ("ZONE", "KEY", "P_size", "MEMORY")}
    assert told == {"ZONE": "x", "KEY": "value", "P_size": "8", "MEMORY": str(2 * 2**30)}


def _text_only(kind: ObjectKind, name: str) -> dict[str, Any] | None:
    found = find(kind, name)
    return found and {key: value for key, value in found.items() if key != "binaryData"}


def test_what_is_missing_keeps_a_container_from_starting_unless_it_is_optional() -> None:
    asked = {"name": "none", "key": "k"}
    missing = {"env": [{"name": "X", "valueFrom": {"secretKeyRef": asked}}]}
    with pytest.raises(MissingReference, match='secret "none" not found'):
        settings(missing, pod(), {}, find)
    optional = {"env": [{"name": "X", "valueFrom": {"secretKeyRef": asked | {"optional": True}}}]}
    assert "X" not in settings(optional, pod(), {}, find).env


def test_volumes_of_files() -> None:
    assert files_of({"configMap": {"name": "plain"}}, pod(), find) == {
        "size": b"8", "b": b"\x00\x01",
    }  # fmt: skip
    items = [{"key": "key", "path": "tls/key.pem"}]
    chosen = {"secret": {"secretName": "hidden", "items": items}}
    assert files_of(chosen, pod(), find) == {"tls/key.pem": b"value"}
    both = {"projected": {"sources": [{"configMap": {"name": "plain"}}, chosen]}}
    assert set(files_of(both, pod(), find) or ()) == {"size", "b", "tls/key.pem"}
    assert files_of({"emptyDir": {}}, pod(), find) is None


# -- scheduling -----------------------------------------------------------------------------------


def node(name: str, zone: str, room: int = 2, **spec: Any) -> dict[str, Any]:
    labels = {"topology.kubernetes.io/zone": zone, "kind": "spot"}
    status = {"allocatable": {"pods": str(room)}}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": status}


def test_pods_of_one_owner_are_spread_over_zones_and_nodes() -> None:
    nodes = [node(f"{zone}{number}", zone) for zone in "ab" for number in (1, 2)]
    owned, pods = {"ownerReferences": [{"uid": "j"}]}, list[dict[str, Any]]()
    for number in range(4):
        new = pod(f"p{number}")
        new["metadata"] |= owned
        new["spec"]["nodeName"] = place(new, nodes, pods)[0]
        pods.append(new)
    assert [each["spec"]["nodeName"] for each in pods] == ["a1", "b1", "a2", "b2"]


def test_a_pod_goes_where_it_may() -> None:
    taint = {"key": "gone", "effect": "NoSchedule"}
    nodes = [node("n1", "a", taints=[taint]), node("n2", "a", unschedulable=True), node("n3", "b")]
    assert place(pod(), nodes, ())[0] == "n3"
    assert place(pod(tolerations=[{"operator": "Exists"}]), nodes, ())[0] == "n1"
    asked = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["c"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [asked]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    found, why = place(pod(affinity=affinity), nodes, ())
    assert found == "" and why.startswith("0/3 nodes are available")
    full = [pod(f"q{number}", nodeName="n3") for number in range(2)]
    assert place(pod(), nodes, full)[0] == ""
