"""What an ElasticJob asks for becomes the job that `up --kube` would make, or is refused."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from spotelastic.bootstrap import kube_worker
from spotelastic.client.kubernetes.cluster_mark import ClusterMark
from spotelastic.client.kubernetes.kube_job import KubeJob
from spotelastic.client.operator.fields import in_resource_terms
from spotelastic.client.operator.resource import JobResource, digest, wanted
from spotelastic.errors import EnvironmentFailure, UsageError
from spotelastic.kubernetes import cluster_manifests, pod_files
from spotelastic.kubernetes.provider.kube_names import KubeNames

SPEC: dict[str, Any] = {"image": "r/train:1", "storage": "s3://b/run", "min": 2, "max": 4}
SCRIPT = {"train.py": b"print(1)"}


def read(generation: int = 1, name: str = "gpt", **spec: Any) -> JobResource:
    return JobResource.read(
        {
            "metadata": {"name": name, "uid": "u-1", "generation": generation},
            "spec": {**SPEC, **spec},
        }
    )


def job(files: dict[str, bytes] | None = None, **spec: Any) -> KubeJob:
    return wanted(read(**spec), files or {}, "r/spotelastic:1")


def template(of: KubeJob) -> dict[str, Any]:
    return cluster_manifests.worker_template(KubeNames(of.name), of.pods, of.spec)


def test_fields_are_the_flags_of_up() -> None:
    made = job(
        args=["--steps", 3], memory="64Gi", cpu=8, maxRestarts=1, env={"A": 1}, secret=["TOKEN"],
        nodeSelector={"pool": "spot"}, snapshotEvery="30s", deadline="2h",
    )  # fmt: skip
    spec = made.spec
    assert (spec.cluster, spec.run, spec.script, spec.args) == (
        *("gpt", "gpt", "train.py"), ("--steps", "3"),
    )  # fmt: skip
    assert (spec.settings.min_nodes, spec.settings.max_nodes, spec.settings.max_restarts) == (
        *(2, 4, 1),
    )
    assert spec.env == {"A": "1"} and spec.capacity.within == 7200
    assert made.pods.resources.cpu == "8" and made.pods.secrets["TOKEN"].secret == "gpt"
    assert made.secrets == {}, "no value is read here"
    assert made.owner is not None and made.owner["uid"] == "u-1"
    root = cluster_manifests.root(KubeNames("gpt"), made.owner)
    assert root["metadata"]["ownerReferences"] == [made.owner]


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"storage": None}, "no storage was given"),
        ({"min": 5}, "spec.max"),
        ({"snapshotEvery": "soon"}, "spec.snapshotEvery"),
        ({"toleration": ["a b"]}, "spec.toleration"),
        ({"name": "x" * 60}, "at most 39 characters"),
        ({"codeFrom": {"url": "s3://b/code.tar.gz"}}, "sha256"),
        ({"codeFrom": {"url": "s3://b/", "sha256": "0" * 64}}, "name an archive"),
        (
            {"podTemplate": {"spec": {"restartPolicy": "Never"}}},
            "spec.restartPolicy is spotelastic's",
        ),
        ({"codeFrom": {"configMap": "c"}, "script": "other.py"}, "other.py"),
    ],
)
def test_what_makes_no_sense_is_refused_in_the_words_of_the_resource(
    spec: dict[str, Any], told: str
) -> None:
    with pytest.raises(UsageError) as refused:
        job(SCRIPT, **spec)
    assert told in in_resource_terms(str(refused.value))


def test_code_in_the_image_is_not_shipped_and_runs_where_the_container_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = job(workdir="/workspace")
    assert (made.spec.code, made.archive) == ("", b"")
    (container,) = template(made)["spec"]["containers"]
    assert container["workingDir"] == "/workspace"
    monkeypatch.chdir(tmp_path)
    assert kube_worker.code_folder(made.spec, tmp_path / "none") == tmp_path


def test_files_of_a_config_map_are_shipped_as_a_folder_is() -> None:
    made = job(SCRIPT, codeFrom={"configMap": "c"})
    assert made.spec.code == hashlib.sha256(made.archive).hexdigest()
    assert made.spec.folder == ""
    assert "workingDir" not in template(made)["spec"]["containers"][0]
    other = job({"train.py": b"print(2)"}, codeFrom={"configMap": "c"})
    assert digest(other) != digest(made)


def test_an_archive_at_a_url_is_read_by_the_pod_which_checks_its_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = job(SCRIPT, codeFrom={"configMap": "c"}).archive
    store, mounted, home = tmp_path / "store", tmp_path / "mounted", tmp_path / "home"
    for folder in (store, mounted, home):
        folder.mkdir()
    (store / "code.tar.gz").write_bytes(archive)
    monkeypatch.setenv("HOME", str(home))
    at = {"url": f"file://{store}/code.tar.gz", "sha256": hashlib.sha256(archive).hexdigest()}
    made = job(codeFrom=at)
    assert made.spec.code == at["sha256"] and len(made.archive) < 200
    (mounted / pod_files.part_file(0)).write_bytes(made.archive)
    folder = kube_worker.code_folder(made.spec, mounted)
    assert (folder / "train.py").read_bytes() == SCRIPT["train.py"]
    wrong = job(codeFrom={**at, "sha256": "0" * 64})
    with pytest.raises(EnvironmentFailure, match="damaged"):
        kube_worker.code_folder(wrong.spec, mounted)
    (store / "code.tar.gz").unlink()
    with pytest.raises(EnvironmentFailure, match="there is no code"):
        kube_worker.code_folder(wrong.spec, mounted)


def test_the_digest_tells_what_a_cluster_has_to_be_given() -> None:
    same = digest(job(deadline="2h"))
    assert digest(job(deadline="2h")) == same, "times of reading do not count"
    others: list[dict[str, Any]] = [
        {"max": 8},
        {"memory": "1Gi"},
        {"image": "r/train:2"},
        {"deadline": "3h"},
    ]
    for other in others:
        assert digest(job(None, **{"deadline": "2h", **other})) != same


def test_a_mark_says_whose_the_cluster_is_and_what_it_was_given() -> None:
    told = json.loads(read(generation=3).mark("d"))
    assert told == {"uid": "u-1", "digest": "d", "generation": 3}
    mark = ClusterMark(**told)
    assert mark.has(4, "d") and mark.has(3, "e") and not mark.has(4, "e")
