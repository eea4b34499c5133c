"""An emulated Kubernetes cluster for tests, seen through a client that knows nothing of it."""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml
from lightkube import Client, KubeConfig
from lightkube.codecs import from_dict
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Event, Node, Pod
from support.emulated_kubernetes import cluster
from support.emulated_kubernetes.cluster import RunningCluster
from support.processes.patience import eventually

from spotelastic.errors import EnvironmentFailure

PLACE = "default"
JOB_NAME = "batch.kubernetes.io/job-name"
INDEX = "batch.kubernetes.io/job-completion-index"
IMAGE = "example.com/train:1"
OPERATOR_IMAGE = "example.com/spotelastic:1"


@dataclass
class Kube:
    """A cluster, and what a test asks of it."""

    cluster: RunningCluster
    client: Any = field(init=False)
    """A `Client`, whose types say of every field of an object that it may be missing."""

    def __post_init__(self) -> None:
        config = KubeConfig.from_file(str(self.cluster.kubeconfig))
        self.client = Client(config=config, namespace=PLACE)

    def create(self, *manifests: Mapping[str, Any]) -> None:
        for each in manifests:
            is_global = each["kind"].startswith("Cluster")
            metadata = each["metadata"] if is_global else {"namespace": PLACE, **each["metadata"]}
            self.client.create(from_dict({**each, "metadata": metadata}))

    def install_operator(self, **variables: str) -> None:
        """Apply what `kube operator --render` prints, with variables of its container."""
        command = [sys.executable, "-m", "spotelastic", "kube", "operator", "--render"]
        told = subprocess.run(
            [*command, "--image", OPERATOR_IMAGE], capture_output=True, text=True, check=True
        ).stdout
        made = list(yaml.safe_load_all(told))
        (deployment,) = (each for each in made if each["kind"] == "Deployment")
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        container["env"] += [{"name": name, "value": value} for name, value in variables.items()]
        self.create(*made)

    def pods(self, job: str) -> dict[int, Any]:
        """The pods of a job that neither end nor have ended, by their index."""
        found = self.client.list(Pod, labels={JOB_NAME: job})
        return {
            int(pod.metadata.annotations[INDEX]): pod
            for pod in found
            if pod.metadata.deletionTimestamp is None
            and pod.status.phase not in ("Succeeded", "Failed")
        }

    def running(self, job: str, count: int) -> dict[int, Any]:
        """The pods of a job, once so many run."""
        found: dict[int, Any] = {}

        def look() -> bool:
            found.clear()
            found.update(self.pods(job))
            return [pod.status.phase for pod in found.values()] == ["Running"] * count

        eventually(look, f"{count} running pods of {job}")
        return found

    def log(self, pod: Any) -> str:
        """What a pod has written, also when it is gone."""
        file = self.cluster.log(pod.metadata.uid)
        return file.read_text(errors="replace") if file.exists() else ""

    def evict(self, pod: Any) -> None:
        eviction = Pod.Eviction(metadata=ObjectMeta(name=pod.metadata.name, namespace=PLACE))
        self.client.create(eviction, pod.metadata.name)

    def is_gone(self, pod: Any) -> bool:
        return all(each.metadata.uid != pod.metadata.uid for each in self.client.list(Pod))

    def conditions(self, job: str) -> dict[str, str]:
        """The reasons of a job's conditions that hold, by their types."""
        status = self.client.get(Job, job).status
        return {each.type: each.reason for each in status.conditions or () if each.status == "True"}

    def events(self, about: str) -> list[tuple[str, str]]:
        """Reasons and messages of the events about an object."""
        found = self.client.list(Event, fields={"involvedObject.name": about})
        return [(each.reason, each.message) for each in found]

    def nodes(self) -> set[str]:
        return {each.metadata.name for each in self.client.list(Node)}


@contextmanager
def emulated() -> Iterator[Kube]:
    """A cluster of its own. Skips where this machine cannot run one."""
    try:
        running = cluster.running()
        found = running.__enter__()
    except EnvironmentFailure as error:
        pytest.skip(str(error))
    try:
        yield Kube(found)
    finally:
        running.__exit__(None, None, None)


@pytest.fixture(scope="module")
def kube() -> Iterator[Kube]:
    with emulated() as found:
        yield found


def indexed_job(name: str, command: Sequence[str], size: int = 1, **spec: Any) -> dict[str, Any]:
    """A Job whose pods run a command; `pod` is more of their specification."""
    pod = spec.pop("pod", {})
    container = {"name": "node", "image": IMAGE, "command": list(command)}
    container |= spec.pop("container", {})
    template = {"spec": {"restartPolicy": "Never", "containers": [container], **pod}}
    sizes = {"completionMode": "Indexed", "completions": size, "parallelism": size}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {**sizes, "template": template, **spec},
    }


def python(program: str) -> tuple[str, ...]:
    """A command that runs a program of Python's."""
    return sys.executable, "-c", program


def shell(*lines: str) -> tuple[str, ...]:
    """A command that runs lines of a shell."""
    return "/bin/sh", "-c", "\n".join(lines)
