"""Decides on which node a pod runs (pure): the emptiest of those that it may run on."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

Object = dict[str, Any]

ZONE = "topology.kubernetes.io/zone"


def place(pod: Object, nodes: Sequence[Object], pods: Sequence[Object]) -> tuple[str, str]:
    """Return the node for a pod, and "", or "" and why there is none.

    Node selectors, required node affinity, taints and the number of pods of a node count; requests
    of cores and memory do not, because all nodes share this machine's. Topology spread is done
    where it can be: a zone with fewer pods of the same Job or Deployment comes first.
    """
    placed = Counter(each["spec"].get("nodeName") for each in pods if not _has_ended(each))
    fit = [node for node in nodes if _fits(pod, node)]
    free = [
        node for node in fit if placed[_name(node)] < int(node["status"]["allocatable"]["pods"])
    ]
    if not free:
        full = len(fit)
        told = f"0/{len(nodes)} nodes are available: {full} Too many pods"
        if unfit := len(nodes) - full:
            told += f", {unfit} node(s) didn't match the pod's node affinity, selector or taints"
        return "", told + "."
    zones = Counter(
        _zone(node)
        for each in pods
        for node in nodes
        if not _has_ended(each)
        and _is_sibling(pod, each)
        and each["spec"].get("nodeName") == _name(node)
    )
    chosen = min(free, key=lambda node: (zones[_zone(node)], placed[_name(node)], _name(node)))
    return _name(chosen), ""


def _fits(pod: Object, node: Object) -> bool:
    spec, labels = pod["spec"], node["metadata"].get("labels", {})
    taints = node.get("spec", {}).get("taints", ())
    return (
        (spec.get("nodeSelector") or {}).items() <= labels.items()
        and _affine(spec, labels)
        and not node.get("spec", {}).get("unschedulable")
        and all(_tolerates(spec, taint) for taint in taints)
    )


def _affine(spec: Object, labels: Mapping[str, str]) -> bool:
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = required.get("nodeSelectorTerms")
    return terms is None or any(
        all(_meets(asked, labels) for asked in term.get("matchExpressions", ())) for term in terms
    )


def _meets(asked: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(asked["key"]), asked.get("values", ())
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }.get(asked["operator"], False)


def _tolerates(spec: Object, taint: Mapping[str, Any]) -> bool:
    if taint["effect"] == "PreferNoSchedule":
        return True
    return any(
        each.get("key") in (None, "", taint["key"])
        and each.get("effect") in (None, "", taint["effect"])
        and (each.get("operator") == "Exists" or each.get("value", "") == taint.get("value", ""))
        for each in spec.get("tolerations") or ()
    )


def _is_sibling(pod: Object, other: Object) -> bool:
    owners, theirs = (each["metadata"].get("ownerReferences") for each in (pod, other))
    return bool(owners) and owners == theirs


def _has_ended(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def _name(node: Object) -> str:
    return str(node["metadata"]["name"])


def _zone(node: Object) -> str:
    return str(node["metadata"].get("labels", {}).get(ZONE, ""))
