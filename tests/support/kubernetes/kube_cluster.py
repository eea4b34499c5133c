"""A cluster that `up --kube` makes, told of and changed by the commands that users type."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.kubernetes.kube_client import IMAGE, Kube
from support.places import SCRIPTS
from support.processes.patience import eventually

from spotelastic.kubernetes.provider.api_client import KINDS, KubeApi
from spotelastic.kubernetes.provider.kube_names import KubeNames

NAME = "train"
SCRIPT = SCRIPTS / "train_small.py"
GRACE, LEASE = 20, 3


@dataclass(frozen=True)
class KubeStory:
    """A user's folder, and the namespace in which the cluster is."""

    folder: Path
    environ: dict[str, str]
    api: KubeApi
    image: str
    storage: str

    @classmethod
    def emulated(cls, kube: Kube, folder: Path) -> "KubeStory":
        """A folder with a script, for an emulated cluster whose namespace has the operator."""
        kube.install_operator()
        environ = {**os.environ, "KUBECONFIG": str(kube.cluster.kubeconfig)}
        api = KubeApi(kube.client, "default")
        return cls.of(api, folder, environ, IMAGE, str(folder / "run"))

    @classmethod
    def of(
        cls, api: KubeApi, folder: Path, environ: dict[str, str], image: str, storage: str
    ) -> "KubeStory":
        """A folder with a script, whose commands look in the namespace of the API."""
        (folder / "work").mkdir()
        (folder / "work" / "train.py").write_bytes(SCRIPT.read_bytes())
        told = {"SPOTELASTIC_KUBE": "1", "SPOTELASTIC_NAMESPACE": api.namespace}
        return cls(folder, {**environ, **told}, api, image, storage)

    def run(self, *args: str, code: int = 0, **variables: str) -> str:
        """The output of a command, which ends with that code."""
        done = subprocess.run(
            [sys.executable, "-m", "spotelastic", *args],
            cwd=self.folder / "work", env={**self.environ, **variables},
            capture_output=True, text=True, check=False, timeout=400,
        )  # fmt: skip
        assert done.returncode == code, f"{args}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def up(self, low: int, high: int, steps: int, *more: str) -> str:
        """Brings the cluster up, until it trains."""
        return self.run(
            *("up", "--kube", "--image", self.image, "--storage", self.storage),
            *("--min", str(low), "--max", str(high), "--grace-period", str(GRACE)),
            *("--lease", str(LEASE), "--snapshot-every", "20", "--detach", *more),
            *("train.py", str(steps)),
        )  # fmt: skip

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("status", NAME, "--kube", "--json"))
        return found

    def until(self, holds: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """The status, once that holds."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            found.append(self.status())
            return holds(found[-1])

        eventually(look, what)
        return found[-1]

    def training(self, nodes: int, beyond: int = 0) -> dict[str, Any]:
        """The status, once so many nodes train, and have gone beyond a step."""
        return self.until(
            lambda it: len(trains(it)) == nodes and it["step"] > beyond,
            f"{nodes} nodes that train beyond step {beyond}",
        )

    def pods(self, part: str) -> list[dict[str, Any]]:
        return self.api.found("Pod", KubeNames(NAME).labels(part))

    def left(self) -> dict[str, list[str]]:
        """All that is in the namespace of the cluster."""
        labels = KubeNames(NAME).labels()
        found = {
            kind: [each["metadata"]["name"] for each in self.api.found(kind, labels)]
            for kind in KINDS
        }
        return {kind: names for kind, names in found.items() if names}


def trains(status: dict[str, Any]) -> list[str]:
    return [node["id"] for node in status["nodes"] if node["state"] == "training"]


def sums(log: str) -> set[str]:
    """The final parameters that workers have written."""
    return set(re.findall(r"sum (\S+)", log))
