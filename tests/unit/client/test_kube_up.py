"""`up --kube` and `--kube` of other commands: what is refused in one line, and what is planned."""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from spotelastic_checkpoints.decoders import from_json

from spotelastic import client
from spotelastic.cli.main import main
from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.validated_job import check
from spotelastic.client.kubernetes.kube_job import kube_job
from spotelastic.client.kubernetes.pod_config import PodConfig
from spotelastic.errors import EnvironmentFailure, UsageError
from spotelastic.kubernetes.provider import api_client as kube_api
from spotelastic.model.job import JobSpec

NEEDED: dict[str, Any] = {"kube": True, "image": "r/train:1", "storage": "s3://b/run", "min": 2}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("print(1)")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"image": None}, "--kube: name the container image"),
        ({"storage": None}, "no storage was given"),
        ({"local": True}, "remove --local"),
        ({"max_cost": 3.0}, "remove --max-cost"),
        ({"notify": ("json://x",)}, "remove --notify"),
        ({"on_demand": "fallback"}, "remove --on-demand"),
        ({"fresh": True}, "another --name and --storage"),
        ({"name": "X"}, "a name is lower-case letters"),
    ],
)
def test_what_a_cluster_on_kubernetes_does_not_do_is_refused(
    given: dict[str, Any], told: str, folder: Path
) -> None:
    with pytest.raises(UsageError, match=told):
        kube_job(PodConfig("train.py", **NEEDED | given), folder)


def test_the_job_has_its_etcd_at_the_control_pod_and_the_scheduler_chooses_zones(
    folder: Path,
) -> None:
    job = kube_job(PodConfig("train.py", **NEEDED, max=4, gpus=8), folder)
    assert job.spec.etcd == ("train-control:2379",)
    assert (job.spec.settings.workers, job.spec.capacity.zones) == (8, "spread")
    assert job.spec.settings.code == job.spec.release
    assert (job.spec.storage, job.spec.run) == ("s3://b/run", "train")


def test_folders_whose_files_are_kept_are_in_what_pods_and_instances_read(folder: Path) -> None:
    config: dict[str, Any] = {"output": ("out", "./logs/")}
    for job in (
        kube_job(PodConfig("train.py", **NEEDED, **config), folder),
        check(JobConfig("train.py", min=2, max=2, **config), folder),
    ):
        stored = from_json(msgspec.json.encode(job.spec), JobSpec)
        assert stored.settings.outputs == ("out", "logs")


def test_cpus_may_be_a_number_in_the_file_and_in_python(folder: Path) -> None:
    (folder / "spotelastic.toml").write_text("[kubernetes]\ncpu = 4\n")
    for config in (PodConfig.load(folder, **NEEDED), PodConfig("train.py", **NEEDED, cpu=4)):
        assert config.cpu == "4"
    assert kube_job(PodConfig("train.py", **NEEDED, cpu=4), folder).pods.resources.cpu == "4"
    (folder / "spotelastic.toml").write_text("[kubernetes]\nmemory = 4\n")
    with pytest.raises(UsageError, match="memory = 4: needs a text, in quotes"):
        PodConfig.load(folder, **NEEDED)


def test_values_of_secrets_come_from_variables_unless_another_secret_has_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "hidden")
    own = kube_job(PodConfig("train.py", **NEEDED, secret=("TOKEN",)), folder)
    assert own.secrets == {"TOKEN": "hidden"}
    assert own.pods.secrets["TOKEN"].secret == "train-secrets"
    monkeypatch.delenv("TOKEN")
    there = kube_job(
        PodConfig("train.py", **NEEDED, secret=("TOKEN",), secrets_from="team"), folder
    )
    assert not there.secrets and there.pods.secrets["TOKEN"].secret == "team"
    assert "hidden" not in repr(own.spec)


def fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *args: str) -> str:
    monkeypatch.setattr(sys, "argv", ["spotelastic", *args])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    assert (ended.value.code, told.out) == (2, "")
    assert len(told.err.splitlines()) <= 3, "one line, which may be wrapped"
    return told.err


def test_a_command_without_the_extra_or_a_cluster_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert "set KUBECONFIG" in fails(monkeypatch, capsys, "status", "--kube")
    monkeypatch.setitem(sys.modules, "lightkube", None)
    with pytest.raises(EnvironmentFailure, match=r"pip install 'spotelastic\[kubernetes\]'"):
        kube_api.connect()
    assert "pip install" in fails(monkeypatch, capsys, "ls", "--kube")


def test_one_place_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "another place" in fails(monkeypatch, capsys, "status", "--kube", "--aws")
    told = fails(monkeypatch, capsys, "up", "--memory", "4Gi", "train.py")
    assert "add --kube" in told


def test_an_unknown_context_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "a", "user": {}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
    }  # fmt: skip
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    assert "nowhere" in fails(monkeypatch, capsys, "status", "--context", "nowhere")


def test_a_program_names_one_place_and_plans_no_pods(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="give one"):
        client.find(kube=True, region="us-east-1")
    with pytest.raises(UsageError, match="set KUBECONFIG"):
        client.clusters(kube=True)
    config = PodConfig("train.py", **NEEDED)
    with pytest.raises(UsageError, match="set KUBECONFIG"):
        client.up(config)
    with pytest.raises(UsageError, match="prices of pods are not known"):
        client.plan(config)
