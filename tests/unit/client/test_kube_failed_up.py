"""What `up --kube` says when it fails: of what there is, and of what is left."""

from pathlib import Path
from typing import Any, cast

import pytest
from support.emulated_kubernetes.api.kinds import DEFINITIONS
from support.emulated_kubernetes.api.validate import completed
from support.kubernetes.operator_parts import definition
from support.kubernetes.stored_api import StoredApi, namespace

from spotelastic.client.kubernetes.kube_job import KubeJob, kube_job
from spotelastic.client.kubernetes.pod_config import PodConfig
from spotelastic.client.operator import apply
from spotelastic.client.targets.kube_target import KubePlace, KubeTarget
from spotelastic.errors import EnvironmentFailure, Unavailable
from spotelastic.kubernetes.elastic_job import KIND
from spotelastic.kubernetes.pods import Manifest
from spotelastic.kubernetes.provider.api_client import KubeApi
from spotelastic.kubernetes.provider.call_errors import NoNamespace, Undefined
from spotelastic.kubernetes.provider.kube_names import KubeNames

PLACE = KubePlace("west", "ml")


class FailingApi(StoredApi):
    """A namespace in which the Secret cannot be created, nor the ElasticJob deleted."""

    def __init__(
        self,
        first: Exception | None = None,
        delete: Exception | None = None,
        *,
        defined: bool = True,
    ) -> None:
        store = namespace()
        if defined:
            store.create(DEFINITIONS, "", completed(DEFINITIONS, definition()))
        super().__init__(store)
        self._first, self._delete = first, delete

    def create(self, manifest: Manifest) -> Manifest:
        if self._first is not None:
            raise self._first
        if manifest["kind"] == "Secret":
            raise EnvironmentFailure("exceeded quota: team")
        return super().create(manifest)

    def delete(self, kind: str, name: str, grace: int | None = None) -> None:
        if self._delete is not None and kind == KIND:
            raise self._delete
        super().delete(kind, name, grace)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KubeJob:
    (tmp_path / "train.py").write_text("print(1)")
    monkeypatch.setenv("TOKEN", "hidden")
    needed: dict[str, Any] = {"kube": True, "image": "r/train:1", "storage": "s3://b/run"}
    return kube_job(PodConfig("train.py", **needed, min=2, secret=("TOKEN",)), tmp_path)


def said_by(api: FailingApi, job: KubeJob, error: type[Exception]) -> list[str]:
    said: list[str] = []
    target = KubeTarget(PLACE, cast(KubeApi, api))
    with pytest.raises(error):
        apply.carry_out(target, job, None, said.append)
    return [line for line in said if "shipping" not in line]


def test_where_nothing_was_created_nothing_is_deleted(job: KubeJob) -> None:
    assert said_by(FailingApi(NoNamespace("there is no namespace ml")), job, NoNamespace) == []
    refused = EnvironmentFailure("elasticjobs is forbidden")
    assert said_by(FailingApi(refused), job, EnvironmentFailure) == []


def test_a_cluster_without_the_resource_is_told_how_it_is_defined(job: KubeJob) -> None:
    assert said_by(FailingApi(defined=False), job, Undefined) == []
    with pytest.raises(Undefined, match="spotelastic kube crd"):
        apply.carry_out(
            KubeTarget(PLACE, cast(KubeApi, FailingApi(defined=False))), job, None, lambda _: None
        )


def test_what_was_created_is_deleted(job: KubeJob) -> None:
    api = FailingApi()
    said = said_by(api, job, EnvironmentFailure)
    assert "creating train failed: deleting what was created" in said
    assert "train is gone" in said
    assert api.get(KIND, "train") is None and not api.found(
        "ConfigMap", KubeNames("train").labels()
    )


def test_what_is_left_is_told_with_the_command_that_finds_it(job: KubeJob) -> None:
    said = said_by(FailingApi(delete=Unavailable("no answer")), job, EnvironmentFailure)
    assert said[-1] == (
        "not all of train could be deleted: no answer; run `spotelastic down train --kube "
        "--context west --namespace ml` again"
    )
