"""Lays out a pod's files on this machine: its volumes, its hosts file, its shared memory."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.emulated_kubernetes.nodes.pod_settings import (
    ContainerSettings,
    Find,
    MissingReference,
    files_of,
)

Object = dict[str, Any]

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where a pod finds the token, the authority and the namespace with which it uses the API."""


@dataclass(frozen=True, slots=True)
class PodFolders:
    """The folders of one pod, and those of claims, which outlive it."""

    own: Path
    memory: Path
    claims: Path

    @property
    def hosts(self) -> Path:
        """The pod's hosts file."""
        return self.own / "hosts"

    def lay_out(self, pod: Object, find: Find, account: Mapping[str, bytes]) -> None:
        """Make the volumes. Raises `MissingReference`."""
        (self.memory / "shm").mkdir(parents=True, exist_ok=True)
        (self.own / "home").mkdir(parents=True, exist_ok=True)
        _write(self.own / "account", account)
        for volume in pod["spec"].get("volumes", ()):
            place = self._place(volume, pod)
            files = files_of(volume, pod, find)
            if files is not None:
                _write(place, files)
            elif not place.exists():
                if "hostPath" in volume:
                    raise MissingReference(f"there is no hostPath {place} on this machine")
                place.mkdir(parents=True)

    def mounts(self, its: ContainerSettings, pod: Object) -> list[dict[str, str]]:
        """Return what is mounted for a container, as `container.py` reads it."""
        volumes = {each["name"]: each for each in pod["spec"].get("volumes", ())}
        found = {
            "/etc/hosts": str(self.hosts),
            "/dev/shm": str(self.memory / "shm"),
        }
        if pod["spec"].get("automountServiceAccountToken", True):
            found[SERVICE_ACCOUNT] = str(self.own / "account")
        for name, within, at in its.mounts:
            if at == "/tmp":
                continue  # this machine's own, in which its programs may be
            found[at] = str(self._place(volumes[name], pod) / within)
        return [{"from": source, "at": at} for at, source in found.items()]

    def remove(self) -> None:
        """Remove all but what the pod has written to its log."""
        for each in (self.own / "volumes", self.own / "home", self.own / "account"):
            shutil.rmtree(each, ignore_errors=True)

    def _place(self, volume: Object, pod: Object) -> Path:
        if "persistentVolumeClaim" in volume:
            claim = str(volume["persistentVolumeClaim"]["claimName"])
            return self.claims / str(pod["metadata"]["namespace"]) / claim
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        in_memory = (volume.get("emptyDir") or {}).get("medium") == "Memory"
        return (self.memory if in_memory else self.own / "volumes") / str(volume["name"])


def write_in_place(path: Path, text: str) -> None:
    """Write a file that is mounted elsewhere, which another file in its place would not change."""
    data = text.encode()
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(file, data, 0)
        os.ftruncate(file, len(data))
    finally:
        os.close(file)


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
