"""Takes a cluster on Kubernetes down, in steps that do not wait.

Must never happen: something of the cluster runs, and is not found any more. So what it is found by
goes last. Each step may be interrupted, and repeated at any point.
"""

from collections.abc import Collection, Mapping

from spotelastic.kubernetes.elastic_job import FINALIZER, KIND, MARK
from spotelastic.kubernetes.provider import pod_reading
from spotelastic.kubernetes.provider.api_client import KINDS, KubeApi
from spotelastic.kubernetes.provider.kube_names import KubeNames

RUNNING = ("ReplicaSet", "Deployment", "Job", "Pod")
"""Kinds of objects that run, or keep something running. Pods come last: what has just gone may have
made another one."""


def hold(api: KubeApi, name: str, *, held: bool) -> None:
    """Let a deleted ElasticJob stay until it is let go, or let it go."""
    found = api.get(KIND, name)
    if found is None:
        return
    metadata = found["metadata"]
    others = [each for each in metadata.get("finalizers", ()) if each != FINALIZER]
    # With the version: others may add or remove theirs at the same time.
    patch = {
        "resourceVersion": metadata["resourceVersion"],
        "finalizers": [*others, FINALIZER] if held else others,
    }
    api.patch(KIND, name, {"metadata": patch})


def left(api: KubeApi, name: str, kinds: Collection[str] = tuple(KINDS)) -> bool:
    """Whether anything of the cluster is there."""
    labels = KubeNames(name).labels()
    return any(api.found(kind, labels) for kind in kinds)


def step(api: KubeApi, name: str, kinds: Collection[str] = tuple(KINDS)) -> list[str]:
    """Do what can be done now. Returns the names of what still ends; none: all is gone.

    `kinds` are those that the cluster may have objects of.
    """
    its = KubeNames(name)
    api.delete("ConfigMap", its.root)
    ending = _end(api, RUNNING, its.labels())
    if ending:
        return ending
    others = [kind for kind in kinds if kind not in (*RUNNING, "ConfigMap")]
    mark = its.object(MARK)
    for kind in (*others, "ConfigMap"):
        names = [str(each["metadata"]["name"]) for each in api.found(kind, its.labels())]
        for found in sorted(names, key=lambda name: name == mark):
            api.delete(kind, found)
    return []


def suspend(api: KubeApi, name: str) -> None:
    """Do what can be done now to end the pods alone: all that is stored stays.

    The control pod ends last: the workers agree on their last step with it.
    """
    its = KubeNames(name)
    groups = _end(api, ("ReplicaSet",), its.labels("group"))
    if not groups + _end(api, ("Pod",), its.labels("worker")):
        api.delete("ConfigMap", its.root)
        _end(api, RUNNING, its.labels())


def _end(api: KubeApi, kinds: Collection[str], labels: Mapping[str, str]) -> list[str]:
    """Delete the objects that run. Returns the names of those that were still there."""
    ending = []
    for kind in kinds:
        for each in api.found(kind, labels):
            ending.append(str(each["metadata"]["name"]))
            # A pod that was told to end has its grace.
            if kind != "Pod" or not pod_reading.is_ending(each):
                api.delete(kind, each["metadata"]["name"])
    return ending
