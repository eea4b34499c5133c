"""ElasticJobs on an emulated cluster, as somebody with kubectl makes and sees them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.kubernetes.kube_client import IMAGE, PLACE, Kube
from support.kubernetes.operator_parts import LABELS
from support.places import SCRIPTS
from support.processes.patience import eventually

from spotelastic.kubernetes.elastic_job import API_VERSION, KIND
from spotelastic.kubernetes.provider.api_client import KINDS, KubeApi
from spotelastic.kubernetes.provider.kube_names import KubeNames

SCRIPT = SCRIPTS / "train_small.py"
CODE = "code"
"""The ConfigMap that has the script."""


@dataclass(frozen=True)
class Applied:
    """A cluster on which the operator runs, as its manifests say."""

    kube: Kube
    api: KubeApi
    storage: str

    @classmethod
    def on(cls, kube: Kube, folder: Path, **variables: str) -> "Applied":
        """Apply the operator's manifests, with variables of its own, and the code of jobs."""
        kube.install_operator(**variables)
        data = {"train.py": SCRIPT.read_text()}
        kube.create(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CODE}, "data": data}
        )
        return cls(kube, KubeApi(kube.client, PLACE), str(folder / "run"))

    def apply(self, name: str, steps: int, *, queue: str = "", **spec: Any) -> None:
        """Create an ElasticJob that trains so many steps; `queue` is that of Kueue."""
        labels = {"kueue.x-k8s.io/queue-name": queue} if queue else {}
        given = {
            "image": IMAGE,
            "storage": self.storage,
            "args": [steps],
            "codeFrom": {"configMap": CODE},
            "gracePeriod": 20,
            "lease": 3,
            "snapshotEvery": 20,
        }
        self.api.create(
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "metadata": {"name": name, "labels": labels},
                "spec": {**given, **spec},
            }
        )

    def edit(self, name: str, **spec: Any) -> None:
        self.api.patch(KIND, name, {"spec": spec})

    def delete(self, name: str) -> None:
        self.api.delete(KIND, name)

    def status(self, name: str) -> dict[str, Any]:
        found = self.api.get(KIND, name)
        return {} if found is None else found.get("status") or {}

    def until(self, name: str, holds: Callable[[dict[str, Any]], bool], what: str) -> Any:
        """The status, once that holds."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            found.append(self.status(name))
            return bool(found[-1]) and holds(found[-1])

        try:
            eventually(look, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{found[-1]}\n{self.log()}") from error
        return found[-1]

    def training(self, name: str, nodes: int, beyond: int = 0) -> dict[str, Any]:
        """The status, once so many nodes train, and have gone beyond a step."""
        return self.until(
            name,
            lambda it: it["nodes"] == nodes and it["step"] > beyond,
            f"{nodes} nodes that train beyond step {beyond}",
        )

    def gone(self, name: str) -> None:
        """Wait until the resource is gone, and see that nothing of its cluster is left."""
        eventually(lambda: self.api.get(KIND, name) is None, f"the end of {name}\n{self.log()}")
        left = [each for kind in KINDS for each in self.left(name, kind)]
        assert not left

    def left(self, name: str, kind: str) -> list[str]:
        """The names of what is there of a cluster."""
        found = self.api.found(kind, KubeNames(name).labels())
        return [each["metadata"]["name"] for each in found]

    def logs(self, name: str) -> dict[str, Path]:
        """The files with what the job's workers of now write, which outlive them."""
        found = self.api.found("Pod", KubeNames(name).labels("worker"))
        return {
            each["metadata"]["name"]: self.kube.cluster.log(each["metadata"]["uid"])
            for each in found
        }

    def operators(self) -> list[dict[str, Any]]:
        return self.api.found("Pod", LABELS)

    def kill_operator(self) -> None:
        (pod,) = self.operators()
        self.kube.cluster.cause("kill-pod", namespace=PLACE, pod=pod["metadata"]["name"])

    def log(self) -> str:
        """What the operators have written."""
        logs = [
            self.kube.cluster.log(each["metadata"]["uid"]).read_text(errors="replace")
            for each in self.operators()
        ]
        return "\n".join(logs)

    def events(self, name: str) -> list[str]:
        """Reasons of the Events about a job."""
        return [reason for reason, _ in self.kube.events(name)]

    def report(self, name: str) -> Any:
        """What `report --json` says of a job."""
        command = [sys.executable, "-m", "spotelastic", "report", name, "--kube", "--json"]
        environ = {**os.environ, "KUBECONFIG": str(self.kube.cluster.kubeconfig)}
        told = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        return json.loads(told.stdout)

    def used(self, account: str) -> set[tuple[str, str, str]]:
        """What a service account has done: verb, group and resource."""
        return self.kube.cluster.used().get(f"{PLACE}:{account}", set())


def conditions(status: dict[str, Any]) -> dict[str, str]:
    """The conditions that hold, with their reasons."""
    return {
        each["type"]: each["reason"] for each in status["conditions"] if each["status"] == "True"
    }
