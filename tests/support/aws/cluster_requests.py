"""Makes a small cluster specification, as `up` would, for tests that need a cluster."""

from dataclasses import fields, replace
from typing import Any

from support.aws.account import NETWORK

from spotelastic.aws.planning.plan import ClusterSpec
from spotelastic.model.job import JobSpec, Settings


def job(name: str, nodes: int = 1, **changes: Any) -> JobSpec:
    """A job as a user wants it, for one to `nodes` nodes without a GPU."""
    given: dict[str, Any] = {
        "run": "",
        "script": "train.py",
        "args": (),
        "code": "c0de",
        "settings": Settings(1, nodes, workers=1),
        "storage": "",
        "etcd": (),
        "instance_types": ("c5.large",),
    }
    return JobSpec(cluster=name, **(given | changes))


def request(name: str, nodes: int = 1, **changes: Any) -> ClusterSpec:
    """The cluster of such a job. `changes` are of the cluster, or of its job."""
    return changed(ClusterSpec(job(name, nodes), b"an archive", network=NETWORK), **changes)


def changed(wanted: ClusterSpec, **changes: Any) -> ClusterSpec:
    """The same with other fields, of the cluster or of its job."""
    own = {field.name for field in fields(ClusterSpec)}
    if "name" in changes:
        changes["cluster"] = changes.pop("name")
    of_job = {name: value for name, value in changes.items() if name not in own}
    of_cluster = {name: value for name, value in changes.items() if name in own}
    return replace(wanted, job=replace(wanted.job, **of_job), **of_cluster)
