"""What `up --kube` says when it fails: of what there is, and of what is left."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from spotelastic.client.kubernetes import bring_up
from spotelastic.client.kubernetes.kube_job import KubeJob, kube_job
from spotelastic.client.kubernetes.pod_config import PodConfig
from spotelastic.client.targets.kube_target import KubePlace, KubeTarget
from spotelastic.errors import EnvironmentFailure, Unavailable
from spotelastic.kubernetes.pods import Manifest
from spotelastic.kubernetes.provider.api_client import KubeApi
from spotelastic.kubernetes.provider.call_errors import NoNamespace

PLACE = KubePlace("west", "ml")


class FailingApi:
    """A namespace in which the second object cannot be created, nor the first one be deleted."""

    namespace = "ml"

    def __init__(self, first: Exception | None, delete: Exception | None = None) -> None:
        self._first, self._delete = first, delete
        self._made: list[Manifest] = []

    def ensure(self, manifest: Manifest) -> Manifest:
        if self._first is not None:
            raise self._first
        self._made.append({**manifest, "metadata": {**manifest["metadata"], "uid": "u-1"}})
        return self._made[-1]

    def create(self, _: Manifest) -> Manifest:
        raise EnvironmentFailure("exceeded quota: team")

    def get(self, *_: object) -> None:
        return None

    def found(self, kind: str, labels: Mapping[str, str]) -> list[Manifest]:
        return [
            each
            for each in self._made
            if each["kind"] == kind and labels.items() <= each["metadata"]["labels"].items()
        ]

    def delete(self, kind: str, name: str, grace: int | None = None) -> None:
        if self._delete is not None:
            raise self._delete
        self._made.clear()


@pytest.fixture
def job(tmp_path: Path) -> KubeJob:
    (tmp_path / "train.py").write_text("print(1)")
    needed: dict[str, Any] = {"kube": True, "image": "r/train:1", "storage": "s3://b/run"}
    return kube_job(PodConfig("train.py", **needed, min=2), tmp_path)


def said_by(api: FailingApi, job: KubeJob, error: type[Exception]) -> list[str]:
    said: list[str] = []
    target = KubeTarget(PLACE, cast(KubeApi, api))
    with pytest.raises(error):
        bring_up.carry_out(target, job, None, said.append)
    return said


def test_where_nothing_was_created_nothing_is_deleted(job: KubeJob) -> None:
    assert said_by(FailingApi(NoNamespace("there is no namespace ml")), job, NoNamespace) == []
    refused = EnvironmentFailure("configmaps is forbidden")
    assert said_by(FailingApi(refused), job, EnvironmentFailure) == []


def test_what_was_created_is_deleted(job: KubeJob) -> None:
    said = said_by(FailingApi(None), job, EnvironmentFailure)
    assert "creating train failed: deleting what was created" in said
    assert "train is gone" in said


def test_what_is_left_is_told_with_the_command_that_finds_it(job: KubeJob) -> None:
    said = said_by(FailingApi(None, Unavailable("no answer")), job, EnvironmentFailure)
    assert said[-1] == (
        "not all of train could be deleted: no answer; run `spotelastic down train --kube "
        "--context west --namespace ml` again"
    )
