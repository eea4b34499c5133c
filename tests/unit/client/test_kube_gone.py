"""What is said of a cluster on Kubernetes that is gone: how its job ended, and what is left."""

from collections.abc import Mapping
from typing import cast

import msgspec
import pytest

from spotelastic.client.targets.kube_target import KubePlace, KubeTarget
from spotelastic.cloud.bucket import JOB, STATUS
from spotelastic.errors import UsageError
from spotelastic.kubernetes.pods import Manifest
from spotelastic.kubernetes.provider.api_client import KubeApi
from spotelastic.kubernetes.provider.config_map_objects import ConfigMapObjects
from spotelastic.model.job import JobSpec, Settings
from spotelastic.model.progress import Status

SPEC = JobSpec("train", "train", "train.py", (), "s3://b/run", Settings(1, 4), "", ())


class ConfigMaps:
    """A namespace with nothing but ConfigMaps."""

    namespace = "ml"

    def __init__(self) -> None:
        self._maps: dict[str, Manifest] = {}

    def get(self, kind: str, name: str) -> Manifest | None:
        return self._maps.get(name) if kind == "ConfigMap" else None

    def found(self, kind: str, labels: Mapping[str, str]) -> list[Manifest]:
        return [
            each
            for each in (self._maps.values() if kind == "ConfigMap" else ())
            if labels.items() <= each["metadata"]["labels"].items()
        ]

    def create(self, manifest: Manifest) -> Manifest:
        metadata = {**manifest["metadata"], "resourceVersion": "1"}
        self._maps[metadata["name"]] = {**manifest, "metadata": metadata}
        return manifest


def left(status: Status | None) -> KubeTarget:
    """A namespace with what a cluster has left."""
    api = cast(KubeApi, ConfigMaps())
    stored = ConfigMapObjects(api, "train")
    stored.put(JOB, msgspec.json.encode(SPEC))
    if status is not None:
        stored.put(STATUS, msgspec.json.encode(status))
    return KubeTarget(KubePlace(), api)


def ended(state: str) -> Status:
    return Status("train", state, 5.0, step=700, reason="all workers finished")


@pytest.mark.parametrize(
    ("status", "row", "told"),
    [
        (ended("succeeded"), ("succeeded", 700), "its job has succeeded at step 700"),
        (ended("failed"), ("failed", 700), "its job has failed at step 700"),
        (ended("running"), ("taken down", 700), "its job was cut off at step 700"),
        (None, ("taken down", 0), "its job was cut off at step 0"),
    ],
)
def test_a_job_that_is_gone_is_told_with_its_outcome_and_how_it_goes_on(
    status: Status | None, row: tuple[str, int], told: str
) -> None:
    target = left(status)
    (listed,) = target.listing()
    assert (listed.state, listed.nodes, listed.step, listed.is_gone) == (row[0], 0, row[1], True)
    assert target.ended(0.0) == (), "it is listed until `down` removes what it has left"
    with pytest.raises(UsageError, match=f"^train is gone: {told}; `spotelastic up --kube` goes"):
        target.cluster("train")
